"""The contiguous baselines: exact small cases, the address space, and the conformance suite."""

import random
from collections.abc import Callable
from functools import partial
from itertools import groupby

import pytest

from pagedattn.allocator import Addressing, BlockAllocator, CopyOp, Prefix
from pagedattn.backends.allocators.contiguous import (
    ContiguousExact,
    ContiguousMax,
    ContiguousPow2,
    NoExtent,
)
from pagedattn.backends.allocators.contiguous.base import default_max_seq_len
from pagedattn.backends.allocators.contiguous.space import AddressSpace
from pagedattn.conformance.allocator import ALLOCATOR_CASES
from pagedattn.conformance.case import Case, Outcome
from pagedattn.conformance.runner import judge_case
from pagedattn.errors import AllocatorError, OutOfBlocks, Unsupported

FACTORIES = {
    "contiguous_max": ContiguousMax,
    "contiguous_exact": ContiguousExact,
    "contiguous_exact, told": partial(ContiguousExact, lengths=lambda seq: 48),
    "contiguous_pow2": ContiguousPow2,
    "contiguous_pow2, limited": partial(ContiguousPow2, max_seq_len=64),
}


def state(a: BlockAllocator, *seqs: int) -> object:
    return a.stats(), [(tuple(a.table(seq)), a.length(seq)) for seq in seqs]


# -- the address space -----------------------------------------------------------------------------


def test_space_takes_the_lowest_hole_that_is_large_enough() -> None:
    space = AddressSpace(10)
    assert [space.take(n) for n in (2, 3, 2, 3)] == [0, 2, 5, 7]
    assert (space.take(1), space.free, space.largest) == (None, 0, 0)
    space.give(0, 2)
    space.give(5, 2)
    assert list(space.holes()) == [(0, 2), (5, 2)]
    assert space.take(3) is None  # four blocks are free, but not three adjacent ones
    assert (space.free, space.largest) == (4, 2)
    space.give(2, 3)
    assert list(space.holes()) == [(0, 7)]
    assert space.take(3) == 0


def test_space_takes_what_follows_an_extent() -> None:
    space = AddressSpace(8)
    assert space.take(3) == 0
    assert space.take(2) == 3
    assert not space.take_at(3, 1)  # taken
    assert space.take_at(5, 2)
    assert not space.take_at(7, 2)
    assert space.take_at(7, 1)
    assert not space.take_at(8, 1)  # the end


@pytest.mark.parametrize("total", [1, 2, 7, 64, 100])
def test_space_against_a_list_of_bits(total: int) -> None:
    rng, space, free = random.Random(total), AddressSpace(total), [True] * total
    taken: list[tuple[int, int]] = []

    def holes() -> list[tuple[int, int]]:
        runs, start = [], 0
        for is_free, run in groupby(free):
            length = len(list(run))
            if is_free:
                runs.append((start, length))
            start += length
        return runs

    def mark(start: int, n: int, value: bool) -> None:
        free[start : start + n] = [value] * n

    for _ in range(600):
        n = rng.randint(1, max(1, total // 4))
        if rng.random() < 0.5:
            start = space.take(n)
            assert start == next((s for s, length in holes() if length >= n), None)
            if start is not None:
                taken.append((start, n))
                mark(start, n, False)
        elif taken:
            start, n = taken.pop(rng.randrange(len(taken)))
            space.give(start, n)
            mark(start, n, True)
            if rng.random() < 0.3:  # anywhere in the hole that it became part of
                space.take_range(start, n)
                mark(start, n, False)
                taken.append((start, n))
        assert list(space.holes()) == holes()
        assert space.free == sum(free)
        assert space.largest == max((length for _, length in holes()), default=0)


def test_space_refuses_a_range_that_is_taken() -> None:
    space = AddressSpace(4)
    space.take(2)
    for start, n in ((1, 2), (0, 1), (3, 2)):
        with pytest.raises(AssertionError, match="not one hole"):
            space.take_range(start, n)


# -- contiguous_max --------------------------------------------------------------------------------


def test_max_reserves_at_open() -> None:
    a = ContiguousMax(num_blocks=10, block_size=4, max_seq_len=12)
    for seq in range(3):
        a.open(seq, [1, 2, 3])
    assert (a.stats().reserved, a.stats().live, a.stats().free) == (9, 0, 1)
    grant = a.append(1, 5)
    assert (list(grant.slots), grant.column, grant.blocks) == ([12, 13, 14, 15, 16], 0, (3, 4))
    assert (a.stats().reserved, a.stats().live) == (7, 2)
    with pytest.raises(NoExtent, match="3 adjacent blocks needed, 1 free; the largest hole has 1"):
        a.open(3, [1])
    a.close(0)
    a.open(3, [1])
    assert a.append(3, 1).blocks == (0,)
    assert a.check() == []


def test_max_refuses_to_pass_its_limit() -> None:
    a = ContiguousMax(num_blocks=10, block_size=4, max_seq_len=10)
    a.open(7, [])
    a.append(7, 10)
    before = state(a, 7)
    assert not a.can_append({7: 1})
    with pytest.raises(OutOfBlocks, match=r"sequence 7 .* 11 tokens are above max_seq_len=10"):
        a.append(7, 1)  # the third block has room, the limit has not
    assert state(a, 7) == before


def test_truncate_keeps_the_reservation() -> None:
    a = ContiguousMax(num_blocks=10, block_size=4, max_seq_len=12)
    a.open(1, [])
    a.append(1, 9)
    a.commit(1, range(9))
    a.truncate(1, 4)
    assert (a.stats().live, a.stats().reserved, a.length(1), list(a.table(1))) == (1, 2, 4, [0])
    assert list(a.append(1, 1).slots) == [4]
    a.commit(1, [9])
    with pytest.raises(AllocatorError, match="commit of 1 tokens after 5 exceeds the 5"):
        a.commit(1, [10])


def test_external_fragmentation_shows_in_the_error() -> None:
    a = ContiguousExact(num_blocks=6, block_size=4, lengths={0: 8, 1: 5, 2: 7, 3: 9})
    for seq in range(3):
        a.open(seq, [])
    a.close(0)
    a.close(2)
    with pytest.raises(NoExtent) as caught:
        a.open(3, [])
    assert (caught.value.needed, caught.value.available) == (3, 4)
    a.close(1)
    a.open(3, [])
    assert a.stats().reserved == 3


# -- contiguous_exact ------------------------------------------------------------------------------


def test_exact_reserves_what_it_is_told() -> None:
    for lengths in ({5: 9}, {5: 9}.__getitem__):
        a = ContiguousExact(num_blocks=10, block_size=4, lengths=lengths)
        a.open(5, [1])
        assert a.stats().reserved == 3
        a.append(5, 9)
        a.append(5, 3)  # the rest of the last block
        with pytest.raises(NoExtent):
            a.append(5, 1)
        with pytest.raises(AllocatorError, match="sequence 6 has no entry in lengths"):
            a.open(6, [1])
    with pytest.raises(ValueError, match="lengths of sequence 0 is -1"):
        ContiguousExact(num_blocks=10, block_size=4, lengths=lambda seq: -1).open(0, [])
    with pytest.raises(OutOfBlocks, match=r"11 adjacent blocks needed, .* the whole pool has 10"):
        ContiguousExact(num_blocks=10, block_size=4, lengths=lambda seq: 41).open(0, [])


# -- contiguous_pow2 -------------------------------------------------------------------------------


def test_pow2_grows_in_place_where_it_can() -> None:
    a = ContiguousPow2(num_blocks=16, block_size=4)
    a.open(1, range(9))
    assert (a.stats().free, a.stats().reserved) == (12, 4)  # 3 blocks round up to 4
    assert a.append(1, 16).copies == ()
    assert a.stats().free == 12
    grant = a.append(1, 1)
    assert (grant.blocks, grant.copies, grant.column) == ((4,), (), 4)
    assert (a.stats().free, a.stats().live, a.stats().reserved) == (8, 5, 3)


def test_pow2_moves_and_reports_the_copies() -> None:
    a = ContiguousPow2(num_blocks=16, block_size=4)
    a.open(1, range(6))
    a.open(2, range(4))
    a.append_many({1: 6, 2: 4})
    assert (list(a.table(1)), list(a.table(2))) == ([0, 1], [2])
    grant = a.append(1, 3)  # 9 tokens need 4 blocks, and sequence 2 is in the way
    assert grant.copies == (CopyOp(0, 3, 4), CopyOp(1, 4, 2))
    assert (grant.column, grant.blocks, list(grant.slots)) == (0, (3, 4, 5), [18, 19, 20])
    assert a.stats().free == 16 - 4 - 1
    assert a.check() == []


def test_pow2_moves_into_what_was_left_in_the_same_call() -> None:
    a = ContiguousPow2(num_blocks=8, block_size=1)
    for seq, n in ((1, 2), (2, 1), (3, 1)):
        a.open(seq, range(n))
        a.append(seq, n)
    grants = a.append_many({1: 1, 3: 1})  # 1 moves from 0..1 to 4..7, 3 to 0..1
    assert (list(a.table(1)), list(a.table(3))) == ([4, 5, 6], [0, 1])
    assert grants[1].copies == (CopyOp(0, 4, 1), CopyOp(1, 5, 1))
    assert grants[3].copies == (CopyOp(3, 0, 1),)
    a.close(2)
    assert (a.stats().free, a.check()) == (2, [])


def test_pow2_fails_as_a_whole_and_leaves_no_trace() -> None:
    a = ContiguousPow2(num_blocks=8, block_size=1)
    for seq in (1, 2, 3):
        a.open(seq, range(2))
        a.append(seq, 2)
    before = state(a, 1, 2, 3), list(a.space.holes())
    for wants in ({1: 1}, {3: 1, 1: 1}, {3: 1, 2: 1}):
        assert a.can_append({3: 1})
        assert not a.can_append(wants)
        with pytest.raises(NoExtent):
            a.append_many(wants)
        assert (state(a, 1, 2, 3), list(a.space.holes())) == before
    a.append(3, 1)


def test_pow2_stops_doubling_at_its_limit() -> None:
    a = ContiguousPow2(num_blocks=10, block_size=4, max_seq_len=22)
    a.open(1, range(17))
    assert a.stats().reserved == 6  # 8 would hold more than 22 tokens
    a.append(1, 22)
    with pytest.raises(OutOfBlocks, match="above max_seq_len=22"):
        a.append(1, 1)
    whole = ContiguousPow2(num_blocks=10, block_size=4)
    whole.open(1, range(33))
    assert whole.stats().free == 0
    whole.append(1, 40)


# -- all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", FACTORIES.values(), ids=list(FACTORIES))
@pytest.mark.parametrize("case", ALLOCATOR_CASES, ids=lambda case: case.id)
def test_conformance(make: Callable[..., BlockAllocator], case: Case) -> None:
    result = judge_case(make, case)
    assert result.outcome in (Outcome.PASSED, Outcome.DECLINED), result.detail


@pytest.mark.parametrize("make", [ContiguousMax, ContiguousExact, ContiguousPow2])
def test_arguments_and_capabilities(make: Callable[..., BlockAllocator]) -> None:
    a = make(num_blocks=64)
    caps = a.capabilities()
    assert (caps.addressing, caps.prefix) == (Addressing.CONTIGUOUS, Prefix.NONE)
    assert caps.truncate
    assert not caps.fork
    a.open(1, [])
    with pytest.raises(Unsupported):
        a.fork(1, 2)
    with pytest.raises(ValueError, match="namespace must be bytes"):
        a.open(2, [], namespace="x")  # type: ignore[arg-type]
    for options in ({"num_blocks": 0}, {"block_size": 0}, {"max_seq_len": 0}, {"num_blocks": 2.5}):
        with pytest.raises(ValueError, match=next(iter(options))):
            make(**{"num_blocks": 8, "block_size": 4, "max_seq_len": 8, **options})


def test_default_limit_leaves_room_for_several_sequences() -> None:
    sizes = [(64, 4), (64, 16), (8192, 16), (65536, 16), (1, 1), (3, 1)]
    assert [default_max_seq_len(*size) for size in sizes] == [64, 128, 1456, 4096, 1, 3]
