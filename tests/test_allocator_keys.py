"""Keys of blocks are computed when they are asked for, and policies that fail change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import pytest

from pagedattn.allocator import EventKind
from pagedattn.backends.allocators import LRU, PagedAllocator
from pagedattn.backends.allocators.policies.lfu import LFU
from pagedattn.errors import AllocatorError


class Hash:
    """SHA-256 that counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails = False

    def __call__(self, data: bytes) -> bytes:
        if self.fails:
            raise RuntimeError("no hash today")
        self.calls += 1
        return sha256(data).digest()


def prefill(a: PagedAllocator, seq: int, tokens: list[int]) -> int:
    hit = a.open(seq, tokens).tokens
    a.append(seq, len(tokens) - hit)
    a.commit(seq, tokens[hit:])
    return hit


def test_nothing_is_hashed_until_events_are_drained_and_then_once() -> None:
    hash_fn = Hash()
    a = PagedAllocator(num_blocks=8, block_size=2, hash_fn=hash_fn)
    prefill(a, 1, [1, 2, 3, 4, 5, 6])
    a.close(1)
    assert prefill(a, 2, [1, 2, 3, 4, 7, 8, 9]) == 4
    a.close(2)
    assert a.evict(1) == 1
    assert hash_fn.calls == 0
    events = a.drain_events()
    assert hash_fn.calls == 4
    assert [event.kind.value for event in events] == ["stored"] * 4 + ["removed"]
    assert prefill(a, 3, [1, 2, 3, 4, 5, 6, 7]) == 4
    assert len(a.drain_events()) == 1  # what was removed is stored again
    assert hash_fn.calls == 5


def test_the_end_of_a_chain_is_named_as_if_all_had_been_named_at_once() -> None:
    late, early = (PagedAllocator(num_blocks=64, block_size=1) for _ in range(2))
    keys = []
    for length in range(1, 41):
        for a in (late, early):
            prefill(a, length, [*range(length)])
        keys += [event.key for event in early.drain_events() if event.block == length - 1]
    last = {event.block: event for event in late.drain_events()}
    assert [last[block].key for block in range(40)] == keys
    assert [last[block].parent for block in range(40)] == [b"", *keys[:-1]]


def test_a_policy_that_wants_keys_gets_those_of_the_events() -> None:
    seen: list[bytes] = []

    class Spy(LFU):
        def hit(self, key: bytes) -> None:
            seen.append(key)

    hash_fn = Hash()
    a = PagedAllocator(num_blocks=8, block_size=2, policy=Spy, hash_fn=hash_fn)
    prefill(a, 1, [1, 2, 3, 4])
    assert hash_fn.calls == 0
    a.open(2, [1, 2, 3, 4, 5])
    assert seen == [event.key for event in a.drain_events()]
    assert (len(seen), hash_fn.calls) == (2, 2)


def test_events_survive_a_hash_function_that_fails() -> None:
    hash_fn = Hash()
    a = PagedAllocator(num_blocks=8, block_size=2, hash_fn=hash_fn)
    prefill(a, 1, [1, 2, 3, 4])
    hash_fn.fails = True
    with pytest.raises(RuntimeError, match="no hash today"):
        a.drain_events()
    hash_fn.fails = False
    assert [(event.kind, event.block) for event in a.drain_events()] == [
        (EventKind.STORED, 0),
        (EventKind.STORED, 1),
    ]


# -- policies that fail --------------------------------------------------------------------------


class Twice(LRU):
    """Gives the first block again in place of the last."""

    def pop_many(self, n: int) -> list[int]:
        blocks = super().pop_many(n - 1)
        return [*blocks, blocks[0]]


class Short(LRU):
    def pop_many(self, n: int) -> list[int]:
        return super().pop_many(n - 1)


class Raises(LRU):
    def pop_many(self, n: int) -> Iterable[int]:
        yield from super().pop_many(n - 1)
        raise RuntimeError("no more")


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        (Twice, AllocatorError, "policy 'lru' chose block 5, which it was not given"),
        (Short, AllocatorError, "policy 'lru' gave 2 blocks of 3"),
        (Raises, RuntimeError, "no more"),
    ],
)
def test_a_policy_that_fails_midway_evicts_nothing(
    policy: type[LRU], error: type[Exception], message: str
) -> None:
    a = PagedAllocator(num_blocks=8, block_size=1, policy=policy)
    prefill(a, 1, [*range(6)])
    a.close(1)
    a.open(2, [])
    a.append(2, 2)
    a.drain_events()
    before = a.stats()
    with pytest.raises(error, match=message):
        a.append(2, 3)
    assert (a.stats(), a.drain_events(), a.length(2)) == (before, [], 2)
    assert a.open(3, [*range(7)]).tokens == 6


def test_a_hash_that_fails_when_blocks_are_released_loses_nothing() -> None:
    hash_fn = Hash()
    a = PagedAllocator(num_blocks=4, block_size=2, policy=LFU, hash_fn=hash_fn)
    prefill(a, 0, [1, 2, 3, 4, 5])
    hash_fn.fails = True
    for call in (lambda: a.close(0), lambda: a.truncate(0, 0), lambda: a.release_before(0, 4)):
        with pytest.raises(RuntimeError, match="no hash today"):
            call()
        assert a.check() == []
        assert (a.length(0), a.stats().live) == (5, 3)
    hash_fn.fails = False
    a.close(0)
    assert a.check() == []
    assert prefill(a, 1, [1, 2, 3, 4, 6]) == 4
