"""Where blocks lie: runs of free ids, and the tables that come of them after long churn."""

import bisect
import random

import pytest
from free_lists import replayed

from pagedattn.backends.allocators import PagedAllocator
from pagedattn.backends.allocators.runs import Runs
from pagedattn.backends.allocators.starts import Starts
from pagedattn.benchmarks.audit.generator import generate
from pagedattn.benchmarks.audit.server import Server

# -- runs ----------------------------------------------------------------------------------------


def test_neighbours_merge() -> None:
    runs = Runs()
    runs.add(0, 3)
    runs.add(5, 2)
    assert (list(runs), len(runs), runs.length) == ([0, 1, 2, 5, 6], 5, {0: 3, 5: 2})
    runs.add(3, 2)
    assert runs.length == {0: 7}
    runs.remove(2, 2)
    assert runs.length == {0: 2, 4: 3}
    assert [block in runs for block in range(8)] == [1, 1, 0, 0, 1, 1, 1, 0]
    runs.add_all([9, 8, 3, 2, 11, 12, 10])
    assert runs.length == {0: 7, 8: 5}
    assert list(runs.problems()) == []


def test_fit_takes_what_is_little_longer_and_else_the_longest() -> None:
    runs = Runs()
    for start, n in ((0, 100), (200, 5), (300, 9), (400, 40)):
        runs.add(start, n)
    assert runs.fit(1) == (200, 5)
    assert runs.fit(5) == (200, 5)
    assert runs.fit(6) == (300, 9)
    assert runs.fit(17) == (400, 40)
    assert runs.fit(41) == (0, 100)
    assert runs.fit(1000) == (0, 100)


@pytest.mark.parametrize("seed", range(3))
def test_runs_are_a_set(seed: int) -> None:
    rng, runs, model, size = random.Random(seed), Runs(), set[int](), 5000
    for step in range(3000):
        start = rng.randrange(size)
        n = 1
        inside = start in model
        while n < rng.choice((1, 8, 1500)) and start + n < size:
            if (start + n in model) != inside:
                break
            n += 1
        ids = range(start, start + n)
        if inside:
            runs.remove(start, n)
            model.difference_update(ids)
        else:
            runs.add(start, n)
            model.update(ids)
        if step % 100 == 0:
            assert list(runs) == sorted(model)
            assert [block in runs for block in range(size)] == [b in model for b in range(size)]
            assert list(runs.problems()) == []
        assert len(runs) == len(model)
        if model:
            first, length = runs.fit(n)
            assert set(range(first, first + length)) <= model
            assert not {first - 1, first + length} & model
            longest = max(runs.length.values())
            assert length >= n or longest.bit_length() == length.bit_length()


def test_cut_drops_the_end() -> None:
    for end, left in (
        (1, {0: 1}),
        (4, {0: 3}),
        (6, {0: 3, 5: 1}),
        (7, {0: 3, 5: 2}),
        (9, {0: 3, 5: 2}),
    ):
        runs = Runs()
        runs.add(0, 3)
        runs.add(5, 2)
        runs.add(20, 4)
        runs.cut(end)
        assert (runs.length, len(runs)) == (left, sum(left.values()))
        assert list(runs.problems()) == []


@pytest.mark.parametrize("span", [100, 2**11, 2**22, 2**31])
def test_starts_find_the_last_before(span: int) -> None:
    rng, starts, model = random.Random(span), Starts(), list[int]()
    near = [x for edge in (0, 2**11, 2**22, span) for x in range(edge - 2, edge + 2)]
    for _ in range(2000):
        i = rng.choice(near) if rng.random() < 0.3 else rng.randrange(span)
        i = max(0, min(i, span - 1))
        at = bisect.bisect_right(model, i)
        assert starts.last(i) == (model[at - 1] if at else -1)
        if at and model[at - 1] == i:
            starts.remove(i)
            model.remove(i)
        else:
            starts.add(i)
            model.insert(at, i)
    for i in model:
        starts.remove(i)
    assert starts.last(span - 1) == -1


# -- tables --------------------------------------------------------------------------------------


def run_length(name: str, clients: int) -> float:
    """Of the tables of 600 requests, mean 1,300 tokens, in a pool of 32,768 tokens."""
    server = Server(num_blocks=2048, block_size=16, max_len=8192, unit=16, clients=clients)
    row = replayed(generate(600, seed=1), server, name)
    assert row.failure == ""
    assert row.counts.completed + row.counts.refused == 600
    return row.run_length


@pytest.mark.parametrize("clients", [0, 8])
def test_tables_keep_long_runs_under_churn(clients: int) -> None:
    lifo, queue, ours = (run_length(name, clients) for name in ("lifo", "queue", "paged"))
    assert ours > 1.75 * max(lifo, queue)
    assert ours > 3


def test_a_sequence_goes_on_where_it_ends() -> None:
    a = PagedAllocator(num_blocks=256, block_size=1)
    for seq in (1, 2):
        a.open(seq, [])
        a.append(seq, 10)
    for _ in range(20):
        a.append_many({1: 1, 2: 1})
    for seq in (1, 2):
        table = a.table(seq)
        assert list(table) == list(range(table[0], table[0] + 30))
    assert a.append(2, 3).slots == range(table[-1] + 1, table[-1] + 4)


# -- staged blocks -------------------------------------------------------------------------------


def prefill(a: PagedAllocator, seq: int, tokens: list[int], priority: int = 0) -> int:
    hit = a.open(seq, tokens, priority=priority).tokens
    a.append(seq, len(tokens) - hit)
    a.commit(seq, tokens[hit:])
    return hit


def staged_pool(priority: int = 0) -> PagedAllocator:
    """512 blocks of one token, each cached as a prefix of its own; block 0 is taken, for which 1 to
    8 were staged too."""
    a = PagedAllocator(num_blocks=512, block_size=1)
    for block in range(512):
        prefill(a, 9, [block], priority)
        a.close(9)
    a.open(2, [])
    a.open(3, [])
    a.append(2, 1)
    assert list(a._pool.staged) == list(range(1, 9))
    assert a.stats().evicted == 1
    assert a.check() == []
    return a


def test_staged_blocks_are_found_and_counted() -> None:
    a = staged_pool()
    stats = a.stats()
    assert (stats.free, stats.reclaimable, stats.live) == (0, 511, 1)
    assert a.open(4, [5, 0]).blocks == (5,)
    assert list(a._pool.staged) == [1, 2, 3, 4, 6, 7, 8]
    assert a._pool.room.length == {1: 4, 6: 3}
    assert a.check() == []
    a.close(4)
    assert (a.stats().reclaimable, a.check()) == (511, [])


def test_staged_blocks_are_evicted_first() -> None:
    a = staged_pool()
    staged = list(a._pool.staged)
    assert a.evict(3) == 3
    assert list(a._pool.staged) == staged[3:]
    assert a.evict(1000) == 508
    assert a.stats().free == 511
    assert a.check() == []


def test_staged_blocks_outlive_those_of_lower_priority() -> None:
    a = staged_pool(priority=1)
    a.append(3, 4)
    a.commit(3, [7, 8, 9, 10])
    a.close(3)
    assert not a._pool.staged
    assert a.check() == []
    a.open(5, [])
    a.append(5, 4)
    assert not a._pool.staged
    assert a.open(6, [7, 8, 9, 10, 11]).tokens == 0
    a.append(5, 1)
    assert len(a._pool.staged) == 8
    assert a.check() == []


def test_all_blocks_can_be_had_whatever_is_staged() -> None:
    a = staged_pool()
    assert a.can_append({3: 511})
    assert sorted((*a.append(3, 511).blocks, *a.table(2))) == list(range(512))
    assert a.check() == []


def test_reset_and_resize_forget_the_stage() -> None:
    a = staged_pool()
    assert a.resize(2000) == 2000
    a.close(2)
    a.close(3)
    assert a.resize(100) == 100
    assert a.check() == []
    a.reset()
    assert (a.stats().free, a.check()) == (100, [])


def test_slots_of_scattered_blocks() -> None:
    a = PagedAllocator(num_blocks=4, block_size=2, prefix_cache=False)
    for seq in range(4):
        a.open(seq, [])
        a.append(seq, 2)
    a.close(1)
    a.close(3)
    a.open(4, [])
    assert tuple(a.append(4, 3).slots) == (2, 3, 6)
