"""What is remembered under too little: a pointer, an id, a summary of the lengths, a part of the
spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.conformance.mutants.honest import HonestBackend, HonestOp, QueryRow
from pagedattn.conformance.mutants.planting import Garden

__all__ = ["MUTANTS"]

garden = Garden()


class _Kept(HonestOp):
    """Arguments go through arguments() on their way to the kernel."""

    def setup(self) -> None:
        self.known: dict[object, Any] = {}

    def arguments(self, q: Tensor, cache: KVCache, plan: Plan) -> tuple[Tensor, KVCache]:
        return q, cache

    def vector(self, x: Tensor | None) -> Tensor | None:
        return x

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
        q, cache = self.arguments(q, cache, plan)
        super().kernel(q, cache, plan, out, lse, self.vector(sinks), self.vector(alibi_slopes))


def _restrided(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    try:
        return x.as_strided(x.shape, strides)
    except RuntimeError:  # it would leave its memory: a kernel reads what lies there
        return torch.zeros_like(x)


@garden.op("pools-by-id", "the pools of a cache are remembered by the id of the object")
class _ById(_Kept):
    def arguments(self, q: Tensor, cache: KVCache, plan: Plan) -> tuple[Tensor, KVCache]:
        k, v = self.known.setdefault(id(cache), (cache.k, cache.v))
        return q, replace(cache, k=k, v=v)


@garden.op("v-by-pointer-of-k", "V is remembered by where K begins")
class _ByK(_Kept):
    def arguments(self, q: Tensor, cache: KVCache, plan: Plan) -> tuple[Tensor, KVCache]:
        return q, replace(cache, v=self.known.setdefault(cache.k.data_ptr(), cache.v))


@garden.op("strides-of-the-first-cache", "the strides of the first pools serve all layers", "KH-24")
class _FirstStrides(_Kept):
    def arguments(self, q: Tensor, cache: KVCache, plan: Plan) -> tuple[Tensor, KVCache]:
        k, v = self.known.setdefault("strides", (cache.k.stride(), cache.v.stride()))
        return q, replace(cache, k=_restrided(cache.k, k), v=_restrided(cache.v, v))


@garden.op("q-by-pointer", "a descriptor of q is remembered by its pointer and shape", "KH-25")
class _QByPointer(_Kept):
    def arguments(self, q: Tensor, cache: KVCache, plan: Plan) -> tuple[Tensor, KVCache]:
        return _restrided(q, self.known.setdefault((q.data_ptr(), q.shape), q.stride())), cache


@garden.op("vectors-by-pointer", "converted sinks and slopes are remembered by their pointer")
class _VectorByPointer(_Kept):
    def vector(self, x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        kept: Tensor = self.known.setdefault(x.data_ptr(), (x, x.clone()))[1]
        return kept


@garden.op("lengths-by-summary", "a schedule is remembered by B, T and the longest request")
class _LengthsBySummary(_Kept):
    def lengths(self, plan: Plan) -> list[int]:
        batch = plan.batch
        key = (batch.num_requests, batch.num_tokens, batch.max_query_len, batch.max_seq_len)
        found: list[int] = self.known.setdefault(key, super().lengths(plan))
        most = batch.block_table.shape[1] * self.spec.block_size
        return [min(n, most) for n in found]


@garden.op("starts-by-summary", "who owns which row is remembered by B, T and the longest query")
class _StartsBySummary(_Kept):
    def rows(self, plan: Plan) -> list[QueryRow]:
        batch = plan.batch
        assert batch.query_start_loc_host is not None
        key = (batch.num_requests, batch.num_tokens, batch.max_query_len)
        starts = self.known.setdefault(key, batch.query_start_loc_host.tolist())
        return [
            QueryRow(batch, r, token - starts[r], starts[r + 1] - starts[r], keys, token)
            for r, keys in enumerate(self.lengths(plan))
            for token in range(starts[r], starts[r + 1])
        ]


@garden.op("table-by-pointer", "a gathered table is remembered by its pointer and the lengths")
class _TableByPointer(_Kept):
    def blocks(self, row: QueryRow, keys: Tensor) -> Tensor:
        table = row.batch.block_table
        key = (table.data_ptr(), tuple(row.batch.seq_lens.tolist()))
        kept = self.known.setdefault(key, table.clone())
        return super().blocks(replace(row, batch=replace(row.batch, block_table=kept)), keys)


@garden.op("eight-plans", "plans share a ring of eight buffers")
class _Ring(_Kept):
    def prepare(self, batch: AttentionBatch, data: Any) -> Any:
        at = data
        if at is None:
            at = self.known["next"] = self.known.get("next", -1) + 1
        self.known[at % 8] = batch.seq_lens.tolist()
        return at

    def lengths(self, plan: Plan) -> list[int]:
        most = plan.batch.block_table.shape[1] * self.spec.block_size
        found = [*self.known[plan.data % 8], *[0] * plan.batch.num_requests]
        return [min(n, most) for n in found[: plan.batch.num_requests]]


@garden.op("plan-for-32-layers", "a counter of the plan runs out after 32 calls")
class _ManyLayers(_Kept):
    def arguments(self, q: Tensor, cache: KVCache, plan: Plan) -> tuple[Tensor, KVCache]:
        self.known[plan] = self.known.get(plan, 0) + 1
        return q * (self.known[plan] <= 32), cache


@garden.op("config-after-8-runs", "the eighth run chooses another way to sum", "KH-55")
class _Settled(_Kept):
    def arguments(self, q: Tensor, cache: KVCache, plan: Plan) -> tuple[Tensor, KVCache]:
        self.known["runs"] = self.known.get("runs", 0) + 1
        return q, cache

    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        if self.known["runs"] < 8:
            return super().mix(weight, v)
        return super().mix(weight[:, :7], v[:, :7]) + super().mix(weight[:, 7:], v[:, 7:])


@garden.op("trees-kept", "plan(into=) keeps the tree that the plan was made of")
class _TreesKept(HonestOp):
    def prepare(self, batch: AttentionBatch, data: Any) -> Any:
        return data or [None if batch.tree_mask is None else batch.tree_mask.clone()]

    def rows(self, plan: Plan) -> list[QueryRow]:
        kept = replace(plan.batch, tree_mask=plan.data[0])
        return [replace(row, batch=kept) for row in super().rows(plan)]


class _Compiled(HonestBackend):
    """kept  what was compiled first, by a key that misses a field"""

    def __init__(self) -> None:
        self.kept: dict[object, Any] = {}


@garden.backend("softcap-not-in-key", "a compiled kernel is found by whether it has a softcap")
class _SoftcapKey(_Compiled):
    class op(HonestOp):  # noqa: N801
        def cap(self, score: Tensor) -> Tensor:
            if self.spec.softcap is None:
                return score
            assert isinstance(self.backend, _Compiled)
            cap: float = self.backend.kept.setdefault("softcap", self.spec.softcap)
            return cap * torch.tanh(score / cap)


@garden.backend("window-of-the-last-op", "the window is a constant of the module, set by open()")
class _WindowOfLast(_Compiled):
    class op(HonestOp):  # noqa: N801
        def setup(self) -> None:
            assert isinstance(self.backend, _Compiled)
            self.backend.kept["window"] = self.spec.window[0]

        def left(self, row: QueryRow) -> int | None:
            assert isinstance(self.backend, _Compiled)
            left: int | None = self.backend.kept["window"]
            return left


MUTANTS = tuple(garden.mutants)
