"""Eviction policies: what each evicts, the rules all share, what they cost, and against LRU."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import pytest

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.lru import LRU
from pagedattn.backends.allocators.paged import PagedAllocator
from pagedattn.backends.allocators.policies.cost import Cost
from pagedattn.backends.allocators.policies.fifo import FIFO
from pagedattn.backends.allocators.policies.lfu import LFU
from pagedattn.backends.allocators.policies.memory import KeyMemory
from pagedattn.backends.allocators.policies.return_rate import ReturnRate
from pagedattn.backends.allocators.policies.s3fifo import S3FIFO
from pagedattn.benchmarks.audit.optimum import optimal_hits
from pagedattn.benchmarks.audit.prefix import prefix_hits

POLICIES: list[type[EvictionPolicy]] = [LRU, FIFO, LFU, S3FIFO, Cost, ReturnRate]
Trace = list[list[int]]

every_policy = pytest.mark.parametrize("make", POLICIES, ids=lambda make: make.name)


def key(n: int) -> bytes:
    return n.to_bytes(4, "little")


def release(policy: EvictionPolicy, blocks: Sequence[int], *, priority: int = 0) -> None:
    """Blocks of one sequence, first to last; the key of a block is its number."""
    for depth in range(len(blocks) - 1, -1, -1):
        block = blocks[depth]
        policy.add(block, key=key(block), depth=depth, priority=priority)


def use(policy: EvictionPolicy, blocks: Sequence[int]) -> None:
    """The blocks are found by a sequence that computes nothing and closes at once."""
    for block in blocks:
        policy.hit(key(block))
        policy.remove(block)
    release(policy, blocks)


def drain(policy: EvictionPolicy) -> list[int]:
    return [policy.pop() for _ in range(len(policy))]


# -- rules that all share ----------------------------------------------------------------------


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


# -- each by itself ----------------------------------------------------------------------------


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


@pytest.mark.parametrize(("pause", "kept"), [(10, True), (600, False)])
def test_return_rate_judges_a_pause_by_the_content_s_own_measure(pause: int, kept: bool) -> None:
    """Used every 11 releases: a pause of as much is nothing, one of 600 is the end."""
    policy = led()
    release(policy, [1])
    fresh = iter(range(10, 1000))
    for _ in range(20):
        for _ in range(10):
            release(policy, [next(fresh)])
        use(policy, [1])
    for _ in range(pause):
        release(policy, [next(fresh)])
    place = drain(policy).index(1)
    assert place == 200 + pause if kept else place < 300


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


# -- cost of an operation ----------------------------------------------------------------------


def calls(function: Callable[[], None]) -> int:
    """Calls of functions, Python's and built-in, that `function` makes."""
    count = 0

    def see(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


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


def void(value: object) -> None:
    """Discard."""


# -- traces ------------------------------------------------------------------------------------


def chats(seed: int, *, requests: int = 500, active: int = 120, turns: float = 2.5) -> Trace:
    """Conversations on one system prompt that return in any order, and grow."""
    rng, talks, trace, fresh = random.Random(seed), list[list[int]](), Trace(), 100
    for _ in range(requests):
        grow = rng.randint(1, 4)
        if talks and rng.random() < 1 - 1 / turns:
            n = rng.randrange(len(talks))
        else:
            talks.append([0, 1])
            n, grow = len(talks) - 1, rng.randint(2, 12)
        talks[n] = [*talks[n], *range(fresh, fresh + grow)]
        fresh += grow
        trace.append(talks[n])
        if len(talks) > active:
            talks.pop(rng.randrange(len(talks)))
    return trace


def latest(seed: int) -> Trace:
    """Only the conversations that spoke last speak again: nothing beats LRU by much."""
    rng, talks, trace, fresh = random.Random(seed), list[list[int]](), Trace(), 100
    for _ in range(500):
        back = int(rng.expovariate(1 / 15))
        talk = talks.pop(max(0, len(talks) - 1 - back)) if talks and rng.random() < 0.7 else []
        grow = rng.randint(1, 4) if talk else rng.randint(2, 12)
        talks.append([*talk, *range(fresh, fresh + grow)])
        fresh += grow
        trace.append(talks[-1])
    return trace


def documents(seed: int) -> Trace:
    """Popular documents, each with a question of its own."""
    rng, trace, fresh = random.Random(seed), Trace(), 10_000
    for _ in range(600):
        document = min(int(rng.paretovariate(0.9)), 200)
        trace.append([*range(document * 8, document * 8 + 8), *range(fresh, fresh + 6)])
        fresh += 6
    return trace


def uneven(seed: int) -> Trace:
    """Conversations some of which speak far more often than others, among single questions."""
    rng, trace, fresh = random.Random(seed), Trace(), 10_000
    often = [rng.paretovariate(0.7) for _ in range(60)]
    talks = [list(range(n * 100, n * 100 + 8)) for n in range(60)]
    for _ in range(800):
        if rng.random() < 0.5:
            trace.append(list(range(fresh, fresh + 8)))
            fresh += 8
        else:
            n = rng.choices(range(60), often)[0]
            trace.append(talks[n])
            if len(talks[n]) < 20:
                talks[n] = [*talks[n], talks[n][-1] + 1]
    return trace


def turncoat(seed: int) -> Trace:
    """Popular documents that are dropped for good every 150 requests."""
    rng, trace = random.Random(seed), Trace()
    for n in range(600):
        document = n // 150 * 100 + min(int(rng.paretovariate(0.9)), 60)
        trace.append(list(range(document * 8, document * 8 + 8)))
    return trace


def loop(seed: int) -> Trace:
    return [list(range(n % 30 * 8, n % 30 * 8 + 8)) for n in range(400)]


GENERATORS: list[Callable[[int], Trace]] = [chats, latest, uneven, documents, loop]


def served(trace: Trace, blocks: int) -> Trace:
    return [chain for chain in trace if len(chain) <= blocks]


def hits(make: Callable[[], EvictionPolicy], trace: Trace, blocks: int) -> int:
    allocator = PagedAllocator(num_blocks=blocks, block_size=1, policy=make())
    found = prefix_hits(allocator, trace)
    assert allocator.check() == []
    return found


@pytest.mark.parametrize("generate", [uneven, documents], ids=lambda generate: generate.__name__)
def test_return_rate_beats_lru_where_use_is_uneven(generate: Callable[[int], Trace]) -> None:
    trace = generate(11)
    assert hits(ReturnRate, trace, 80) > 1.05 * hits(LRU, trace, 80)


@pytest.mark.parametrize("generate", GENERATORS, ids=lambda generate: generate.__name__)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("blocks", [50, 150, 450])
def test_return_rate_is_never_below_lru(
    generate: Callable[[int], Trace], seed: int, blocks: int
) -> None:
    trace = served(generate(seed), blocks)
    assert hits(ReturnRate, trace, blocks) >= hits(LRU, trace, blocks)


@pytest.mark.parametrize("seed", range(1, 9))
def test_return_rate_loses_next_to_nothing_when_the_popular_change(seed: int) -> None:
    """What proved itself may cease to hold at once; no online policy can know."""
    trace = turncoat(seed)
    assert hits(ReturnRate, trace, 50) >= 0.99 * hits(LRU, trace, 50)


@every_policy
def test_nothing_beats_the_optimum_and_all_are_equal_when_everything_fits(
    make: Callable[[], EvictionPolicy],
) -> None:
    trace = served(chats(21, requests=200), 60)
    everything = len({block for chain in trace for block in chain})
    assert hits(make, trace, 60) <= optimal_hits(trace, 60)
    assert hits(make, trace, everything) == optimal_hits(trace, everything)


# -- the optimum -------------------------------------------------------------------------------


def test_optimum_by_hand() -> None:
    # Of 1, 2, 3 only two can stay: 1 and 2 return first, 3 last.
    assert optimal_hits([[1], [2], [3], [1], [2], [3]], 2) == 2
    # Chains: the tail 3 is used again last, its ancestors stay.
    assert optimal_hits([[1, 2, 3], [1, 2, 4], [1, 2, 3]], 3) == 5
    assert optimal_hits([[1, 2, 3], [1, 2, 4], [1, 2, 3]], 2) == 0  # none of these is served
    assert optimal_hits([], 1) == 0


def test_optimum_equals_exhaustive_search() -> None:
    rng = random.Random(9)
    for _ in range(60):
        trace = [_random_chain(rng) for _ in range(6)]
        for capacity in (1, 2, 3, 4):
            assert optimal_hits(trace, capacity) == _best(served(trace, capacity), capacity)


def _random_chain(rng: random.Random) -> list[int]:
    """A path from the root of a binary tree of depth 3; a node's id tells its ancestors."""
    node, chain = 1, list[int]()
    for _ in range(rng.randint(1, 3)):
        node = 2 * node + rng.randrange(2)
        chain.append(node)
    return chain


def _best(trace: Trace, capacity: int) -> int:
    """Hits of the best of all ways to keep `capacity` of the blocks after each request."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for chain in trace:
        after: dict[frozenset[int], int] = {}
        for cached, found in states.items():
            lead = next((n for n, b in enumerate(chain) if b not in cached), len(chain))
            there = sorted(cached | set(chain))
            for mask in range(1 << len(there)):
                if mask.bit_count() <= capacity:
                    kept = frozenset(b for n, b in enumerate(there) if mask >> n & 1)
                    after[kept] = max(after.get(kept, 0), found + lead)
        states = after
    return max(states.values())


def test_optimum_refuses_a_cache_without_blocks() -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        optimal_hits([[1]], 0)
