"""Wrong from some size on, or for one kind of step beside another."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.conformance.mutants.honest import HonestOp, QueryRow
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.spec import Layout, Mask

__all__ = ["MUTANTS"]

garden = Garden()


class _Keys(HonestOp):
    """The keys of a row go through of()."""

    def of(self, row: QueryRow, position: int, keys: Tensor) -> Tensor:
        raise NotImplementedError

    def visible(self, row: QueryRow, position: int) -> Tensor:
        return self.of(row, position, super().visible(row, position))


@garden.op("chunk-over-4096", "several rows over a long prefix see its first 4096 keys", "KH-58")
class _LongChunk(_Keys):
    def of(self, row: QueryRow, position: int, keys: Tensor) -> Tensor:
        return keys[:4096] if row.rows > 1 else keys


@garden.op("window-over-2048", "a window holds 2048 keys at most", "KH-36")
class _WideWindow(_Keys):
    def of(self, row: QueryRow, position: int, keys: Tensor) -> Tensor:
        return keys if self.left(row) is None else keys[-2048:]


@garden.op("right-over-64", "the window's right side ends within the next tile", "KH-36")
class _WideRight(_Keys):
    def of(self, row: QueryRow, position: int, keys: Tensor) -> Tensor:
        return keys if self.right(row) is None else keys[keys < position + 64]


@garden.op("row-17", "a second tile of one row alone misses its own key")
class _RowSeventeen(_Keys):
    def of(self, row: QueryRow, position: int, keys: Tensor) -> Tensor:
        return keys[:-1] if row.row == 16 and row.rows == 17 else keys


@garden.op("decodes-first", "decodes are taken to come before every prefill", "KH-11")
class _DecodesFirst(_Keys):
    def of(self, row: QueryRow, position: int, keys: Tensor) -> Tensor:
        assert row.batch.query_start_loc_host is not None
        rows = row.batch.query_start_loc_host.diff().tolist()
        late = row.rows == 1 and rows[0] == 1 and max(rows[: row.request + 1]) > 1
        return keys[:1] if late else keys


def _shared_columns(row: QueryRow) -> int:
    """Leading columns of the table that are the same for all requests."""
    table = row.batch.block_table
    alike = (table == table[:1]).all(0).long()
    return int(alike.cumprod(0).sum()) if row.batch.num_requests > 1 else 0


@garden.op("shared-prefix-not-causal", "what all requests share is attended to whole", "KH-29")
class _SharedWhole(_Keys):
    def of(self, row: QueryRow, position: int, keys: Tensor) -> Tensor:
        shared = min(row.keys, _shared_columns(row) * self.spec.block_size)
        if not shared or self.spec.mask is not Mask.CAUSAL or self.left(row) is not None:
            return keys
        return torch.arange(max(shared, len(keys)))


@garden.op("shared-prefix-no-window", "what all requests share is read without the window", "KH-33")
class _SharedWindow(_Keys):
    def of(self, row: QueryRow, position: int, keys: Tensor) -> Tensor:
        shared = min(row.keys, _shared_columns(row) * self.spec.block_size)
        if not shared or self.left(row) is None or not len(keys):
            return keys
        return torch.arange(int(keys[-1]) + 1)


@garden.op("repeated-blocks-once", "a block that a table lists twice is read once")
class _Once(_Keys):
    def of(self, row: QueryRow, position: int, keys: Tensor) -> Tensor:
        if not len(keys):
            return keys
        blocks = self.blocks(row, keys).tolist()
        first: dict[int, int] = {}
        columns = (keys // self.spec.block_size).tolist()
        fresh = [first.setdefault(b, c) == c for b, c in zip(blocks, columns, strict=True)]
        return keys[torch.tensor(fresh)]


@garden.op("row-sees-itself", "a row of a tree always sees its own key")
class _SeesItself(HonestOp):
    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        return key == position or super().in_tree(row, position, key)


@garden.op("tree-from-byte-0", "the first tree is taken to begin with the first byte")
class _TreeFromZero(HonestOp):
    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        assert row.batch.tree_indptr is not None
        moved = row.batch.tree_indptr - row.batch.tree_indptr[0]
        return super().in_tree(replace(row, batch=replace(row.batch, tree_indptr=moved)), 0, key)


@garden.op("tree-rows-over-128", "the second tile of rows of a tree is plain causal")
class _TreeRows(HonestOp):
    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        return key <= position if row.row >= 128 else super().in_tree(row, position, key)


@garden.op("tree-by-the-bound", "columns of a tree are counted back from seq_lens_host")
class _TreeBound(HonestOp):
    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        assert row.batch.seq_lens_host is not None
        slack = int(row.batch.seq_lens_host[row.request]) - row.keys
        return super().in_tree(row, position, max(0, key - slack))


@garden.op("one-key-at-least", "a request whose bound is above 0 is taken to have a key")
class _OneKey(HonestOp):
    def lengths(self, plan: Plan) -> list[int]:
        assert plan.batch.seq_lens_host is not None
        bounds = plan.batch.seq_lens_host.tolist()
        return [max(n, min(1, b)) for n, b in zip(super().lengths(plan), bounds, strict=True)]


@garden.op("groups-of-9-to-15", "groups that fill no tile of rows are cut to eights", "KH-21")
class _Groups(HonestOp):
    def kv_heads(self) -> Tensor:
        if not 8 < self.spec.group_size < 16:
            return super().kv_heads()
        return torch.arange(self.spec.num_heads) // 8 % self.spec.num_kv_heads


@garden.op("odd-heads-of-hnd", "an odd number of kv heads is read in reverse from HND", "KH-28")
class _OddHeads(HonestOp):
    def kv_heads(self) -> Tensor:
        odd = self.spec.layout is Layout.HND and self.spec.num_kv_heads % 2
        return super().kv_heads().flip(0) if odd else super().kv_heads()


@garden.op("shared-kv-16-heads", "absorbed MLA has room for 16 query heads", "KH-22")
class _SharedHeads(HonestOp):
    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        mixed = super().mix(weight, v)
        return mixed[: 16 if self.spec.shared_kv else None].repeat(8, 1)[: len(mixed)]


class _Splits(HonestOp):
    """Sums of so many keys at a time."""

    def keys_at_once(self) -> int:
        raise NotImplementedError

    def rows(self, plan: Plan) -> list[QueryRow]:
        self.batch = plan.batch
        return super().rows(plan)

    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        step = self.keys_at_once()
        mixed = super().mix(weight[:, :step], v[:, :step])
        for first in range(step, weight.shape[1], step):
            part = slice(first, first + step)
            mixed = mixed + super().mix(weight[:, part], v[:, part])
        return mixed


@garden.op("split-by-query-in-windows", "with a window, the longest query sets the split", "KH-55")
class _WindowSplits(_Splits):
    def keys_at_once(self) -> int:
        return 3 + (self.batch.max_query_len % 5 if self.spec.window[0] is not None else 0)


@garden.op("split-from-33-requests", "from 33 requests on there are other splits", "KH-55")
class _CrowdSplits(_Splits):
    def keys_at_once(self) -> int:
        return 3 + (self.batch.num_requests > 32)


@garden.op("split-from-64-rows", "from 64 rows in the batch on there are other splits", "KH-55")
class _RowSplits(_Splits):
    def keys_at_once(self) -> int:
        return 3 + (self.batch.num_tokens > 64)


MUTANTS = tuple(garden.mutants)
