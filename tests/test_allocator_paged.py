"""Exact values of the paged allocator, scenario by scenario."""

import math
import subprocess
import sys
import tracemalloc

import pytest

from pagedattn.allocator import (
    Addressing,
    CopyOp,
    Event,
    EventKind,
    Grant,
    Prefix,
    PrefixHit,
)
from pagedattn.backends.allocators import LRU, PagedAllocator
from pagedattn.backends.allocators.contiguous import ContiguousExact, ContiguousMax, ContiguousPow2
from pagedattn.errors import AllocatorError, OutOfBlocks, Unsupported


def make(num_blocks=8, block_size=4, **options):
    return PagedAllocator(num_blocks=num_blocks, block_size=block_size, **options)


def prefill(a, seq, tokens, **options):
    hit = a.open(seq, tokens, **options)
    a.append(seq, len(tokens) - hit.tokens)
    a.commit(seq, tokens[hit.tokens :])
    return hit


def blocks(a):
    stats = a.stats()
    assert a.check() == []
    return stats.free, stats.reclaimable, stats.live, stats.reserved


def toks(n, start=0):
    return list(range(start, start + n))


# -- grants --------------------------------------------------------------------------------------


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


# -- prefix cache --------------------------------------------------------------------------------


def test_hit_leaves_one_token():
    a = make()
    assert prefill(a, 1, toks(8)) == PrefixHit()
    a.close(1)
    assert prefill(a, 2, toks(8)) == PrefixHit(4, (0,))
    a.close(2)
    assert a.open(3, toks(12)).tokens == 8
    stats = a.stats()
    assert (stats.lookups, stats.hit_tokens) == (3, 12)


def test_keys_chain_and_events_replay():
    a = make()
    prefill(a, 1, toks(9))
    first, second = a.drain_events()
    assert first == Event(EventKind.STORED, 0, first.key, b"")
    assert second == Event(EventKind.STORED, 1, second.key, first.key)
    assert len(first.key) == 32
    a.close(1)
    assert a.evict(1) == 1
    assert a.drain_events() == [Event(EventKind.REMOVED, 1, second.key, first.key)]
    a.reset()
    assert a.drain_events() == [Event(EventKind.CLEARED)]
    assert a.drain_events() == []


def test_a_log_that_nobody_drains_stays_bounded_and_true():
    a = make(num_blocks=2)
    for i in range(6000):
        prefill(a, i, toks(5, 10 * i))
        a.close(i)
    events = a.drain_events()
    assert len(events) < 5000
    index = {}
    for event in events:
        if event.kind is EventKind.STORED:
            index[event.block] = event.key
        elif event.kind is EventKind.REMOVED:
            assert index.pop(event.block) == event.key
        else:
            index.clear()
    assert a.stats().reclaimable == len(index) == 1


KEYS = """
from pagedattn.backends.allocators import PagedAllocator
a = PagedAllocator(num_blocks=8, block_size=4)
a.open(1, range(8), namespace=b"x")
a.append(1, 8)
a.commit(1, range(8))
print([event.key.hex() for event in a.drain_events()])
"""


def test_keys_are_equal_in_every_process():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", KEYS],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    a = make()
    prefill(a, 1, toks(8), namespace=b"x")
    assert outputs == {f"{[event.key.hex() for event in a.drain_events()]}\n"}


def test_planted_collisions_give_no_wrong_hit():
    a = make(hash_fn=lambda data: b"same")
    prefill(a, 1, [1, 2, 3, 4, 5, 6, 7, 8])
    assert a.open(2, [5, 6, 7, 8, 9]).tokens == 0
    assert a.open(3, [9, 9, 9, 9, 5, 6, 7, 8, 9]).tokens == 0
    assert a.open(4, [1, 2, 3, 4, 5, 6, 7, 8, 9], namespace=b"n").tokens == 0
    assert a.open(5, [1, 2, 3, 4, 5, 6, 7, 8, 9]).tokens == 8
    assert a.check() == []


def test_tail_is_found_again_once_its_head_is_computed_again():
    a = make()
    prefill(a, 1, toks(8))
    a.release_before(1, 4)
    assert a.evict(1) == 1
    a.close(1)
    assert a.open(2, toks(9)).tokens == 0
    a.close(2)
    prefill(a, 3, toks(5))
    assert a.open(4, toks(9)) == PrefixHit(8, (a.table(3)[0], 1))
    assert a.check() == []


def test_a_long_chain_is_forgotten_without_recursion():
    a = make(num_blocks=100_000, block_size=1)
    prefill(a, 1, [7] * 100_000)
    a.close(1)
    assert a.evict(50_000) == 50_000
    a.reset()
    assert blocks(a) == (100_000, 0, 0, 0)


def test_without_a_prefix_cache():
    a = make(prefix_cache=False)
    prefill(a, 1, toks(8))
    assert a.open(2, toks(8)) == PrefixHit()
    a.fork(1, 3, 6)
    assert a.append(3, 1).copies == (CopyOp(1, 2, 2),)
    with pytest.raises(Unsupported, match="pin"):
        a.pin(1)
    with pytest.raises(Unsupported, match="pin"):
        a.unpin(1)
    for seq in (1, 2, 3):
        a.close(seq)
    assert blocks(a) == (8, 0, 0, 0)
    assert a.drain_events() == []
    assert a.capabilities().prefix is Prefix.NONE
    assert a.capabilities().policies == frozenset()


# -- eviction ------------------------------------------------------------------------------------


def test_append_evicts_only_what_it_needs_deepest_first():
    a = make(num_blocks=4)
    prefill(a, 1, toks(12))
    a.close(1)
    assert blocks(a) == (1, 3, 0, 0)
    prefill(a, 2, toks(8, 100))
    assert blocks(a) == (0, 2, 2, 0)
    assert a.table(2) == (2, 3)
    assert a.stats().evicted == 1
    assert a.open(3, toks(13)).tokens == 8


def test_pinned_blocks_without_owner_are_reserved():
    a = make(num_blocks=4)
    prefill(a, 1, toks(9))
    a.pin(1)
    a.close(1)
    assert blocks(a) == (2, 0, 0, 2)
    assert a.evict(4) == 0
    assert a.resize(1) == 2
    assert a.open(2, toks(9)).tokens == 8
    assert blocks(a) == (0, 0, 2, 0)
    a.close(2)
    a.unpin(1)
    assert blocks(a) == (0, 2, 0, 0)
    with pytest.raises(AllocatorError, match="sequence 1 is not pinned"):
        a.unpin(1)


def test_a_second_pin_adds_and_one_unpin_undoes_both():
    a = make()
    prefill(a, 1, toks(5))
    a.pin(1)
    a.append(1, 3)
    a.commit(1, [5, 6, 7])
    a.pin(1)
    a.close(1)
    assert blocks(a) == (6, 0, 0, 2)
    a.unpin(1)
    assert blocks(a) == (6, 2, 0, 0)


def test_lru_order():
    lru = LRU()
    for block, priority in ((3, 0), (1, 0), (2, 1), (0, -1), (4, 0)):
        lru.add(block, key=b"", depth=0, priority=priority)
    lru.remove(1)
    lru.add(1, key=b"", depth=0, priority=0)
    lru.remove(0)
    assert len(lru) == 4
    assert [lru.pop() for _ in range(4)] == [3, 4, 1, 2]
    with pytest.raises(IndexError):
        lru.pop()
    with pytest.raises(KeyError):
        lru.remove(1)


def test_lru_forgets_priorities_that_are_gone():
    lru = LRU()
    lru.add(10**6, key=b"", depth=0, priority=-1)
    for i in range(1000):
        lru.add(i, key=b"", depth=0, priority=i)
        lru.remove(i)
    assert len(lru._heap) < 30
    assert [lru.pop()] == [10**6]
    lru.add(1, key=b"", depth=0, priority=0)
    with pytest.raises(ValueError, match="block 1 was added twice"):
        lru.add(1, key=b"", depth=0, priority=0)
    lru.clear()
    assert len(lru) == 0


class Wrong(LRU):
    def pop(self):
        super().pop()
        return 0


def test_a_broken_policy_is_named():
    a = make(num_blocks=3, policy=Wrong)
    prefill(a, 1, toks(4))
    prefill(a, 2, toks(4, 100))
    a.close(2)
    with pytest.raises(AllocatorError, match="policy 'lru' chose block 0"):
        a.append(1, 8)
    assert a.table(1) == (0,)


# -- fork, truncate, window ----------------------------------------------------------------------


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


# -- resize, reset -------------------------------------------------------------------------------


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


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0}, "num_blocks is 0; at least 1"),
        ({"num_blocks": 2**31 + 1}, "num_blocks is 2147483649; at most 2147483648"),
        ({"num_blocks": 2.0}, "num_blocks must be an integer"),
        ({"num_blocks": math.nan}, "num_blocks must be an integer"),
        ({"num_blocks": True}, "num_blocks must be an integer"),
        ({"num_blocks": None}, "num_blocks must be an integer"),
        ({"block_size": 0}, "block_size is 0"),
        ({"block_size": "16"}, "block_size must be an integer"),
        ({"policy": "lru"}, "policy must be an EvictionPolicy"),
        ({"policy": int}, "policy must be an EvictionPolicy"),
        ({"prefix_cache": 1}, "prefix_cache must be True or False"),
        ({"hash_fn": b"x"}, "hash_fn must map bytes to bytes"),
    ],
)
def test_constructor_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_two_allocators_cannot_share_a_policy():
    policy = LRU()
    a = make(policy=policy)
    prefill(a, 1, toks(4))
    a.close(1)
    with pytest.raises(ValueError, match="policy 'lru' holds 1 blocks already"):
        make(policy=policy)


def test_policy_may_be_a_factory():
    a = make(policy=LRU)
    assert a.capabilities().policies == frozenset({"lru"})
    assert a.capabilities().addressing is Addressing.PAGED
    assert a.capabilities().hit_granularity == 4


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: a.open(1, [1]), AllocatorError, "sequence 1 is open already"),
        (lambda a: a.open(2, [1], namespace="x"), ValueError, "namespace must be bytes"),
        (lambda a: a.open(2, [1], priority=0.5), ValueError, "priority must be an integer"),
        (lambda a: a.open(2, [0.5] * 9), ValueError, "token ids must be integers"),
        (lambda a: a.open(2, [2**63] * 9), ValueError, "token ids must be integers"),
        (lambda a: a.append(1, -1), ValueError, "sequence 1: count is -1"),
        (lambda a: a.append(1, 1.0), ValueError, "sequence 1: count must be an integer"),
        (lambda a: a.can_append({1: -1}), ValueError, "sequence 1: count is -1"),
        (lambda a: a.append_many({1: 9, 5: 1}), AllocatorError, "sequence 5 is not open"),
        (lambda a: a.can_append({5: 1}), AllocatorError, "sequence 5 is not open"),
        (lambda a: a.commit(1, [1, 2]), AllocatorError, "sequence 1: commit of 2 tokens after 6"),
        (lambda a: a.commit(1, [0.5]), ValueError, "token ids must be integers"),
        (lambda a: a.commit(5, []), AllocatorError, "sequence 5 is not open"),
        (lambda a: a.close(5), AllocatorError, "sequence 5 is not open"),
        (lambda a: a.table(5), AllocatorError, "sequence 5 is not open"),
        (lambda a: a.length(5), AllocatorError, "sequence 5 is not open"),
        (lambda a: a.fork(1, 2, 7), ValueError, r"at most 6 \(its committed length\)"),
        (lambda a: a.fork(1, 1), AllocatorError, "sequence 1 is open already"),
        (lambda a: a.fork(5, 2), AllocatorError, "sequence 5 is not open"),
        (lambda a: a.truncate(1, 8), ValueError, r"at most 7 \(its length\)"),
        (lambda a: a.truncate(1, -1), ValueError, "at least 0"),
        (lambda a: a.release_before(1, 8), ValueError, r"at most 7 \(its length\)"),
        (lambda a: a.pin(5), AllocatorError, "sequence 5 is not open"),
        (lambda a: a.evict(-1), ValueError, "evict: n is -1"),
        (lambda a: a.resize(0), ValueError, "num_blocks is 0"),
    ],
)
def test_a_refused_call_changes_nothing(call, error, message):
    a = make()
    a.open(1, toks(7))
    a.append(1, 7)
    a.commit(1, toks(6))
    a.drain_events()
    before = (a.stats(), a.table(1), a.length(1))
    with pytest.raises(error, match=message):
        call(a)
    assert (a.stats(), a.table(1), a.length(1)) == before
    assert a.check() == []
    assert a.drain_events() == []
    a.close(1)
    assert blocks(a) == (7, 1, 0, 0)


# -- large pools ---------------------------------------------------------------------------------


def test_memory_is_for_blocks_in_use():
    def used(num_blocks):
        tracemalloc.start()
        a = make(num_blocks=num_blocks)
        empty = tracemalloc.get_traced_memory()[0]
        prefill(a, 1, toks(4000))
        full = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert a.check() == []
        return empty, full

    used(1000)  # what is made once in the process
    (small, small_full), (large, large_full) = used(1000), used(2**31)
    assert large < small + 2000 < 50_000
    assert large_full < 1.1 * small_full


def test_the_largest_pool():
    a = make(num_blocks=2**31, block_size=16)
    a.open(1, [])
    a.open(2, [])
    first, second = a.append(1, 40), a.append(2, 40)
    assert len({*first.blocks, *second.blocks}) == 6
    assert second.slots == range(second.blocks[0] * 16, second.blocks[0] * 16 + 40)
    assert second.blocks[0] > 2**28  # far from the first: both have room to grow
    a.commit(1, toks(40))
    assert blocks(a) == (2**31 - 6, 0, 6, 0)
    assert a.resize(100) == second.blocks[-1] + 1
    a.close(2)
    assert a.resize(100) == 100
    a.close(1)
    assert blocks(a) == (98, 2, 0, 0)
    assert a.resize(2**31) == 2**31
    a.open(3, [])
    with pytest.raises(OutOfBlocks) as info:
        a.append(3, 2**40)
    assert (info.value.needed, info.value.available) == (2**36, 2**31)
    assert a.evict(5) == 2
    assert blocks(a) == (2**31, 0, 0, 0)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(ContiguousMax, {}), (ContiguousPow2, {}), (ContiguousExact, {"lengths": lambda seq: 1000})],
)
def test_the_largest_address_space(kind, options):
    a = kind(num_blocks=2**31, block_size=16, max_seq_len=1600, **options)
    for seq in (1, 2):
        a.open(seq, toks(40))
        a.append(seq, 40)
    assert not {*a.table(1)} & {*a.table(2)}
    assert (a.stats().total, a.stats().live, a.check()) == (2**31, 6, [])


# -- what hits go through ------------------------------------------------------------------------


class Listening(LRU):
    def __init__(self):
        super().__init__()
        self.hits = []

    def hit(self, key):
        self.hits.append(key)


def test_a_bad_token_far_behind_hits_changes_nothing():
    a = make(num_blocks=64, block_size=1, policy=Listening)
    prefill(a, 1, toks(40))
    before = a.stats()
    with pytest.raises(ValueError, match="token ids must be integers"):
        a.open(2, [*toks(40), 0.5, 1])
    assert (a.stats(), a._policy.hits, a.check()) == (before, [], [])
    assert a.open(2, [*toks(40), 1]).tokens == 40
    assert len(a._policy.hits) == 40


def test_each_of_three_copies_is_found():
    a = make(block_size=2)
    for seq in (1, 2, 3):
        a.open(seq, [])
        a.append(seq, 2)
    for seq in (1, 2, 3):
        a.commit(seq, [7, 8])
    found = set()
    for _ in range(3):
        (block,) = a.open(4, [7, 8, 9]).blocks
        found.add(block)
        (owner,) = (seq for seq in (1, 2, 3) if a.table(seq) == (block,))
        a.close(4)
        a.truncate(owner, 1)
        assert a.check() == []
    assert found == {0, 1, 2}
    assert a.open(4, [7, 8, 9]).tokens == 0


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


def test_without_a_prefix_cache_tokens_are_not_looked_at():
    a = make(prefix_cache=False)
    a.open(1, "prompt")
    a.append(1, 6)
    a.commit(1, "prompt")
    a.fork(1, 2)
    assert (a.length(2), a.check()) == (6, [])


# -- check() -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (lambda a: a._pool.refs.__setitem__(0, 2), "refcount"),
        (lambda a: a._pool.pins.__setitem__(0, 1), "pins"),
        (lambda a: a._pool.room.add(0), "free-list"),
        (lambda a: a._pool.room.add(6), "free-list"),
        (lambda a: a._pool.room.remove(5), "free-list"),
        (lambda a: a._pool.room.remove(5), "stats-identity"),
        (lambda a: a._pool.room.length.__setitem__(3, 4), "free-list"),
        (lambda a: a._pool.staged.__setitem__(0, None), "free-list"),
        (lambda a: a._pool.refs.pop(1), "stats-identity"),
        (lambda a: setattr(a._pool, "reserved", 1), "stats-identity"),
        (lambda a: setattr(a._pool, "reclaimable", 2), "stats-identity"),
        (lambda a: a._pool.staged.__setitem__(5, None), "free-list"),
        (lambda a: setattr(a._sequences[1], "spare", 1), "spare"),
        (lambda a: a._pool.refs.__setitem__(1, 2), "spare"),
        (lambda a: a._policy.pop(), "policy"),
        (lambda a: a._sequences[1].table.pop(), "table-length"),
        (lambda a: a._sequences[1].table.__setitem__(1, 0), "table-ids"),
        (lambda a: a._sequences[1].table.__setitem__(0, -1), "table-ids"),
        (lambda a: setattr(a._sequences[1], "committed", 7), "commit"),
        (lambda a: setattr(a._sequences[1], "tail", b""), "content"),
        (lambda a: a._index.unpublish(0), "content"),
        (lambda a: a._index.hold(a._index.node_of[0]), "index"),
        (lambda a: setattr(a._index.node_of[0], "block", -1), "index"),
        (lambda a: setattr(a._index.roots[b""], "child", None), "index"),
        (lambda a: a._index.roots[b""].others.clear(), "index"),
        (lambda a: a._index.roots.clear(), "index"),
    ],
)
def test_check_finds(damage, rule):
    a = make()
    prefill(a, 1, toks(6))
    prefill(a, 2, toks(4, 100))
    a.close(2)
    assert a.check() == []
    damage(a)
    assert rule in {violation.rule for violation in a.check()}
