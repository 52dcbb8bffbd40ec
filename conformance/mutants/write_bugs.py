"""Wrong 8-bit caches and wrong writes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pagedattn.batch import KVCache
from pagedattn.conformance.mutants.honest import HonestOp
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.spec import KVQuant, Layout
from pagedattn.write import write_kv

__all__ = ["MUTANTS"]

garden = Garden()


# -- 8-bit caches --------------------------------------------------------------------------------


@garden.op("kv-scales-ignored", "k_scale and v_scale are not applied", "KH-47")
class _NoScales(HonestOp):
    def scales(self, scale: Tensor, block: Tensor, offset: Tensor) -> Tensor:
        return torch.ones_like(super().scales(scale, block, offset))


@garden.op("scale-of-head-0", "every head uses the scale of head 0", "KH-47")
class _HeadZero(HonestOp):
    def scales(self, scale: Tensor, block: Tensor, offset: Tensor) -> Tensor:
        found = super().scales(scale, block, offset)
        return found if not scale.dim() else found[..., :1, :].expand_as(found)


@garden.op("scales-read-flat", "per-token scales are read as contiguous", "KH-48")
class _FlatScales(HonestOp):
    def scales(self, scale: Tensor, block: Tensor, offset: Tensor) -> Tensor:
        if scale.dim() == 3:
            scale = scale.as_strided(
                scale.shape, (scale.shape[1] * scale.shape[2], scale.shape[2], 1)
            )
        return super().scales(scale, block, offset)


@garden.op("sinks-dropped-8-bit", "sinks are dropped when the cache is 8-bit", "KH-40")
class _QuantSinks(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.spec.kv_quant is not KVQuant.NONE:
            sinks = None
        return super().weigh(score, v, sinks)


# -- write() -------------------------------------------------------------------------------------


@garden.op("slot-minus-one", "slot -1 is used as an index and hits the last slot", "KH-49")
class _MinusOne(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        slots = cache.num_blocks * self.spec.block_size
        write_kv(self.spec, k, v, cache, slot_mapping % slots)


@garden.op("write-all-rows", "every row of k is written, the mapping read past its end", "KH-51")
class _AllRows(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        more = k.shape[0] - slot_mapping.shape[0]
        slots = torch.cat((slot_mapping, torch.zeros(more, dtype=torch.int64)))
        write_kv(self.spec, k, v, cache, slots)


@garden.op("write-skips-to-0", "skipped rows are written to slot 0", "KH-05", "KH-49")
class _SkipsToZero(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        write_kv(self.spec, k, v, cache, slot_mapping.clamp(min=0))


@garden.op("write-by-shape", "the writer takes all heads of a token to be adjacent", "KH-27")
class _WriteFlat(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        if self.spec.layout is Layout.HND:
            cache = KVCache(_flat(cache.k), _flat(cache.v), cache.k_scale, cache.v_scale)
        write_kv(self.spec, k, v, cache, slot_mapping)


@garden.op("write-v-from-k-rows", "v is read with the row stride of a contiguous tensor", "KH-26")
class _WriteContiguous(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        if v is not None:
            rows, heads, dim = v.shape
            v = v.as_strided((rows, heads, dim), (heads * dim, dim, 1))
        write_kv(self.spec, k, v, cache, slot_mapping)


class _OwnQuantiser(HonestOp):
    """Constant scales: k and v are quantised by encode()."""

    def encode(self, x: Tensor, scale: Tensor) -> Tensor:
        raise NotImplementedError

    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        write_kv(self.spec, k, v, cache, slot_mapping)
        constant = self.spec.kv_quant in (KVQuant.PER_TENSOR, KVQuant.PER_HEAD)
        if self.spec.kv_dtype is not torch.int8 or not constant:
            return
        for x, pool, scale in ((k, cache.k, cache.k_scale), (v, cache.v, cache.v_scale)):
            assert x is not None
            assert scale is not None
            for row, slot in enumerate(slot_mapping.tolist()):
                if slot >= 0:
                    at = (slot // self.spec.block_size, slot % self.spec.block_size)
                    pool[at] = self.encode(x[row].float(), scale.expand(x.shape[1])[:, None])


@garden.op("int8-truncated", "int8 values are cut off instead of rounded")
class _Truncated(_OwnQuantiser):
    def encode(self, x: Tensor, scale: Tensor) -> Tensor:
        return (x / scale).clamp(-127, 127).to(torch.int8)


@garden.op("int8-wraps", "int8 values beyond 127 wrap around")
class _Wraps(_OwnQuantiser):
    def encode(self, x: Tensor, scale: Tensor) -> Tensor:
        return (x / scale).round().to(torch.int64).to(torch.int8)


@garden.op("token-scale-stale", "PER_TOKEN_HEAD scales are used but not stored", "KH-48")
class _Stale(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        if self.spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
            assert cache.k_scale is not None
            assert cache.v_scale is not None
            cache = replace(cache, k_scale=cache.k_scale.clone(), v_scale=cache.v_scale.clone())
        write_kv(self.spec, k, v, cache, slot_mapping)


@garden.op("layout-by-shape", "the layout is guessed: HND when more heads than slots", "KH-28")
class _Guessed(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        if self.spec.layout is Layout.HND and cache.k.shape[1] >= cache.k.shape[2]:
            cache = KVCache(_flat(cache.k), _flat(cache.v), cache.k_scale, cache.v_scale)
        write_kv(self.spec, k, v, cache, slot_mapping)


def _flat(pool: Tensor) -> Tensor:
    """The memory of a pool as if it lay in NHD order."""
    _, _, heads, _ = pool.shape
    per_block, per_slot, _, _ = pool.stride()
    return pool.as_strided(pool.shape, (per_block, heads * per_slot, per_slot, 1))


MUTANTS = tuple(garden.mutants)
