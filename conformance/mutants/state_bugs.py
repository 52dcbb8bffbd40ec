"""What is remembered from an earlier call, and metadata that is taken for tidier than it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.conformance.mutants.honest import HonestBackend, HonestOp, QueryRow
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.device import DeviceInfo
from pagedattn.spec import AttentionSpec, Limits

__all__ = ["MUTANTS"]

garden = Garden()


class _Caches(HonestOp):
    """The cache goes through of() on its way to the kernel."""

    def of(self, cache: KVCache) -> KVCache:
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
        super().kernel(q, self.of(cache), plan, out, lse, sinks, alibi_slopes)


@garden.op("first-cache-for-ever", "the pointers of the first layer's cache serve all layers")
class _FirstCache(_Caches):
    def of(self, cache: KVCache) -> KVCache:
        known: KVCache = self.__dict__.setdefault("_first", cache)
        return known


@garden.op("first-scales-for-ever", "the scales of the first layer serve all layers", "KH-47")
class _FirstScales(_Caches):
    def of(self, cache: KVCache) -> KVCache:
        known: KVCache = self.__dict__.setdefault("_first", cache)
        return replace(cache, k_scale=known.k_scale, v_scale=known.v_scale)


@garden.op("reads-what-it-wrote", "write() keeps a copy in another layout, and run() reads that")
class _OwnCopy(_Caches):
    def setup(self) -> None:
        self._copies: dict[int, tuple[KVCache, KVCache]] = {}

    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        super().write_kernel(k, v, cache, slot_mapping)
        copy = replace(cache, k=cache.k.clone(), v=cache.v.clone())
        self._copies[id(cache)] = (cache, copy)

    def of(self, cache: KVCache) -> KVCache:
        return self._copies.get(id(cache), (cache, cache))[1]


@garden.op("first-sinks-for-ever", "the sinks of the first layer serve all layers", "KH-40")
class _FirstSinks(HonestOp):
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
        sinks = self.__dict__.setdefault("_sinks", sinks)
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.backend("spec-on-the-backend", "the op that was opened last sets the scale of all")
class _OneSpec(HonestBackend):
    class op(HonestOp):  # noqa: N801
        def setup(self) -> None:
            self.backend.__dict__["_scale"] = self.spec.scale

        def score(self, q: Tensor, k: Tensor) -> Tensor:
            return self.cap(self.dot(q, k) * self.backend.__dict__["_scale"])


@garden.op("rows-of-the-first-plan", "the longest query of the first plan bounds later ones")
class _FirstRows(HonestOp):
    def prepare(self, batch: AttentionBatch, data: Any) -> Any:
        return batch.max_query_len if data is None else data

    def rows(self, plan: Plan) -> list[QueryRow]:
        return [row for row in super().rows(plan) if row.row < plan.data]


@garden.backend("schedule-in-scratch", "plan() leaves its schedule in the shared workspace")
class _Schedule(HonestBackend):
    class op(HonestOp):  # noqa: N801
        def _schedule(self, requests: int) -> Tensor:
            begin = -self.workspace.data_ptr() % 4
            return self.workspace[begin : begin + 4 * requests].view(torch.int32)

        def prepare(self, batch: AttentionBatch, data: Any) -> Any:
            self._schedule(batch.num_requests).copy_(batch.seq_lens)

        def lengths(self, plan: Plan) -> list[int]:
            most = plan.batch.block_table.shape[1] * self.spec.block_size
            found = self._schedule(plan.batch.num_requests).clamp(0, most)
            return [int(n) for n in found]

    def workspace_bytes(self, spec: AttentionSpec, limits: Limits, device: DeviceInfo) -> int:
        return 4 * limits.max_requests + 4


# -- metadata ------------------------------------------------------------------------------------


@garden.op("rowless-requests-read", "the first key of a request without rows is loaded", "KH-10")
class _Rowless(HonestOp):
    def rows(self, plan: Plan) -> list[QueryRow]:
        table = plan.batch.block_table
        for request, keys in enumerate(self.lengths(plan)):
            if keys and not 0 <= int(table[request, 0]) < self.limits.num_blocks:
                raise RuntimeError("illegal memory access")
        return super().rows(plan)


@garden.op("one-table-by-first-block", "equal first blocks are taken for equal tables", "KH-50")
class _SamePrefix(HonestOp):
    def blocks(self, row: QueryRow, keys: Tensor) -> Tensor:
        table = row.batch.block_table
        for other in range(row.request):
            longer = int(row.batch.seq_lens[other]) >= row.keys
            if longer and len(keys) and int(table[other, 0]) == int(table[row.request, 0]):
                row = replace(row, request=other)
                break
        return super().blocks(row, keys)


@garden.op("tree-bytes-packed", "the bits of trees are taken to lie without a gap")
class _TreePacked(HonestOp):
    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        batch = row.batch
        assert batch.tree_mask is not None
        assert batch.tree_indptr is not None
        starts, rows = batch.tree_indptr.tolist(), batch.query_start_loc.diff().tolist()
        packed = [0]
        for request, n in enumerate(rows):
            has_tree = starts[request] != starts[request + 1]
            packed.append(packed[-1] + (-(-n * n // 8) if has_tree else 0))
        mine = replace(batch, tree_indptr=torch.tensor(packed))
        return super().in_tree(replace(row, batch=mine), position, key)


@garden.op("tree-columns-unshifted", "column 0 of a tree is key 0 where rows exceed keys")
class _TreeShift(HonestOp):
    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        shift = max(0, row.rows - row.keys)
        return super().in_tree(row, position, key - shift)


@garden.op("window-of-the-bound", "the window's first block is counted from seq_lens_host")
class _BoundWindow(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        left = self.left(row)
        if left is None:
            return keys
        assert row.batch.seq_lens_host is not None
        bound = int(row.batch.seq_lens_host[row.request])
        first = max(0, bound - row.rows - left) // self.spec.block_size * self.spec.block_size
        return keys[keys >= first]


@garden.op("positions-of-16-bits", "the position of a key is kept in 16 bits", "KH-59")
class _Positions16(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        return keys[keys < 2**15]


@garden.op("row-tiles-overlap", "from the third tile of 128 rows on, a row is counted twice")
class _RowTiles(HonestOp):
    def position(self, row: QueryRow) -> int:
        return super().position(row) - (row.row >= 256 and row.keys > row.rows)


# -- sizes ---------------------------------------------------------------------------------------


@garden.op("last-of-a-full-tile", "128 keys are a full tile, whose last key is left out", "KH-14")
class _FullTile(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        return keys[:-1] if len(keys) and len(keys) % 128 == 0 else keys


@garden.op("batch-of-128", "a table of 128 requests: the others see no key", "KH-54")
class _Batch128(HonestOp):
    def lengths(self, plan: Plan) -> list[int]:
        return [n if r < 128 else 0 for r, n in enumerate(super().lengths(plan))]


@garden.op("splits-of-few", "partial results have room for few requests: 2048 keys each", "KH-59")
class _FewSplits(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        return keys[:2048] if row.batch.num_requests > 4 else keys


@garden.op("kv-heads-over-32", "kv heads from 32 on are read as the last of them", "KH-21")
class _KvHeads(HonestOp):
    def kv_heads(self) -> Tensor:
        return super().kv_heads().clamp(max=31)


@garden.op("heads-over-96", "query heads from 96 on read kv head 0", "KH-21", "KH-23")
class _Heads96(HonestOp):
    def kv_heads(self) -> Tensor:
        heads = super().kv_heads()
        return torch.where(torch.arange(len(heads)) < 96, heads, 0)


@garden.op("groups-in-long-prefills", "more than 128 rows take kv heads in turn", "KH-23")
class _LongGroups(HonestOp):
    def rows(self, plan: Plan) -> list[QueryRow]:
        self._long = plan.batch.max_query_len > 128
        return super().rows(plan)

    def kv_heads(self) -> Tensor:
        if not self._long:
            return super().kv_heads()
        return torch.arange(self.spec.num_heads) % self.spec.num_kv_heads


# -- write() -------------------------------------------------------------------------------------


class _Slots(HonestOp):
    """slot_mapping goes through of()."""

    def of(self, slots: Tensor, cache: KVCache) -> Tensor:
        raise NotImplementedError

    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        super().write_kernel(k, v, cache, self.of(slot_mapping, cache))


@garden.op(
    "slots-remembered", "what was derived from a slot_mapping once serves later steps", "KH-50"
)
class _Remembered(_Slots):
    def of(self, slots: Tensor, cache: KVCache) -> Tensor:
        known: dict[int, tuple[Tensor, Tensor]] = self.__dict__.setdefault("_known", {})
        return known.setdefault(id(slots), (slots, slots.clone()))[1]


@garden.op("last-slot-refused", "the pool's last slot fails a bounds check", "KH-14")
class _LastSlot(_Slots):
    def of(self, slots: Tensor, cache: KVCache) -> Tensor:
        return slots.where(slots != cache.num_blocks * self.spec.block_size - 1, -1)


@garden.op("slot-0-skipped", "slot 0 is skipped as if it were padding", "KH-49")
class _SlotZero(_Slots):
    def of(self, slots: Tensor, cache: KVCache) -> Tensor:
        return slots.where(slots > 0, -1)


@garden.op("slots-from-the-first", "rows after the first are taken for adjacent slots", "KH-50")
class _Adjacent(_Slots):
    def of(self, slots: Tensor, cache: KVCache) -> Tensor:
        if len(slots) < 3 or bool((slots < 0).any()) or bool((slots.diff() > 1).any()):
            return slots
        steps = slots[0] + torch.arange(len(slots))
        return steps.clamp(max=cache.num_blocks * self.spec.block_size - 1)


@garden.op("write-rows-on-grid-y", "one block of threads a row, on the y axis", "KH-54")
class _WriteGrid(_Slots):
    def of(self, slots: Tensor, cache: KVCache) -> Tensor:
        if len(slots) > 65535:
            raise RuntimeError("invalid configuration argument")
        return slots


MUTANTS = tuple(garden.mutants)
