"""Wrong numbers: heads, dims, options, sinks, LSE, precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pagedattn.conformance.mutants.honest import HonestOp
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.spec import Mask

__all__ = ["MUTANTS"]

garden = Garden()


@garden.op("heads-interleaved", "query head h reads kv head h % Hkv", "KH-23")
class _Interleaved(HonestOp):
    def kv_heads(self) -> Tensor:
        return torch.arange(self.spec.num_heads) % self.spec.num_kv_heads


@garden.op("heads-all-0", "every query head reads kv head 0", "KH-23", "KH-25")
class _HeadZero(HonestOp):
    def kv_heads(self) -> Tensor:
        return torch.zeros(self.spec.num_heads, dtype=torch.long)


@garden.op("group-over-16", "16 // group rows a tile: more than 16 heads a group crash", "KH-22")
class _BigGroup(HonestOp):
    def kv_heads(self) -> Tensor:
        rows = 16 // self.spec.group_size
        tiles = -(-self.spec.num_heads // rows)
        return super().kv_heads()[: tiles * rows]


@garden.op("first-64-dims", "only the first 64 dims of q and k are used", "KH-20")
class _FirstDims(HonestOp):
    def dot(self, q: Tensor, k: Tensor) -> Tensor:
        return super().dot(q[..., :64], k[..., :64])


@garden.op("scale-ignored", "the scale is always head_dim ** -0.5", "KH-38")
class _OwnScale(HonestOp):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.cap(self.dot(q, k) * self.spec.head_dim**-0.5)


@garden.op("softcap-dropped", "softcap is claimed and dropped in silence", "KH-38")
class _NoCap(HonestOp):
    def cap(self, score: Tensor) -> Tensor:
        return score


@garden.op("softcap-before-scale", "softcap is applied before the scale", "KH-37")
class _CapFirst(HonestOp):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.cap(self.dot(q, k)) * self.spec.scale


@garden.op("softcap-after-mask", "softcap is applied to -inf, so that hidden keys leak", "KH-37")
class _CapLast(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = super().weigh(score, v, sinks)
        if self.spec.softcap is None or not score.shape[-1]:
            return out, lse
        # As many hidden keys as seen ones, each with weight exp(-softcap) and value 0.
        leaked = score.shape[-1] * torch.exp(-self.spec.softcap - lse)
        return out / (1 + leaked)[:, None], lse + torch.log1p(leaked)


@garden.op("alibi-sign", "the ALiBi bias grows with the distance", "KH-41")
class _AlibiSign(HonestOp):
    def bias(self, keys: Tensor, position: int) -> Tensor:
        return -super().bias(keys, position)


@garden.op("alibi-from-0", "the ALiBi bias counts from key 0; only the LSE shows it", "KH-41")
class _AlibiOrigin(HonestOp):
    def bias(self, keys: Tensor, position: int) -> Tensor:
        return keys.float() if self.spec.mask is Mask.CAUSAL else super().bias(keys, position)


@garden.op("alibi-full-signed", "without a causal mask the ALiBi bias rewards later keys")
class _AlibiFull(HonestOp):
    def bias(self, keys: Tensor, position: int) -> Tensor:
        return (keys - position).float()


@garden.op("sinks-dropped", "sinks are claimed and dropped", "KH-40")
class _NoSinks(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().weigh(score, v, None)


class _Splits(HonestOp):
    """Keys in parts of 256, each with its own denominator."""

    def sink_of(self, part: int, sinks: Tensor) -> Tensor | None:
        return sinks if part == 0 else None

    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        parts = max(1, -(-score.shape[-1] // 256))
        total, log_sum = super().weigh(score[:, :256], v[:, :256], self._sink(0, sinks))
        for part in range(1, parts):
            at = slice(part * 256, (part + 1) * 256)
            out, lse = super().weigh(score[:, at], v[:, at], self._sink(part, sinks))
            both = torch.logaddexp(log_sum, lse)
            total = (
                total * torch.exp(log_sum - both)[:, None] + out * torch.exp(lse - both)[:, None]
            )
            log_sum = both
        return total, log_sum

    def _sink(self, part: int, sinks: Tensor | None) -> Tensor | None:
        return None if sinks is None else self.sink_of(part, sinks)


@garden.op("sinks-per-split", "the sink enters the denominator once per split", "KH-39")
class _SinkPerSplit(_Splits):
    def sink_of(self, part: int, sinks: Tensor) -> Tensor | None:
        return sinks

    def visible(self, row, position):  # type: ignore[no-untyped-def]
        # The window leaves the first splits empty, but each of them has seen the sink.
        keys = super().visible(row, position)
        self._empty = int(keys[0]) // 256 if len(keys) else 0
        return keys

    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = super().weigh(score, v, sinks)
        if sinks is None or not self._empty:
            return out, lse
        both = torch.logaddexp(lse, sinks + math.log(self._empty))
        return out * torch.exp(lse - both)[:, None], both


@garden.op("sinks-scaled", "the sink is multiplied by the scale as if it were a score")
class _SinkScaled(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().weigh(score, v, None if sinks is None else sinks * self.spec.scale)


@garden.op("lse-base-2", "the LSE is a binary logarithm", "KH-43")
class _BaseTwo(HonestOp):
    def log_sum(self, top: Tensor, total: Tensor) -> Tensor:
        return super().log_sum(top, total) / math.log(2.0)


@garden.op("lse-without-sinks", "the LSE leaves the sinks out", "KH-39")
class _LseNoSinks(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        out, _ = super().weigh(score, v, sinks)
        return out, super().weigh(score, v, None)[1]


@garden.op("lse-is-maximum", "the LSE is only the largest score")
class _LseMaximum(HonestOp):
    def log_sum(self, top: Tensor, total: Tensor) -> Tensor:
        return torch.where(total == 0, float("-inf"), top)


@garden.op("no-maximum", "exp without taking the maximum off: large scores overflow", "KH-45")
class _NoMaximum(HonestOp):
    def top(self, score: Tensor, sinks: Tensor | None) -> Tensor:
        return score.new_zeros(score.shape[0])


@garden.op("products-in-16-bits", "q * k is multiplied in the dtype of q", "KH-45")
class _NarrowProducts(HonestOp):
    def dot(self, q: Tensor, k: Tensor) -> Tensor:
        product = q.to(self.spec.dtype)[:, None] * k.to(self.spec.dtype)
        return product.to(q.dtype).sum(-1)


@garden.op("sum-in-16-bits", "the running sum of values is kept in 16 bits", "KH-46")
class _NarrowSum(HonestOp):
    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        if self.spec.dtype.itemsize > 2:
            return super().mix(weight, v)
        total = torch.zeros_like(v[:, 0], dtype=self.spec.dtype)
        for begin in range(0, v.shape[1], 4):
            at = slice(begin, begin + 4)
            total = total + super().mix(weight[:, at], v[:, at]).to(self.spec.dtype)
        return total.to(v.dtype)


@garden.op("weights-in-8-bits", "weights are rounded to three bits of mantissa", "KH-46")
class _NarrowWeights(HonestOp):
    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        return super().mix(weight.to(torch.float8_e4m3fn).to(v.dtype), v)


MUTANTS = tuple(garden.mutants)
