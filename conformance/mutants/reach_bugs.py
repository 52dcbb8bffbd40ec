"""Bugs that show only far away or in odd shapes: 32-bit offsets, launch limits, compiled variants,
tiles, late launches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.batch import KVCache
from pagedattn.capabilities import Capabilities
from pagedattn.conformance.mutants.honest import HonestBackend, HonestOp, QueryRow
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.device import DeviceInfo
from pagedattn.spec import Graph

__all__ = ["MUTANTS"]

garden = Garden()


def wrapped(offset: Tensor) -> Tensor:
    """`offset` as a signed 32-bit number."""
    return (offset + 2**31) % 2**32 - 2**31


@garden.op("kv-offset-32-bits", "block id times the pool's stride wraps at 32 bits", "KH-01")
class _KvOffset(HonestOp):
    def blocks(self, row: QueryRow, keys: Tensor) -> Tensor:
        block = super().blocks(row, keys)
        reached = wrapped(block * self._stride) // self._stride
        return reached.clamp(0, self.limits.num_blocks - 1)

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
        self._stride = cache.k.stride(0)
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("q-offset-32-bits", "row times the stride of q wraps at 32 bits", "KH-02")
class _QOffset(HonestOp):
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
        rows = wrapped(torch.arange(q.shape[0]) * q.stride(0)) // q.stride(0)
        super().kernel(q[rows.clamp(min=0)], cache, plan, out, lse, sinks, alibi_slopes)


class _Launch(HonestOp):
    """Refuses to be launched over more than 65535 of something."""

    def size(self, plan: Plan) -> int:
        raise NotImplementedError

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
        if self.size(plan) > 65535:
            raise RuntimeError("invalid configuration argument")
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("requests-on-grid-y", "one block of threads a request, on the y axis", "KH-54")
class _ManyRequests(_Launch):
    def size(self, plan: Plan) -> int:
        return plan.batch.num_requests


@garden.op("rows-on-grid-y", "one block of threads a query row, on the y axis", "KH-54")
class _ManyRows(_Launch):
    def size(self, plan: Plan) -> int:
        return plan.num_tokens


@garden.op("logits-in-shared-memory", "all logits of a row are held at once", "KH-58")
class _AllLogits(HonestOp):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if k.shape[1] > 12000:
            raise RuntimeError("out of shared memory")
        return super().score(q, k)


@garden.op("request-of-empty-row", "of equal starts the first is taken: an empty request", "KH-10")
class _EmptyNeighbour(HonestOp):
    def rows(self, plan: Plan) -> list[QueryRow]:
        starts = plan.batch.query_start_loc.tolist()
        lengths = self.lengths(plan)
        found = []
        for row in super().rows(plan):
            owner = starts.index(starts[row.request])
            found.append(replace(row, request=owner, keys=lengths[owner]))
        return found


@garden.op(
    "block-of-power-of-two", "offsets are cut out by a mask of the next power", "KH-16", "KH-17"
)
class _PowerOfTwo(HonestOp):
    def read(
        self, row: QueryRow, pool: Tensor, scale: Tensor | None, keys: Tensor, work: torch.dtype
    ) -> Tensor:
        size = 1 << (self.spec.block_size - 1).bit_length()
        wrong = keys // size * self.spec.block_size + (keys % size) % self.spec.block_size
        return super().read(row, pool, scale, wrong, work)


@garden.op("groups-compiled", "decode has variants for groups 1, 2, 4 and 8 only", "KH-21")
class _Groups(HonestOp):
    def kv_heads(self) -> Tensor:
        if self.spec.group_size not in (1, 2, 4, 8):
            raise RuntimeError(f"unsupported group size {self.spec.group_size}")
        return super().kv_heads()


@garden.op("empty-parts-merged", "two empty parts are merged, and -inf - -inf is NaN", "KH-42")
class _EmptyParts(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = super().weigh(score, v, sinks)
        return (out, lse) if score.shape[-1] else (out, lse - lse)


@garden.op("value-dim-cut", "columns of V beyond the width of K are not accumulated")
class _ValueCut(HonestOp):
    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        seen = torch.arange(v.shape[-1]) < self.spec.head_dim
        return super().mix(weight, torch.where(seen, v, 0.0))


@garden.op("launched-late", "a launch is queued on a stream that nobody waits for", "KH-57")
class _Late(HonestOp):
    _queued: Callable[[], None] | None = None

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
        if self._queued is not None:
            self._queued()
        kernel = super().kernel
        self._queued = lambda: kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("one-thread-for-ever", "scratch is kept for the thread that opened the op")
class _OneThread(HonestOp):
    def setup(self) -> None:
        self._own = threading.local()
        self._own.scratch = torch.zeros(())

    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        scratch: Tensor = self._own.scratch
        return super().mix(weight, v) + scratch


@garden.op("memory-kept", "every call keeps a copy of q")
class _Kept(HonestOp):
    def setup(self) -> None:
        self._kept: list[Tensor] = []

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
        self._kept.append(q.clone())
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.backend("graph-on-a-cpu", "CUDA graphs are claimed on a CPU")
class _CpuGraph(HonestBackend):
    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return replace(super().capabilities(device), graph=Graph.ANY)


@garden.op("state-from-an-earlier-batch", "the first batch's length bounds all later ones")
class _FirstBatch(HonestOp):
    def lengths(self, plan: Plan) -> list[int]:
        lengths = super().lengths(plan)
        if not hasattr(self, "_most"):
            self._most = max(lengths, default=0)
        return [min(n, self._most) for n in lengths]


@garden.op("window-and-alibi", "with both a window and ALiBi, the window is dropped")
class _Pair(HonestOp):
    def left(self, row: QueryRow) -> int | None:
        return None if self.spec.alibi else super().left(row)


@garden.op("odd-blocks-of-hnd", "HND pools of an odd block size are read as NHD")
class _OddHnd(HonestOp):
    def pool(self, pool: Tensor) -> Tensor:
        if self.spec.block_size % 2 == 0 or self.spec.layout.value == "NHD":
            return pool
        _, _, heads, _ = pool.shape
        per_block, per_slot, _, _ = pool.stride()
        return pool.as_strided(pool.shape, (per_block, heads * per_slot, per_slot, 1))


@garden.backend("range-overstated", "head_dim is declared up to 256, the last 16 dims are dropped")
class _Overstated(HonestBackend):
    class op(HonestOp):  # noqa: N801
        def dot(self, q: Tensor, k: Tensor) -> Tensor:
            return super().dot(q[..., :240], k[..., :240])

    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return replace(super().capabilities(device), head_dim=range(16, 257, 16))


@garden.backend("range-understated", "what lies outside of the declared block sizes is served")
class _Understated(HonestBackend):
    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return replace(super().capabilities(device), block_size=range(16, 129, 16))

    def open(self, spec, limits, *, device, tuning=None, workspace=None):  # type: ignore[no-untyped-def,misc]
        scratch = torch.empty(0, dtype=torch.uint8)
        return self.op(
            self, spec, limits, device=torch.device(device), tuning=tuning or {}, workspace=scratch
        )


MUTANTS = tuple(garden.mutants)
