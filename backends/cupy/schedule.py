"""The work lists of a step: which rows and keys each block of a launch takes.

Pure host work on numpy arrays, from the batch's host lengths. See kernels/work.cuh for the fields
of an item. Shape letters: B requests, G heads of a group, M packed rows of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedattn.spec import AttentionSpec, Mask

__all__ = ["ITEM_INTS", "NOTHING", "Lists", "Split", "most_pieces", "most_tiles", "work_lists"]

ITEM_INTS = 8
NOTHING = -1
"""The request of an item that has nothing to do."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """How keys may be cut into pieces, for blocks that would else leave multiprocessors idle.

    blocks   wanted per KV head      keys   fewest of a piece
    unit     pieces begin at multiples of this
    """

    blocks: int
    keys: int
    unit: int


@dataclass(frozen=True)
class Lists:
    """items i32 [n, ITEM_INTS] for the kernel, joins i32 [m, ITEM_INTS] for combine.cu."""

    items: NDArray[np.int32]
    joins: NDArray[np.int32]


def most_pieces(split: Split | None) -> int:
    """The most pieces of rows that are split, whatever the batch: a piece is at least half as long
    as asked for, and they are no longer than needed for `blocks` of them."""
    return 0 if split is None else 2 * split.blocks


def most_tiles(requests: int, tokens: int, group: int, rows: int) -> int:
    """The most tiles of `rows` packed rows of any batch."""
    return requests + tokens * group // rows


def work_lists(
    spec: AttentionSpec,
    requests: Ints,
    query_lens: Ints,
    seq_lens: Ints,
    *,
    rows: int,
    split: Split | None,
) -> Lists:
    """The lists for `requests` [n], indices of a batch with query_lens, seq_lens [n].

    rows    packed rows M of a tile        split   None: a row's keys stay together
    """
    group = spec.group_size
    tiles = -(-query_lens * group // rows)
    owner = np.repeat(np.arange(len(requests)), tiles)
    first = (np.arange(len(owner)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * rows
    unit = split.unit if split else 1
    keys = _visible_keys(spec, query_lens[owner], seq_lens[owner], first, rows, unit)
    pieces = np.ones_like(keys)
    chunk = 2**31 - 1
    if split is not None and len(keys) < split.blocks:
        wanted = -(-int(keys.sum()) // split.blocks)
        chunk = max(split.keys, -(-wanted // split.unit) * split.unit)
        pieces = np.maximum(1, -(-keys // chunk))
    slots = np.where(pieces > 1, pieces, 0)
    slot = np.cumsum(slots) - slots

    order = np.argsort(-keys, kind="stable")  # long ones first: the last wave is short
    pieces, slot, owner, first = pieces[order], slot[order], owner[order], first[order]
    of = np.repeat(np.arange(len(order)), pieces)
    number = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    items = np.zeros((len(of), ITEM_INTS), np.int32)
    items[:, 0], items[:, 1], items[:, 2] = requests[owner[of]], first[of], number
    items[:, 3], items[:, 4], items[:, 5] = pieces[of], chunk, slot[of]
    many = np.flatnonzero(pieces > 1)
    joins = np.zeros((len(many), ITEM_INTS), np.int32)
    joins[:, 0], joins[:, 1] = requests[owner[many]], first[many]
    joins[:, 3], joins[:, 5] = pieces[many], slot[many]
    return Lists(items, joins)


def _visible_keys(
    spec: AttentionSpec, query_lens: Ints, seq_lens: Ints, first: Ints, rows: int, unit: int
) -> Ints:
    """Keys that the rows of each tile see together, from a multiple of `unit` on; with lengths that
    are upper bounds, an upper bound."""
    group = spec.group_size
    top = seq_lens - query_lens + first // group
    last = np.minimum(first + rows, query_lens * group) - 1
    bottom = seq_lens - query_lens + last // group
    left, right = spec.window
    begin = np.zeros_like(top) if left is None else np.maximum(0, top - left)
    if spec.mask is Mask.CAUSAL:
        end = np.minimum(seq_lens, bottom + 1)
    elif right is not None:
        end = np.minimum(seq_lens, bottom + right + 1)
    else:
        end = seq_lens
    keys: Ints = np.maximum(0, end - begin // unit * unit)
    return keys
