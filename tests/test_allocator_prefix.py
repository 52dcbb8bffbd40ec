"""Exact values of the paged allocator: what is found again, what is evicted, what is pinned."""

import subprocess
import sys

import pytest
from paged_tools import blocks, make, prefill, toks

from pagedattn.allocator import CopyOp, Event, EventKind, Prefix, PrefixHit
from pagedattn.backends.allocators import LRU
from pagedattn.errors import AllocatorError, Unsupported

# -- prefix cache ----------------------------------------------------------------------------------


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


# -- what hits go through --------------------------------------------------------------------------


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


def test_without_a_prefix_cache_tokens_are_not_looked_at():
    a = make(prefix_cache=False)
    a.open(1, "prompt")
    a.append(1, 6)
    a.commit(1, "prompt")
    a.fork(1, 2)
    assert (a.length(2), a.check()) == (6, [])


# -- eviction --------------------------------------------------------------------------------------


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
