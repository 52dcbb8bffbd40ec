"""What each eviction policy evicts by itself."""

from __future__ import annotations

import pytest
from policy_tools import drain, key, release, use

from pagedattn.backends.allocators.policies.cost import Cost
from pagedattn.backends.allocators.policies.fifo import FIFO
from pagedattn.backends.allocators.policies.lfu import LFU
from pagedattn.backends.allocators.policies.memory import KeyMemory
from pagedattn.backends.allocators.policies.return_rate import ReturnRate
from pagedattn.backends.allocators.policies.s3fifo import S3FIFO


def test_fifo_ignores_hits() -> None:
    policy = FIFO()
    for block in (1, 2, 3):
        release(policy, [block])
    use(policy, [1])
    assert drain(policy) == [1, 2, 3]


def test_fifo_starts_anew_after_eviction_and_with_another_key() -> None:
    policy = FIFO()
    for block in (1, 2, 3):
        release(policy, [block])
    assert policy.pop() == 1
    release(policy, [1])
    policy.remove(2)
    policy.add(2, key=key(99), depth=0, priority=0)
    assert drain(policy) == [3, 1, 2]


def test_lfu_evicts_the_fewest_hits_then_the_oldest() -> None:
    policy = LFU()
    for block in (1, 2, 3, 4):
        release(policy, [block])
    for block in (1, 1, 2, 3):
        use(policy, [block])
    assert drain(policy) == [4, 2, 3, 1]


def test_lfu_forgets_hits_with_the_eviction() -> None:
    policy = LFU()
    release(policy, [1])
    use(policy, [1])
    assert policy.pop() == 1
    release(policy, [2])
    release(policy, [1])
    use(policy, [2])
    assert drain(policy) == [1, 2]


def test_s3_fifo_keeps_what_was_hit_and_gives_it_further_rounds() -> None:
    policy = S3FIFO()
    for block in (1, 2, 3, 4):
        release(policy, [block])
    for block in (1, 1, 2):
        use(policy, [block])
    # New ones first; then 1, hit twice, and 2, hit once, go round until 2 has no round left.
    assert drain(policy) == [3, 4, 2, 1]


def test_s3_fifo_recognises_a_key_that_it_evicted() -> None:
    policy = S3FIFO()
    release(policy, [1])
    release(policy, [2])
    assert policy.pop() == 1
    release(policy, [1])
    release(policy, [3])
    assert drain(policy) == [2, 3, 1]


def test_cost_prefers_short_chains_as_victims() -> None:
    policy = Cost(attention=1.0)
    release(policy, [1, 2, 3])  # rank 3 each
    release(policy, [4])  # rank 1
    release(policy, [5, 6])  # rank 2 each
    assert drain(policy) == [4, 6, 5, 3, 2, 1]


def test_cost_ages_by_the_rank_evicted_last() -> None:
    policy = Cost(attention=1.0)
    release(policy, [1, 2])  # rank 2
    release(policy, [3])  # rank 1
    assert [policy.pop(), policy.pop()] == [3, 2]  # the level is 2 now
    release(policy, [4])  # rank 2 + 1
    assert drain(policy) == [1, 4]


def test_cost_counts_uses() -> None:
    policy = Cost(attention=0.0)
    release(policy, [1])
    release(policy, [2])
    use(policy, [1])
    use(policy, [2])
    use(policy, [2])
    release(policy, [3])
    assert drain(policy) == [3, 1, 2]


def test_cost_refuses_a_negative_cost() -> None:
    with pytest.raises(ValueError, match="attention must be a cost of 0 or more, not -1"):
        Cost(attention=-1)


def led() -> ReturnRate:
    """Our policy once its model leads."""
    policy = ReturnRate()
    policy.referee.model_leads = True
    return policy


def test_return_rate_is_lru_until_the_model_has_proved_itself() -> None:
    policy = ReturnRate()
    for block in (1, 2, 3):
        release(policy, [block])
    use(policy, [1])
    use(policy, [1])
    use(policy, [2])
    assert drain(policy) == [3, 1, 2]


def test_return_rate_keeps_what_returns_through_a_scan() -> None:
    policy = led()
    release(policy, [1, 2])
    for block in range(10, 16):
        release(policy, [block])
        use(policy, [1, 2])
    for block in range(20, 26):
        release(policy, [block])
    assert not {1, 2} & set(drain(policy)[:8])


def test_return_rate_keeps_a_rhythm_through_a_pause_of_a_beat() -> None:
    """Used every 11 releases, and away for 10 by now."""
    policy = led()
    release(policy, [1])
    fresh = iter(range(10, 1000))
    for _ in range(20):
        for _ in range(10):
            release(policy, [next(fresh)])
        use(policy, [1])
    for _ in range(10):
        release(policy, [next(fresh)])
    assert drain(policy).index(1) == 210


@pytest.mark.parametrize(("pause", "stays"), [(1, "quick"), (80, "slow")])
def test_return_rate_judges_a_pause_by_the_content_s_own_measure(pause: int, stays: str) -> None:
    """Of much content half is used every 20 times, half every 160, each 6 times. After a pause of
    80 the quick one of a pair, used more often so far, is late, and the slow one is not due."""
    policy, fresh = led(), iter(range(10, 100_000))
    due: dict[int, list[tuple[int, int, int]]] = {}

    def start(time: int, gap: int) -> None:
        block = next(fresh)
        release(policy, [block])
        due.setdefault(time + gap, []).append((block, gap, 6))

    def turn(time: int) -> None:
        for block, gap, left in due.pop(time, []):
            use(policy, [block])
            if left > 1:
                due.setdefault(time + gap, []).append((block, gap, left - 1))
            else:
                start(time, gap)
        release(policy, [next(fresh)])

    for n in range(10):
        start(2 * n, 20)
        start(2 * n + 1, 160)
    for time in range(20, 1500):
        turn(time)
    release(policy, [1])
    release(policy, [2])
    for time in range(1500, 2141):
        turn(time)
        for block, gap in ((2, 160), (1, 20)):
            if time % gap == 2140 % gap:
                use(policy, [block])
    for time in range(2141, 2141 + pause):
        turn(time)
    order = drain(policy)
    assert (order.index(1) > order.index(2)) == (stays == "quick")


def test_return_rate_knows_content_that_comes_back_after_eviction() -> None:
    policy = led()
    release(policy, [1])
    for block in range(10, 20):
        release(policy, [block])
    policy.remove(1)  # lost its key, as by an eviction
    release(policy, [1])
    assert drain(policy)[-1] == 1


def test_memory_is_bounded_by_the_pool() -> None:
    memory: KeyMemory[int] = KeyMemory(times=2, floor=3)
    for n in range(10):
        memory.note(key(n), n)
    assert [n for n in range(10) if key(n) in memory] == [7, 8, 9]
    memory.note(key(10), 10, blocks=4)
    for n in range(11, 30):
        memory.note(key(n), n)
    assert len(memory) == 8
    assert memory.get(key(22)) == 22
    assert memory.get(key(21)) is None
