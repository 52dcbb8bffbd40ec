"""Exact values of the paged allocator: grants, forks, cuts, resizing."""

import pytest
from paged_tools import blocks, make, prefill, toks

from pagedattn.allocator import CopyOp, EventKind, Grant
from pagedattn.errors import AllocatorError, OutOfBlocks

# -- grants ----------------------------------------------------------------------------------------


def test_blocks_ascend_in_a_fresh_pool():
    a = make()
    a.open(1, toks(6))
    assert a.append(1, 6) == Grant(range(6), 0, (0, 1))
    assert a.append(1, 1) == Grant(range(6, 7), 2, ())
    assert a.append(1, 2) == Grant(range(7, 9), 2, (2,))
    assert a.append(1, 0) == Grant(range(0), 3, ())
    assert a.table(1) == (0, 1, 2)
    assert a.length(1) == 9


def test_blocks_come_back_in_ascending_order():
    a = make(prefix_cache=False)
    prefill(a, 1, toks(12))
    a.close(1)
    a.open(2, toks(12))
    assert a.append(2, 12).blocks == (0, 1, 2)


def test_out_of_blocks_counts_the_whole_call():
    a = make(num_blocks=4)
    prefill(a, 1, toks(8))
    prefill(a, 2, toks(3))
    with pytest.raises(OutOfBlocks) as info:
        a.append_many({1: 5, 2: 1})
    assert (info.value.needed, info.value.available) == (2, 1)
    assert blocks(a) == (1, 0, 3, 0)
    assert a.can_append({1: 4, 2: 1})
    assert a.append_many({1: 4, 2: 1})[1].blocks == (3,)


def test_a_request_larger_than_any_memory_is_refused_at_once():
    a = make()
    a.open(1, toks(3))
    with pytest.raises(OutOfBlocks) as info:
        a.append(1, 10**15)
    assert (info.value.needed, info.value.available) == (250_000_000_000_000, 8)


# -- fork, truncate, window ------------------------------------------------------------------------


def test_copy_on_write_of_both_holders_in_one_call():
    a = make(num_blocks=3)
    prefill(a, 1, toks(6))
    a.fork(1, 2)
    assert blocks(a) == (1, 0, 2, 0)
    grants = a.append_many({1: 2, 2: 2})
    assert grants[1] == Grant(range(10, 12), 1, (2,), (CopyOp(1, 2, 2),))
    assert grants[2] == Grant(range(6, 8), 2, ())
    assert blocks(a) == (0, 0, 3, 0)


def test_three_holders_need_two_copies():
    a = make(num_blocks=3)
    prefill(a, 1, toks(6))
    a.fork(1, 2)
    a.fork(1, 3)
    assert not a.can_append({1: 1, 2: 1, 3: 1})
    with pytest.raises(OutOfBlocks) as info:
        a.append_many({1: 1, 2: 1, 3: 1})
    assert (info.value.needed, info.value.available) == (2, 1)
    assert a.append_many({3: 1, 1: 0})[3].copies == (CopyOp(1, 2, 2),)
    assert blocks(a) == (0, 0, 3, 0)


def test_fork_inside_a_published_block():
    a = make()
    prefill(a, 1, toks(8))
    a.fork(1, 2, 6)
    assert a.length(2) == 6
    a.close(1)
    a.drain_events()
    assert a.append(2, 1) == Grant(range(6, 7), 2, ())
    (removed,) = a.drain_events()
    assert (removed.kind, removed.block) == (EventKind.REMOVED, 1)
    a.append(2, 1)
    a.commit(2, [100, 101])
    assert a.open(3, toks(9)).tokens == 4
    assert a.open(4, [*toks(6), 100, 101, 0]).tokens == 8


def test_truncate_unpublishes_what_it_cuts_and_keeps_what_it_drops():
    a = make()
    prefill(a, 1, toks(12))
    a.drain_events()
    a.truncate(1, 6)
    assert [(e.kind, e.block) for e in a.drain_events()] == [(EventKind.REMOVED, 1)]
    assert blocks(a) == (5, 1, 2, 0)
    a.append(1, 2)
    a.commit(1, [6, 7])
    assert a.open(2, toks(13)).tokens == 12


def test_truncate_into_a_shared_block_copies_on_the_next_append():
    a = make()
    prefill(a, 1, toks(8))
    a.fork(1, 2)
    a.truncate(2, 6)
    assert a.drain_events()[-1].kind is EventKind.STORED
    assert a.append(2, 1).copies == (CopyOp(1, 2, 2),)


def test_release_before_keeps_columns_and_is_idempotent():
    a = make()
    prefill(a, 1, toks(14))
    for _ in range(2):
        a.release_before(1, 11)
        assert a.table(1) == (-1, -1, 2, 3)
        assert blocks(a) == (4, 2, 2, 0)
    assert a.append(1, 3) == Grant(range(14, 17), 4, (4,))
    a.fork(1, 2)
    assert a.table(2) == (-1, -1, 2, 3)
    a.pin(1)
    a.close(1)
    assert blocks(a) == (4, 2, 2, 0)
    a.unpin(1)
    with pytest.raises(ValueError, match="at least 8"):
        a.truncate(2, 7)
    with pytest.raises(ValueError, match="at least 8"):
        a.fork(2, 3, 7)


def test_released_columns_may_be_committed_later():
    a = make()
    a.open(1, toks(12))
    a.append(1, 12)
    a.release_before(1, 9)
    a.commit(1, toks(12))
    assert [event.block for event in a.drain_events()] == [2]
    assert blocks(a) == (7, 0, 1, 0)


def test_a_lone_holder_of_a_forked_block_writes_in_place_again():
    a = make()
    prefill(a, 1, toks(5))
    a.append(1, 1)
    a.commit(1, [5])
    a.fork(1, 2)
    assert a.append(1, 1).copies == (CopyOp(1, 2, 2),)
    assert a.append(1, 1) == Grant(range(11, 12), 2, ())
    assert a.append(2, 1) == Grant(range(6, 7), 2, ())
    assert a.check() == []


# -- resize, reset ---------------------------------------------------------------------------------


def test_resize():
    a = make(num_blocks=4)
    prefill(a, 1, toks(8))
    prefill(a, 2, toks(4, 100))
    a.close(1)
    assert a.resize(1) == 3
    assert blocks(a) == (0, 2, 1, 0)
    assert a.resize(6) == a.num_blocks == 6
    assert a.append(2, 8).blocks == (3, 4)
    a.close(2)
    assert a.resize(1) == 1
    assert a.open(3, toks(9)).tokens == 4


def test_reset_needs_closed_sequences():
    a = make()
    prefill(a, 7, toks(9))
    with pytest.raises(AllocatorError, match=r"reset with 1 open sequences \(7\)"):
        a.reset()
    a.pin(7)
    a.close(7)
    a.reset()
    assert blocks(a) == (8, 0, 0, 0)
    assert a.open(7, toks(9)).tokens == 0
    assert a.stats().lookups == 2
    with pytest.raises(AllocatorError, match="not pinned"):
        a.unpin(7)
