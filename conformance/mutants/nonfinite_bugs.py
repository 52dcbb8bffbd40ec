"""NaN that is hidden, taken for an empty part or handed to neighbours; digits lost by a tanh."""

from __future__ import annotations

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.batch import KVCache
from pagedattn.conformance.mutants.honest import HonestOp
from pagedattn.conformance.mutants.planting import Garden

__all__ = ["MUTANTS"]

garden = Garden()


@garden.op("nan-is-empty", "a sum that is NaN is taken for that of a row without keys")
class _NanIsEmpty(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = super().weigh(score, v, sinks)
        return out.masked_fill(lse.isnan()[:, None], 0.0), lse.masked_fill(lse.isnan(), -torch.inf)


@garden.op("nan-lse-is-empty", "out is NaN, but the LSE says that there was no key")
class _NanLse(HonestOp):
    def log_sum(self, top: Tensor, total: Tensor) -> Tensor:
        found = super().log_sum(top, total)
        return found.masked_fill(found.isnan(), -torch.inf)


@garden.op("nan-key-skipped", "the maximum skips NaN, and so does the sum of weights")
class _NanSkipped(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().weigh(score.masked_fill(score.isnan(), -torch.inf), v, sinks)


@garden.op("nan-value-is-0", "values that are no numbers are read as 0")
class _NanValue(HonestOp):
    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        return super().mix(weight, v.masked_fill(v.isnan(), 0.0))


@garden.op("nan-capped", "tanh clamps its argument by a minimum that skips NaN")
class _NanCapped(HonestOp):
    def cap(self, score: Tensor) -> Tensor:
        if self.spec.softcap is None:
            return score
        return super().cap(torch.fmin(score, torch.tensor(20.0 * self.spec.softcap)))


@garden.op("nan-part-dropped", "a part of the keys that is NaN is merged as an empty one")
class _NanPart(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        whole = range(0, score.shape[-1], 256)
        good = [i for i in whole if not bool(score[:, i : i + 256].isnan().any())]
        if len(whole) < 2 or len(good) == len(whole):
            return super().weigh(score, v, sinks)
        kept = torch.cat([torch.arange(i, min(i + 256, score.shape[-1])) for i in good])
        return super().weigh(score[:, kept], v[:, kept], sinks)


@garden.op("zero-times-neighbours", "values of the whole batch, with weight 0 those of others")
class _Neighbours(HonestOp):
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
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)
        rows = self.rows(plan)
        last = {row.request: row for row in rows}
        for row in last.values():
            keys = self.visible(row, self.position(row))
            v = self.read(row, cache.v, cache.v_scale, keys, torch.float32)
            for other in rows:
                out[other.token] += (0 * v.sum(1)).to(out.dtype)


@garden.op("zero-times-the-last-step", "the accumulator is multiplied by 0, not cleared")
class _LastStep(HonestOp):
    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        mixed = super().mix(weight, v)
        before: Tensor = self.__dict__.get("_mixed", mixed)
        self.__dict__["_mixed"] = mixed
        return mixed + 0 * before


@garden.op("softcap-of-short-tanh", "under a large cap tanh, made of exp, has too few digits left")
class _ShortTanh(HonestOp):
    def cap(self, score: Tensor) -> Tensor:
        cap = self.spec.softcap
        if cap is None or cap < 1e3 or self.spec.dtype.itemsize > 2:
            return super().cap(score)
        power: Tensor = torch.exp(2.0 * score / cap)
        return cap * (1.0 - 2.0 / (power + 1.0))


MUTANTS = tuple(garden.mutants)
