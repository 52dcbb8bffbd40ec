"""The calls of a policy for many blocks: what the single ones do, and who inherits which."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.lru import LRU
from pagedattn.backends.allocators.policies.cost import Cost
from pagedattn.backends.allocators.policies.fifo import FIFO
from pagedattn.backends.allocators.policies.lfu import LFU
from pagedattn.backends.allocators.policies.return_rate import ReturnRate
from pagedattn.backends.allocators.policies.s3fifo import S3FIFO

Content = Callable[[int], tuple[bytes, int]]


def no_content(block: int) -> tuple[bytes, int]:
    raise AssertionError(f"LRU asked for the key of block {block}")


@pytest.mark.parametrize("make", [LRU, FIFO, LFU, S3FIFO, Cost, ReturnRate])
def test_many_at_once_are_one_after_the_other(make: type[EvictionPolicy]) -> None:
    rng, one, many = random.Random(7), make(), make()
    held: dict[int, bytes] = {}
    fresh = 0
    for _ in range(400):
        n = rng.randint(1, 6)
        if held and rng.random() < 0.5:
            some = rng.sample(sorted(held), min(n, len(held)))
            for block in some:
                one.hit(held[block])
                many.hit(held[block])
                one.remove(block)
            many.remove_all(some)
            for block in some:
                del held[block]
        elif len(held) > 60:
            popped = [one.pop() for _ in range(n)]
            assert [*many.pop_many(n)] == popped
            for block in popped:
                del held[block]
        else:
            blocks, priority = range(fresh, fresh + n), rng.randrange(3)
            content = {block: (rng.randbytes(4), fresh + n - 1 - block) for block in blocks}
            for block, (key, depth) in content.items():
                one.add(block, key=key, depth=depth, priority=priority)
                held[block] = key
            many.add_all(blocks, priority=priority, content=content.__getitem__)
            fresh += n
        assert len(one) == len(many) == len(held)
    assert [*many.pop_many(len(held))] == [one.pop() for _ in range(len(held))]


def test_lru_asks_for_no_key() -> None:
    lru = LRU()
    lru.add_all([2, 1, 0], priority=0, content=no_content)
    lru.add_all([5, 4, 3], priority=-1, content=no_content)
    lru.remove_all([3, 0])
    assert lru.pop_many(3) == [5, 4, 2]
    assert lru.pop_many(9) == [1]
    assert lru.pop_many(9) == []


def test_lru_refuses_a_block_that_it_has_and_changes_nothing() -> None:
    lru = LRU()
    lru.add_all([2, 1], priority=0, content=no_content)
    with pytest.raises(ValueError, match="block 1 was added twice"):
        lru.add_all([3, 1], priority=1, content=no_content)
    with pytest.raises(KeyError):
        lru.remove_all([7])
    assert lru.pop_many(3) == [2, 1]


def test_lru_remembers_no_more_than_it_holds_however_often_a_prefix_is_hit() -> None:
    lru, prefix = LRU(), [*range(9, -1, -1)]
    lru.add_all([20], priority=0, content=no_content)
    for _ in range(1000):
        lru.add_all(prefix, priority=0, content=no_content)
        lru.remove_all(prefix)
        assert lru._entries <= 2 * (len(lru) + len(prefix)) + 16
        assert lru._entries == sum(len(run) for queue in lru._queues.values() for run in queue)
    assert lru.pop_many(2) == [20]


# -- inheritance --------------------------------------------------------------------------------


class Backwards(LRU):
    """Overrides a single call of a class that has its own form for many."""

    def pop(self) -> int:
        return max(self._run_of)


class MoreBackwards(Backwards):
    """Overrides nothing of either."""


class Spy:
    """Not a policy by itself."""

    removed: list[int]

    def remove(self, block: int) -> None:
        self.removed.append(block)


class Spied(Spy, LRU):
    """Overrides by a mixin."""


class Both(LRU):
    """Overrides both forms."""

    def pop(self) -> int:
        return 7

    def pop_many(self, n: int) -> list[int]:
        return [8] * n


class Quick(Backwards):
    """Adds a form for many to the single call that it inherits."""

    def pop_many(self, n: int) -> list[int]:
        return [9] * n


def filled(make: type[LRU], blocks: Sequence[int] = (3, 2, 1)) -> LRU:
    policy = make()
    policy.add_all(blocks, priority=0, content=no_content)
    return policy


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (LRU, [3, 2]),
        (Backwards, [3, 3]),
        (MoreBackwards, [3, 3]),
        (Spied, [3, 2]),
        (Both, [8, 8]),
        (Quick, [9, 9]),
    ],
)
def test_a_single_call_that_is_overridden_is_not_passed_by(
    make: type[LRU], expected: list[int]
) -> None:
    assert [*filled(make).pop_many(2)] == expected


def test_a_mixin_overrides_too() -> None:
    policy = filled(Spied)
    assert isinstance(policy, Spied)
    policy.removed = []
    policy.remove_all([2, 1])
    assert policy.removed == [2, 1]


def test_a_policy_of_single_calls_gets_them_in_order() -> None:
    class Single(LRU):
        def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
            told.append((block, key, depth, priority))

    told: list[tuple[int, bytes, int, int]] = []
    Single().add_all([4, 2], priority=5, content=lambda block: (b"%d" % block, block // 2))
    assert told == [(4, b"4", 2, 5), (2, b"2", 1, 5)]
