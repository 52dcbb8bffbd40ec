"""Eviction policies on made-up traces, beside LRU and the optimum."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from policy_tools import Trace, every_policy

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.lru import LRU
from pagedattn.backends.allocators.paged import PagedAllocator
from pagedattn.backends.allocators.policies.return_rate import ReturnRate
from pagedattn.benchmarks.audit.optimum import optimal_hits
from pagedattn.benchmarks.audit.prefix import prefix_hits

# -- traces --------------------------------------------------------------------------------------


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


# -- the optimum ---------------------------------------------------------------------------------


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
