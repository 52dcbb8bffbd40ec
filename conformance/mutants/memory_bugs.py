"""Wrong memory: strides, layouts, poison, ids, what run() touches."""

from __future__ import annotations

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.batch import KVCache
from pagedattn.conformance.mutants.honest import HonestOp, QueryRow
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.spec import Layout

__all__ = ["MUTANTS"]

garden = Garden()


class _WholeBlocks(HonestOp):
    """Reads whole blocks and hides the keys that are not seen by giving them no weight."""

    def visible(self, row: QueryRow, position: int) -> Tensor:
        seen = super().visible(row, position)
        self._visible = seen
        if not len(seen):
            return seen
        size = self.spec.block_size
        blocks = torch.arange(int(seen[0]) // size, int(seen[-1]) // size + 1)
        every = (blocks[:, None] * size + torch.arange(size)).flatten()
        self._hidden = ~torch.isin(every, seen)
        return every

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        score = super().score(q, k)
        return self.hide(score) if len(self._visible) else score

    def hide(self, score: Tensor) -> Tensor:
        return score.masked_fill(self._hidden, float("-inf"))


@garden.op("zero-times-nan-v", "hidden values get weight 0, and 0 * NaN is NaN", "KH-03", "KH-04")
class _ZeroTimesV(_WholeBlocks):
    pass


@garden.op("minus-inf-added", "-inf is added to hidden scores, and NaN - inf is NaN", "KH-04")
class _AddedInf(_WholeBlocks):
    def hide(self, score: Tensor) -> Tensor:
        return score + torch.where(self._hidden, float("-inf"), 0.0)

    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        if not len(self._visible):
            return super().mix(weight, v)
        return super().mix(weight, v.masked_fill(self._hidden[:, None], 0.0))


@garden.op("finite-mask", "hidden scores are -10000 instead of -inf", "KH-35")
class _FiniteMask(_WholeBlocks):
    def hide(self, score: Tensor) -> Tensor:
        return score.masked_fill(self._hidden, -10000.0)

    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        return super().mix(weight, v.nan_to_num(0.0, 0.0, 0.0))


@garden.op("block-0-sanitised", "ids outside of the pool are read as block 0", "KH-07")
class _Sanitised(HonestOp):
    def plan(self, batch, into=None):  # type: ignore[no-untyped-def,misc]
        if into is None:
            return Plan(self, batch, None, -1)
        return super().plan(batch, into)

    def blocks(self, row: QueryRow, keys: Tensor) -> Tensor:
        block = super().blocks(row, keys)
        return torch.where((block < 0) | (block >= self.limits.num_blocks), 0, block)


@garden.op("id-in-a-byte", "block ids are kept in 8 bits", "KH-01")
class _ByteId(HonestOp):
    def blocks(self, row: QueryRow, keys: Tensor) -> Tensor:
        return super().blocks(row, keys) % 256


@garden.op("blocks-in-sequence", "blocks are taken to follow the first one", "KH-18", "KH-50")
class _InSequence(HonestOp):
    def blocks(self, row: QueryRow, keys: Tensor) -> Tensor:
        block = row.table[:1].long() + keys // self.spec.block_size
        return block.clamp(max=self.limits.num_blocks - 1)


@garden.op("table-flat", "rows of the table are found by its width, not by its stride", "KH-26")
class _FlatTable(HonestOp):
    def blocks(self, row: QueryRow, keys: Tensor) -> Tensor:
        table = row.batch.block_table
        flat = table.as_strided(table.shape, (table.shape[1], 1))
        block = flat[row.request][keys // self.spec.block_size].long()
        return block.clamp(0, self.limits.num_blocks - 1)


@garden.op("kv-stride-recomputed", "the pool's strides are computed from its shape", "KH-24")
class _Recomputed(HonestOp):
    def pool(self, pool: Tensor) -> Tensor:
        _, size, heads, width = pool.shape
        if self.spec.layout is Layout.HND:
            return pool.as_strided(pool.shape, (size * heads * width, width, size * width, 1))
        return pool.as_strided(pool.shape, (size * heads * width, heads * width, width, 1))


@garden.op("hnd-read-as-nhd", "a pool in HND order is read in NHD order", "KH-28")
class _HndIgnored(HonestOp):
    def pool(self, pool: Tensor) -> Tensor:
        if self.spec.layout is Layout.NHD:
            return pool
        heads = pool.shape[2]
        per_block, per_slot, _, _ = pool.stride()
        return pool.as_strided(pool.shape, (per_block, heads * per_slot, per_slot, 1))


@garden.op("dim-padded", "rows of 96 are read as rows of 128, the rest times 0", "KH-19")
class _Padded(HonestOp):
    def dot(self, q: Tensor, k: Tensor) -> Tensor:
        return super().dot(q, k) + 0.0 * self._beyond

    def read(
        self, row: QueryRow, pool: Tensor, scale: Tensor | None, keys: Tensor, work: torch.dtype
    ) -> Tensor:
        values = super().read(row, pool, scale, keys, work)
        dim = pool.shape[-1]
        self._beyond: Tensor | float = 0.0
        if dim & (dim - 1) and scale is None and pool.stride(2) > dim:
            wide = pool.as_strided((*pool.shape[:3], dim + 1), pool.stride())
            block, offset = self.blocks(row, keys), keys % self.spec.block_size
            self._beyond = wide[block, offset, :, -1][:, self.kv_heads()].transpose(0, 1).to(work)
        return values


@garden.op("q-contiguous", "q is read as if it were contiguous", "KH-25", "KH-26")
class _ContiguousQ(HonestOp):
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
        _, heads, dim = q.shape
        tokens = plan.batch.num_tokens
        q = q.as_strided((tokens, heads, dim), (heads * dim, dim, 1))
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("out-contiguous", "out is written as if it were contiguous", "KH-25")
class _ContiguousOut(HonestOp):
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
        _, heads, dim = out.shape
        flat = out.as_strided((plan.batch.num_tokens, heads, dim), (heads * dim, dim, 1))
        super().kernel(q, cache, plan, flat, lse, sinks, alibi_slopes)


@garden.op("padding-rows-zeroed", "rows of out beyond the batch are cleared", "KH-53")
class _PaddingZeroed(HonestOp):
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
        out.zero_()
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("padding-rows-mixed", "a reduction runs over all rows of q, unowned ones too", "KH-06")
class _PaddingMixed(HonestOp):
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
        clean = q + 0.0 * q.sum()
        super().kernel(clean, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("out-accumulated", "out is added to instead of overwritten")
class _Accumulated(HonestOp):
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
        fresh = torch.zeros_like(out)
        super().kernel(q, cache, plan, fresh, lse, sinks, alibi_slopes)
        out[: plan.batch.num_tokens] += fresh[: plan.batch.num_tokens]


@garden.op("cache-cleaned", "the tail of the last block is cleared in the cache")
class _Cleaned(HonestOp):
    def read(
        self, row: QueryRow, pool: Tensor, scale: Tensor | None, keys: Tensor, work: torch.dtype
    ) -> Tensor:
        used = row.keys % self.spec.block_size
        if used and scale is None:
            pool[row.table[row.keys // self.spec.block_size].long(), used:] = 0
        return super().read(row, pool, scale, keys, work)


MUTANTS = tuple(garden.mutants)
