"""Where blocks lie: runs of free ids, and the tables that come of them after long churn."""

import random
from collections.abc import Callable

import pytest

from pagedattn.allocator import BlockAllocator
from pagedattn.backends.allocators import PagedAllocator
from pagedattn.backends.allocators.pool import BlockPool
from pagedattn.backends.allocators.runs import Runs
from pagedattn.benchmarks.audit.contender import Contender
from pagedattn.benchmarks.audit.generator import generate
from pagedattn.benchmarks.audit.run import replay
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


# -- tables --------------------------------------------------------------------------------------


class Stack(Runs):
    """The common free list: what came back last goes out first, block by block."""

    last = True

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self):
        return iter(self.blocks)

    def add(self, start: int, n: int = 1) -> None:
        ids = range(start, start + n)
        self.blocks.update(dict.fromkeys(reversed(ids) if self.last else ids))

    def remove(self, start: int, n: int = 1) -> None:
        del self.blocks[start]

    def fit(self, n: int) -> tuple[int, int]:
        return next(reversed(self.blocks) if self.last else iter(self.blocks)), 1


class Queue(Stack):
    """First in, first out, as the free queue of vLLM's block pool."""

    last = False


def over(free_list: type[Runs]) -> Callable[..., BlockAllocator]:
    """The paged allocator with another free list, and without a cache, which would reorder it."""

    class Pool(BlockPool):
        _room_type = free_list

        def stage(self, n: int, sequences: int) -> None:
            return None

    class Allocator(PagedAllocator):
        _pool_type = Pool

    return lambda **options: Allocator(
        num_blocks=options["num_blocks"], block_size=options["block_size"], prefix_cache=False
    )


def paged(**options: int) -> BlockAllocator:
    return PagedAllocator(num_blocks=options["num_blocks"], block_size=options["block_size"])


def run_length(make: Callable[..., BlockAllocator], clients: int) -> float:
    """Of the tables of 600 requests, mean 1,300 tokens, in a pool of 32,768 tokens."""
    server = Server(num_blocks=2048, block_size=16, max_len=8192, unit=16, clients=clients)
    row = replay(generate(600, seed=1), Contender("x", None, make), server)
    assert row.failure == ""
    assert row.counts.completed + row.counts.refused == 600
    return row.run_length


@pytest.mark.parametrize("clients", [0, 8])
def test_tables_keep_long_runs_under_churn(clients: int) -> None:
    stack, queue = (run_length(over(kind), clients) for kind in (Stack, Queue))
    ours = run_length(paged, clients)
    assert ours > 2 * max(stack, queue)
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
