"""How the CuPy backend cuts a step into work items."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from cupy_support import H100, spec_of

import pagedattn as pa
from pagedattn.backends.cupy.heuristics import choose
from pagedattn.backends.cupy.op import _division
from pagedattn.backends.cupy.schedule import Split, most_pieces, most_tiles, work_lists
from pagedattn.backends.cupy.work import phases, workspace


def covered(
    spec: pa.AttentionSpec,
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    *,
    rows: int,
    split: Split | None,
) -> dict[tuple[int, int], list[int]]:
    """(request, packed row) -> every key that some piece computes for it, as the kernels do."""
    q, n = np.array(query_lens), np.array(seq_lens)
    lists = work_lists(spec, np.arange(len(q)), q, n, rows=rows, split=split)
    unit = split.unit if split else 1
    left, right = spec.window
    keys: dict[tuple[int, int], list[int]] = {}
    slots: set[int] = set()
    joins = {(r, first): (count, slot) for r, first, _, count, _, slot, *_ in lists.joins.tolist()}
    for r, first, number, count, chunk, slot, *_ in lists.items.tolist():
        own = int(n[r] - q[r])
        live = min(int(q[r]) * spec.group_size - first, rows)
        top = own + first // spec.group_size
        bottom = own + (first + live - 1) // spec.group_size
        begin = 0 if left is None else max(0, top - left)
        end = int(n[r])
        if spec.mask is pa.Mask.CAUSAL:
            end = min(end, bottom + 1)
        elif right is not None:
            end = min(end, bottom + right + 1)
        start = begin // unit * unit + number * chunk
        stop = end if number == count - 1 else min(end, start + chunk)
        for row in range(first, first + live):
            keys.setdefault((r, row), []).extend(range(max(start, begin), stop))
        if count > 1:
            assert joins[r, first] == (count, slot)
            assert slot + number not in slots
            slots.add(slot + number)
    assert len(joins) == len({(r, f) for r, f, _, c, *_ in lists.items.tolist() if c > 1})
    assert max(slots, default=-1) < most_pieces(split)
    return keys


@pytest.mark.parametrize("seed", range(30))
def test_every_row_meets_every_key_once(seed: int) -> None:
    draw = random.Random(seed)
    full = draw.random() < 0.3
    window = (draw.choice([None, 0, 5, 90]), draw.choice([None, 3]) if full else None)
    group = draw.choice([1, 3, 4, 16])
    spec = spec_of(
        num_heads=2 * group, mask=pa.Mask.FULL if full else pa.Mask.CAUSAL, window=window
    )
    requests = draw.randint(1, 5)
    query_lens = [draw.choice([1, 1, 2, 17, 40]) for _ in range(requests)]
    seq_lens = [draw.choice([0, 1, 31, 64, 300, 1000]) for _ in range(requests)]
    split = draw.choice([None, Split(draw.choice([1, 7, 40]), draw.choice([32, 64]), 32)])
    found = covered(spec, query_lens, seq_lens, rows=draw.choice([16, 64]), split=split)
    assert set(found) == {(r, row) for r in range(requests) for row in range(query_lens[r] * group)}
    for (r, row), keys in found.items():
        position = seq_lens[r] - query_lens[r] + row // group
        low = 0 if window[0] is None else position - window[0]
        high = seq_lens[r] if full else position + 1
        if full and window[1] is not None:
            high = position + window[1] + 1
        wanted = set(range(max(0, low), min(high, seq_lens[r])))
        assert len(keys) == len(set(keys))
        assert wanted <= set(keys)


def test_long_requests_are_split_and_short_ones_are_not() -> None:
    split = Split(blocks=66, keys=128, unit=32)
    lists = work_lists(
        spec_of(), np.array([0]), np.array([1]), np.array([65536]), rows=4, split=split
    )
    assert len(lists.items) == 64  # 65536 / 66 = 993, rounded up to 1024
    assert lists.joins.tolist() == [[0, 0, 0, 64, 0, 0, 0, 0]]
    many = np.ones(200, int)
    lists = work_lists(spec_of(), np.arange(200), many, many * 500, rows=4, split=split)
    assert (len(lists.items), len(lists.joins)) == (200, 0)


def test_the_longest_items_come_first() -> None:
    lists = work_lists(
        spec_of(), np.arange(3), np.ones(3, int), np.array([5, 900, 70]), rows=4, split=None
    )
    assert lists.items[:, 0].tolist() == [1, 2, 0]


def test_there_are_never_more_tiles_than_said() -> None:
    draw = random.Random(0)
    for _ in range(200):
        group, rows = draw.choice([1, 3, 4, 7, 71]), draw.choice([16, 64])
        query_lens = [draw.randint(0, 50) for _ in range(draw.randint(1, 6))]
        tiles = sum(-(-q * group // rows) for q in query_lens)
        assert tiles <= most_tiles(len(query_lens), sum(query_lens), group, rows)


def test_partial_results_of_the_phases_do_not_overlap() -> None:
    spec, limits = spec_of(), pa.Limits(64, 2048, 65536, 8192)
    kernels = choose(spec, H100, {})
    assert kernels is not None
    parts = phases(spec, limits, H100, kernels, {})
    places = []
    for part in parts:
        lines = part.slots() * spec.num_kv_heads * part.rows
        places += [(part.offset, lines * 64 * 4), (part.state_offset, lines * 2 * 4)]
    for (begin, size), (following, _) in itertools.pairwise(places):
        assert begin + size == following
    assert workspace(spec, parts) == sum(places[-1])


def test_division_is_exact() -> None:
    draw = random.Random(1)
    for divisor in [*range(1, 300), 544, 768, 1000, 4096, 65537, 2**31 - 1]:
        multiplier, shift = _division(divisor)
        assert multiplier < 2**32
        near = [k * divisor + d for k in (0, 1, 2, 2**31 // divisor) for d in (-1, 0, 1)]
        for n in [*near, *(draw.randrange(2**31) for _ in range(50)), 2**31 - 1]:
            if 0 <= n < 2**31:
                assert n * multiplier >> shift == n // divisor
