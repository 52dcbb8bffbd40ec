"""Eviction policies: the rules that all share, and what a call costs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from policy_tools import calls, drain, every_policy, key, release, use, void

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.paged import PagedAllocator

# -- rules ---------------------------------------------------------------------------------------


@every_policy
def test_deepest_block_of_a_release_goes_first(make: Callable[[], EvictionPolicy]) -> None:
    policy = make()
    release(policy, [4, 9, 2, 7])
    assert drain(policy) == [7, 2, 9, 4]


@every_policy
def test_deepest_first_whatever_the_uses(make: Callable[[], EvictionPolicy]) -> None:
    """The tail was used more often than the head: alone once, then as part of a chain."""
    policy = make()
    policy.add(7, key=key(7), depth=3, priority=0)
    for _ in range(5):
        policy.hit(key(7))
        policy.remove(7)
        policy.add(7, key=key(7), depth=3, priority=0)
    policy.hit(key(7))
    policy.remove(7)
    release(policy, [4, 9, 2, 7])
    assert drain(policy) == [7, 2, 9, 4]


@every_policy
def test_higher_priority_stays_longer(make: Callable[[], EvictionPolicy]) -> None:
    policy = make()
    release(policy, [1, 2], priority=5)
    release(policy, [3, 4], priority=-1)
    release(policy, [5, 6])
    for _ in range(3):
        use(policy, [5, 6])
    assert drain(policy) == [4, 3, 6, 5, 2, 1]


@every_policy
def test_priorities_may_differ_within_a_release(make: Callable[[], EvictionPolicy]) -> None:
    policy = make()
    for depth, priority in ((3, 0), (2, 0), (1, 2), (0, 2)):
        policy.add(depth, key=key(depth), depth=depth, priority=priority)
    assert drain(policy) == [3, 2, 1, 0]


@every_policy
def test_removed_block_is_not_evicted(make: Callable[[], EvictionPolicy]) -> None:
    policy = make()
    release(policy, [1, 2, 3])
    policy.remove(3)
    assert len(policy) == 2
    assert drain(policy) == [2, 1]


@every_policy
def test_misuse_is_refused_and_changes_nothing(make: Callable[[], EvictionPolicy]) -> None:
    policy = make()
    with pytest.raises(IndexError):
        policy.pop()
    release(policy, [1, 2])
    with pytest.raises(ValueError, match="block 2 was added twice"):
        policy.add(2, key=key(2), depth=0, priority=0)
    with pytest.raises(KeyError):
        policy.remove(3)
    assert len(policy) == 2
    assert drain(policy) == [2, 1]


@every_policy
def test_clear_forgets_everything(make: Callable[[], EvictionPolicy]) -> None:
    policy, fresh = make(), make()
    release(policy, [1, 2])
    for _ in range(4):
        use(policy, [1, 2])
    policy.clear()
    assert len(policy) == 0
    for one in (policy, fresh):
        for block in (1, 2, 3):
            release(one, [block])
    assert drain(policy) == drain(fresh)


@every_policy
def test_returns_each_block_it_was_given_once(make: Callable[[], EvictionPolicy]) -> None:
    rng, policy, held = random.Random(3), make(), dict[int, bytes]()
    for step in range(4000):
        what = rng.random()
        if held and what < 0.3:
            block = rng.choice(list(held))
            policy.hit(held[block])
            policy.remove(block)
            del held[block]
        elif held and what < 0.5:
            del held[policy.pop()]
        elif len(held) < 90:
            block = rng.choice([b for b in range(100) if b not in held])
            held[block] = key(rng.randrange(300))
            policy.add(block, key=held[block], depth=step % 5, priority=rng.randrange(3))
        assert len(policy) == len(held)
    assert sorted(drain(policy)) == sorted(held)


@every_policy
def test_serves_the_paged_allocator(make: Callable[[], EvictionPolicy]) -> None:
    rng = random.Random(5)
    allocator = PagedAllocator(num_blocks=24, block_size=2, policy=make())
    open_: list[int] = []
    for seq in range(300):
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 12))]
        hit = allocator.open(seq, tokens, priority=rng.randrange(2)).tokens
        open_.append(seq)
        if allocator.can_append({seq: len(tokens) - hit}):
            allocator.append(seq, len(tokens) - hit)
            allocator.commit(seq, tokens[hit:])
        while len(open_) > 3 or (open_ and rng.random() < 0.4):
            allocator.close(open_.pop(rng.randrange(len(open_))))
        assert allocator.check() == []
    assert allocator.stats().evicted > 50
    assert allocator.stats().hit_tokens > 100


# -- cost of an operation ------------------------------------------------------------------------


@every_policy
def test_work_does_not_grow_with_the_pool(make: Callable[[], EvictionPolicy]) -> None:
    """Counted in calls, the same churn in a pool of 16 times as many blocks."""

    def churn(blocks: int) -> int:
        rng, policy = random.Random(1), make()
        for block in range(0, blocks, 4):
            release(policy, range(block, block + 4))
        fresh = blocks

        def work() -> None:
            nonlocal fresh
            for _ in range(2000):
                policy.pop()
                policy.add(fresh, key=key(fresh), depth=rng.randrange(4), priority=0)
                fresh += 1
                if rng.random() < 0.5:
                    use(policy, [fresh - 1])

        work()
        return calls(work)

    assert churn(16_000) < 1.5 * churn(1000)


@every_policy
def test_one_operation_is_never_linear_in_the_pool(make: Callable[[], EvictionPolicy]) -> None:
    policy = make()
    for block in range(0, 20_000, 4):
        release(policy, range(block, block + 4))
    for block in range(0, 20_000, 8):
        use(policy, [block])
    assert max(calls(lambda: void(policy.pop())) for _ in range(200)) < 2000
