"""AttentionBatch.build(): a validated batch from plain lists."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch
from pagedattn.errors import InvalidBatch
from pagedattn.validate.batch import check_slots

__all__ = ["build_batch"]

INT32_MAX = 2**31 - 1


def build_batch(
    cls: type[AttentionBatch],
    *,
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
    num_blocks: int | None,
    slot_mapping: Sequence[int] | None,
    tree_masks: Sequence[Sequence[Sequence[bool]] | None] | None,
    allow_short: bool,
    width: int | None,
    window_left: int | None,
    device: torch.device | str,
) -> AttentionBatch:
    """AttentionBatch.build(); its docstring tells the arguments."""
    query_lens, seq_lens = _ints("query_lens", query_lens), _ints("seq_lens", seq_lens)
    tables = [_ints(f"block_tables[{r}]", row) for r, row in enumerate(block_tables)]
    if window_left is not None and window_left < 0:
        raise InvalidBatch("window_left", window_left, "must not be negative")
    for name, count in (("query_lens", len(query_lens)), ("block_tables", len(tables))):
        if count != len(seq_lens):
            raise InvalidBatch(name, f"of {count} requests", f"seq_lens has {len(seq_lens)}")
    if block_size < 1:
        raise InvalidBatch("block_size", block_size, "must be at least 1")
    bound = INT32_MAX + 1 if num_blocks is None else num_blocks
    slots: list[int] = []
    for r, (rows, keys, table) in enumerate(zip(query_lens, seq_lens, tables, strict=True)):
        for name, n in (("query_len", rows), ("seq_len", keys)):
            if not 0 <= n <= INT32_MAX:
                raise InvalidBatch(name, n, "must lie in [0, 2**31)", request=r)
        if rows > keys and not allow_short:
            raise InvalidBatch(
                "query_len",
                rows,
                f"exceeds seq_len={keys}; seq_lens counts this step's tokens too "
                "(allow_short=True if rows without a key are meant)",
                request=r,
            )
        need = -(-keys // block_size)
        if len(table) < need:
            raise InvalidBatch(
                "block_tables",
                f"{len(table)} blocks",
                f"seq_len={keys} needs {need} blocks of {block_size}",
                request=r,
            )
        first = 0 if window_left is None else max(0, keys - rows - window_left) // block_size
        for column, block in enumerate(table[first:need], start=first):
            if not 0 <= block < bound:
                raise InvalidBatch(
                    f"block_tables[{r}][{column}]",
                    block,
                    f"a key lies there, so it must lie in [0, {bound})",
                    request=r,
                )
        # Nobody reads the others, whatever they hold.
        table[:first] = [-1] * first
        table[need:] = [b if 0 <= b <= INT32_MAX else -1 for b in table[need:]]
        positions = range(keys - rows, keys)
        slots += [
            table[p // block_size] * block_size + p % block_size if p >= 0 else -1
            for p in positions
        ]
    columns = max((len(t) for t in tables), default=0)
    if width is not None:
        if width < columns:
            raise InvalidBatch("width", width, f"the longest table has {columns} columns")
        columns = width
    padded = [t + [-1] * (columns - len(t)) for t in tables]
    starts = [0]
    for rows in query_lens:
        starts.append(starts[-1] + rows)
    slots = slots if slot_mapping is None else _ints("slot_mapping", slot_mapping)
    slot_tensor = torch.tensor(slots, dtype=torch.int64, device="cpu")
    if slot_mapping is not None and len(slot_mapping) != starts[-1]:
        raise InvalidBatch("slot_mapping", f"{len(slot_mapping)} slots", f"{starts[-1]} tokens")
    check_slots(slot_tensor, bound * block_size)
    tree_mask, tree_indptr = _pack_trees(tree_masks, query_lens)
    host_starts = torch.tensor(starts, dtype=torch.int32, device="cpu")
    host_lengths = torch.tensor(seq_lens, dtype=torch.int32, device="cpu")
    return cls(
        query_start_loc=host_starts.to(device),
        seq_lens=host_lengths.to(device),
        block_table=torch.tensor(padded, dtype=torch.int32, device="cpu")
        .reshape(len(tables), columns)
        .to(device),
        slot_mapping=slot_tensor.to(device),
        query_start_loc_host=host_starts,
        seq_lens_host=host_lengths,
        tree_mask=None if tree_mask is None else tree_mask.to(device),
        tree_indptr=None if tree_indptr is None else tree_indptr.to(device),
    )


def _ints(name: str, values: Sequence[int]) -> list[int]:
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise InvalidBatch(name, values, "must be ints") from None


def _pack_trees(
    trees: Sequence[Sequence[Sequence[bool]] | None] | None, query_lens: Sequence[int]
) -> tuple[Tensor | None, Tensor | None]:
    """Bit row*query_len+col of a request's bytes, lowest bit first; no bytes = plain causal."""
    if trees is None:
        return None, None
    if len(trees) != len(query_lens):
        raise InvalidBatch("tree_masks", f"of {len(trees)} requests", f"{len(query_lens)} requests")
    data, offsets = bytearray(), [0]
    for r, (tree, rows) in enumerate(zip(trees, query_lens, strict=True)):
        if tree is not None:
            if len(tree) != rows or any(len(row) != rows for row in tree):
                raise InvalidBatch(
                    "tree_masks", "not square", f"must be {rows} x {rows}", request=r
                )
            packed = bytearray(-(-rows * rows // 8))
            for i, row in enumerate(tree):
                for j, sees in enumerate(row):
                    if sees:
                        packed[(i * rows + j) // 8] |= 1 << ((i * rows + j) % 8)
            data += packed
        offsets.append(len(data))
    mask = torch.tensor(list(data), dtype=torch.uint8, device="cpu")
    return mask, torch.tensor(offsets, dtype=torch.int64, device="cpu")
