"""Numbers that are rounded once too often, or otherwise than the contract says."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.batch import KVCache
from pagedattn.conformance.mutants.honest import HonestOp, QueryRow
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.spec import KVQuant
from pagedattn.write import qmax, write_kv

__all__ = ["MUTANTS"]

garden = Garden()


@garden.op("out-rounded-twice", "the sum is rounded to q's dtype before out_dtype", "KH-46")
class _OutTwice(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = super().weigh(score, v, sinks)
        return out.to(self.spec.dtype).to(out.dtype), lse


@garden.op("lse-rounded-twice", "the LSE goes through a buffer of q's dtype", "KH-46")
class _LseTwice(HonestOp):
    def log_sum(self, top: Tensor, total: Tensor) -> Tensor:
        found = super().log_sum(top, total)
        return found.to(self.spec.dtype).to(found.dtype)


@garden.op("kv-rounded-to-q", "a wider cache is rounded to q's dtype before use", "KH-46")
class _KvRounded(HonestOp):
    def read(
        self, row: QueryRow, pool: Tensor, scale: Tensor | None, keys: Tensor, work: torch.dtype
    ) -> Tensor:
        values = super().read(row, pool, scale, keys, work)
        return values if scale is not None else values.to(self.spec.dtype).to(work)


@garden.op("kv-bits-as-q", "a cache of another 16-bit float is read with the bits of q's dtype")
class _KvBits(HonestOp):
    def pool(self, pool: Tensor) -> Tensor:
        alike = pool.dtype.is_floating_point and pool.itemsize == self.spec.dtype.itemsize
        return pool.view(self.spec.dtype) if alike else pool


@garden.op("slopes-in-bfloat16", "ALiBi slopes are kept in 16 bits", "KH-41")
class _SlopesRounded(HonestOp):
    def kernel(
        self,
        q: Tensor,
        cache: KVCache,
        plan: Plan,
        out: Tensor,
        lse: Tensor | None,
        sinks: Tensor | None,
        alibi_slopes: Tensor | None,
    ) -> None:
        if alibi_slopes is not None:
            alibi_slopes = alibi_slopes.bfloat16().float()
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("slopes-assumed", "ALiBi slopes are those of the paper, whatever is given", "KH-38")
class _SlopesAssumed(HonestOp):
    def kernel(
        self,
        q: Tensor,
        cache: KVCache,
        plan: Plan,
        out: Tensor,
        lse: Tensor | None,
        sinks: Tensor | None,
        alibi_slopes: Tensor | None,
    ) -> None:
        heads = self.spec.num_heads
        if alibi_slopes is not None:
            alibi_slopes = 2.0 ** (-8 * (torch.arange(heads) + 1) / heads)
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("softcap-by-exp", "tanh is made of exp, which overflows", "KH-45")
class _CapExp(HonestOp):
    def cap(self, score: Tensor) -> Tensor:
        if self.spec.softcap is None:
            return score
        power = torch.exp(2 * score / self.spec.softcap)
        return self.spec.softcap * (power - 1) / (power + 1)


@garden.op("v-scale-of-k", "V is dequantised with the scale of K", "KH-47")
class _VScale(HonestOp):
    def kernel(
        self,
        q: Tensor,
        cache: KVCache,
        plan: Plan,
        out: Tensor,
        lse: Tensor | None,
        sinks: Tensor | None,
        alibi_slopes: Tensor | None,
    ) -> None:
        cache = replace(cache, v_scale=cache.k_scale)
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("scale-of-the-block", "a block's first token gives the scale of all its tokens", "KH-48")
class _BlockScale(HonestOp):
    def scales(self, scale: Tensor, block: Tensor, offset: Tensor) -> Tensor:
        return super().scales(scale, block, torch.zeros_like(offset))


# -- write() -------------------------------------------------------------------------------------


@garden.op("int8-half-up", "int8 ties are rounded away from zero, as round() in C does")
class _HalfUp(HonestOp):
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
                    quotient = x[row].float() / scale.expand(x.shape[1])[:, None]
                    away = quotient.sign() * (quotient.abs() + 0.5).floor()
                    at = (slot // self.spec.block_size, slot % self.spec.block_size)
                    pool[at] = away.clamp(-127, 127).to(torch.int8)


@garden.op("scale-of-the-step", "write() sets the constant scale to that of the step", "KH-48")
class _StepScale(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        live = slot_mapping >= 0
        if self.spec.kv_quant is KVQuant.PER_TENSOR and bool(live.any()):
            for x, scale in ((k, cache.k_scale), (v, cache.v_scale)):
                assert x is not None
                assert scale is not None
                largest = x[: len(live)][live].float().abs().max()
                scale.copy_(largest / qmax(self.spec.kv_dtype))
        write_kv(self.spec, k, v, cache, slot_mapping)


@garden.op("write-cuts-bits", "float32 is stored as bfloat16 by dropping its low half")
class _CutsBits(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        if (self.spec.dtype, self.spec.kv_dtype) == (torch.float32, torch.bfloat16):
            k, v = (_cut(k), None if v is None else _cut(v))
        write_kv(self.spec, k, v, cache, slot_mapping)


def _cut(x: Tensor) -> Tensor:
    return (x.contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32)


MUTANTS = tuple(garden.mutants)
