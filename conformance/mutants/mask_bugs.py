"""Wrong keys: alignment, windows, lengths, trees, rows without keys."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.conformance.mutants.honest import HonestOp, QueryRow
from pagedattn.conformance.mutants.planting import Garden

__all__ = ["MUTANTS"]

garden = Garden()


@garden.op("causal-top-left", "causal mask aligned at the top left", "KH-29", "KH-30", "KH-32")
class _TopLeft(HonestOp):
    def position(self, row: QueryRow) -> int:
        return row.row


@garden.op("causal-off-by-one", "a row also sees the key after it", "KH-34")
class _OneMore(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        return super().visible(row, position + 1)


@garden.op("own-key-missing", "a row does not see its own key", "KH-52")
class _OwnMissing(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        return keys[keys != position]


@garden.op("prefix-ignored", "a prefill attends to its own tokens only", "KH-31")
class _NoPrefix(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        return keys[keys >= row.keys - row.rows] if row.rows > 1 else keys


@garden.op("window-one-wide", "the left window holds one key too many", "KH-33")
class _Wide(HonestOp):
    def left(self, row: QueryRow) -> int | None:
        left = self.spec.window[0]
        return None if left is None else left + 1


@garden.op("window-one-narrow", "the left window holds one key too few", "KH-33")
class _Narrow(HonestOp):
    def left(self, row: QueryRow) -> int | None:
        left = self.spec.window[0]
        return None if left is None else max(0, left - 1)


@garden.op("window-decode-ignored", "prefill honours the window, decode does not", "KH-34")
class _DecodeNoWindow(HonestOp):
    def left(self, row: QueryRow) -> int | None:
        return None if row.rows == 1 else self.spec.window[0]


@garden.op("window-block-aligned", "the window starts at the edge of a block", "KH-36")
class _Aligned(HonestOp):
    def left(self, row: QueryRow) -> int | None:
        left = self.spec.window[0]
        first = 0 if left is None else max(0, self.position(row) - left)
        return (
            None
            if left is None
            else self.position(row) - first // self.spec.block_size * self.spec.block_size
        )


@garden.op("window-from-row-0", "every row has the window of the request's first row")
class _FirstRow(HonestOp):
    def left(self, row: QueryRow) -> int | None:
        left = self.spec.window[0]
        return None if left is None else left + row.row


@garden.op("window-right-ignored", "the right window is ignored")
class _NoRight(HonestOp):
    def right(self, row: QueryRow) -> int | None:
        return None


@garden.op("window-overflow", "position + window is computed in 32 bits", "KH-36")
class _Overflow(HonestOp):
    def right(self, row: QueryRow) -> int | None:
        right = self.spec.window[1]
        if right is None:
            return None
        position = self.position(row)
        return (position + right + 2**31) % 2**32 - 2**31 - position


@garden.op("window-counts-itself", "left=L keeps L keys, as libraries that count the row itself")
class _CountsItself(HonestOp):
    def left(self, row: QueryRow) -> int | None:
        left = self.spec.window[0]
        return left if left is None or left == 0 else left - 1


class _OwnLengths(HonestOp):
    """Reads keys beyond seq_len without falling over the end of the table or the pool."""

    def blocks(self, row: QueryRow, keys: Tensor) -> Tensor:
        column = (keys // self.spec.block_size).clamp(max=max(0, len(row.table) - 1))
        return row.table[column].long().clamp(0, self.limits.num_blocks - 1)


@garden.op("tail-attended", "the whole last block is attended to", "KH-13", "KH-04")
class _Tail(_OwnLengths):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        if len(keys) and position == row.keys - 1:
            end = -(-row.keys // self.spec.block_size) * self.spec.block_size
            return torch.cat((keys, torch.arange(row.keys, end)))
        return keys


@garden.op("extra-block", "a full last block brings the next column in", "KH-08")
class _ExtraBlock(_OwnLengths):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        if row.keys and row.keys % self.spec.block_size == 0 and position == row.keys - 1:
            return torch.cat((keys, torch.arange(row.keys, row.keys + self.spec.block_size)))
        return keys


@garden.op("last-block-empty", "seq_len % block_size == 0 counts as an empty last block", "KH-14")
class _LastEmpty(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        whole = row.keys // self.spec.block_size * self.spec.block_size
        if row.keys == whole:
            return keys[keys < whole - self.spec.block_size]
        return keys


@garden.op("blocks-floored", "the number of blocks is rounded down", "KH-15")
class _Floored(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        whole = row.keys // self.spec.block_size * self.spec.block_size
        return keys[keys < whole] if whole else keys


@garden.op("host-lengths", "seq_lens_host is taken for the length although it is a bound")
class _HostLengths(_OwnLengths):
    def lengths(self, plan: Plan) -> list[int]:
        assert plan.batch.seq_lens_host is not None
        found: list[int] = plan.batch.seq_lens_host.tolist()
        return found


@garden.op("one-row-each", "a decode batch is taken to have one row for each request", "KH-11")
class _OneRowEach(HonestOp):
    def rows(self, plan: Plan) -> list[QueryRow]:
        rows = super().rows(plan)
        if plan.batch.max_query_len > 1:
            return rows
        lengths = self.lengths(plan)
        return [replace(row, request=t, keys=lengths[t]) for t, row in enumerate(rows)]


@garden.op("empty-skipped", "rows of a request without keys are left unwritten", "KH-12", "KH-53")
class _EmptySkipped(HonestOp):
    def rows(self, plan: Plan) -> list[QueryRow]:
        return [row for row in super().rows(plan) if row.keys]


@garden.op("no-key-skipped", "a row that sees no key is left unwritten")
class _NoKeySkipped(HonestOp):
    def attends(self, row: QueryRow) -> bool:
        return len(self.visible(row, self.position(row))) > 0


@garden.op("empty-is-nan", "a row without keys divides zero by zero", "KH-53")
class _EmptyNaN(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = super().weigh(score, v, sinks)
        return (out, lse) if score.shape[-1] else (out * float("nan"), lse)


@garden.op("empty-lse-zero", "a row without keys has lse 0", "KH-12", "KH-44")
class _EmptyZero(HonestOp):
    def log_sum(self, top: Tensor, total: Tensor) -> Tensor:
        return top + torch.log(torch.where(total == 0, 1.0, total))


@garden.op("empty-is-uniform", "a row that sees no key averages all of them", "KH-30")
class _EmptyUniform(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        return keys if len(keys) or not row.keys else torch.arange(row.keys)


@garden.op("tree-ignored", "the tree mask is taken for plain causal")
class _NoTree(HonestOp):
    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        return key <= position


@garden.op("tree-bit-order", "the tree mask is read highest bit first")
class _BitOrder(HonestOp):
    def tree_bit(self, bit: int) -> int:
        return 7 - bit % 8


@garden.op("tree-and-causal", "the tree mask can only hide keys, never show a later one")
class _TreeCausal(HonestOp):
    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        return key <= position and super().in_tree(row, position, key)


@garden.op("long-cut", "a fixed table of partial results ends at 16384 keys", "KH-59")
class _LongCut(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        return keys[:16384]


MUTANTS = tuple(garden.mutants)
