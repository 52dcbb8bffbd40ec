"""What the paged allocator refuses, and how large it may be."""

import math
import tracemalloc

import pytest
from paged_tools import blocks, make, prefill, toks

from pagedattn.allocator import Addressing
from pagedattn.backends.allocators import LRU
from pagedattn.backends.allocators.contiguous import ContiguousExact, ContiguousMax, ContiguousPow2
from pagedattn.errors import AllocatorError, OutOfBlocks

# -- bad input -------------------------------------------------------------------------------------


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


# -- large pools -----------------------------------------------------------------------------------


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
