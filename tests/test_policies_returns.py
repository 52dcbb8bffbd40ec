"""What the return-rate policy learns, and the referee that decides whether it is followed."""

from __future__ import annotations

import math
import random

import pytest
from policy_tools import calls, drain, key, release as released, use, void

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.lru import LRU
from pagedattn.backends.allocators.paged import PagedAllocator
from pagedattn.backends.allocators.policies import gittins
from pagedattn.backends.allocators.policies.hazards import Hazards
from pagedattn.backends.allocators.policies.history import History, Release, lower_grade
from pagedattn.backends.allocators.policies.referee import Referee
from pagedattn.backends.allocators.policies.return_rate import ReturnRate
from pagedattn.benchmarks.audit.prefix import prefix_hits

BINS = len(gittins.EDGES)


def release(history: History, *keys: int) -> Release:
    """A release of these keys, first block to last, that ends at once."""
    for depth in range(len(keys) - 1, -1, -1):
        history.add(key(keys[depth]), depth)
    ended = history.end(len(keys))
    assert ended is not None
    return ended


# -- Gittins' index ------------------------------------------------------------------------------


def test_bins_by_hand() -> None:
    assert gittins.EDGES[:4] == pytest.approx([0, 4, 4 * math.sqrt(2), 8])
    assert [gittins.bin_of(age) for age in (0, 3, 4, 5, 6, 8, 1 << 15, 1 << 20)] == [
        *(0, 0, 1, 1, 2, 3),
        *(BINS - 1, BINS - 1),
    ]
    assert sum(gittins.WIDTHS[:-1]) == pytest.approx(gittins.EDGES[-1])


def test_index_of_a_constant_hazard_is_the_hazard() -> None:
    assert gittins.index([0.01] * BINS) == pytest.approx([0.01] * BINS)


def test_index_of_a_falling_hazard_is_the_hazard_of_the_bin() -> None:
    hazard = [0.5 / (b + 1) for b in range(BINS)]
    assert gittins.index(hazard) == pytest.approx(hazard)


def test_index_by_hand_of_a_rhythm() -> None:
    """Nothing returns before age 4, then at 0.1 until 4 * sqrt(2), then never: held to there, the
    time is 4 and what is lived through of the bin."""
    hazard = [0.0, 0.1] + [0.0] * (BINS - 2)
    back = 1 - math.exp(-0.1 * (4 * math.sqrt(2) - 4))
    worth = gittins.index(hazard)
    assert worth[0] == pytest.approx(back / (4 + back / 0.1))
    assert worth[1] == pytest.approx(0.1)
    assert worth[2:] == [0.0] * (BINS - 2)


# -- hazards -------------------------------------------------------------------------------------


def no_lower(place: int, grade: int) -> int:
    return -1


def test_factors_are_recovered_from_made_up_data() -> None:
    """Two traits, factors 1 : 4 and 1 : 3; unequal numbers of each combination, so that a ratio of
    either alone would be that of the other in part. The young return at 0.01 and less."""
    hazards, rng = Hazards(no_lower), random.Random(3)
    width = gittins.WIDTHS[0]
    for _ in range(40_000):
        a = int(rng.random() < 0.5)
        b = int(rng.random() < (0.8 if a else 0.2))
        rate = 0.01 * 4**a * 3**b
        age = rng.expovariate(rate)
        hazards.sampled(1.0)
        hazards.lived((a, b), 0, 1.0, min(age, width))
        if age < width:
            hazards.returned((a, b), 0, 1.0)
        hazards.tick()
    h = {(a, b): hazards.profile((a, b)).hazard[0] for a in (0, 1) for b in (0, 1)}
    for (a, b), found in h.items():
        assert found == pytest.approx(0.01 * 4**a * 3**b, rel=0.15)


def test_traits_that_mean_nothing_make_no_difference() -> None:
    """The same rate for both: what is left is what was thought before the rate was known."""
    hazards = Hazards(no_lower)
    for n in range(4000):
        trait = (n % 2,)
        hazards.sampled(1.0)
        hazards.lived(trait, 0, 1.0, 4.0)
        if n % 40 < 2:
            hazards.returned(trait, 0, 1.0)
        hazards.tick()
    assert hazards.profile((0,)).hazard == pytest.approx(hazards.profile((1,)).hazard, rel=0.01)


def test_grades_never_seen_are_like_the_next_lower_one() -> None:
    hazards = Hazards(lambda place, grade: grade - 1)
    for n in range(4000):
        trait = (n % 2,)
        hazards.sampled(1.0)
        hazards.lived(trait, 0, 1.0, 4.0)
        if n % 2 or n % 20 == 0:
            hazards.returned(trait, 0, 1.0)
        hazards.tick()
    low, seen, unseen = (hazards.profile((grade,)).hazard for grade in range(3))
    assert seen[0] > 5 * low[0]
    assert unseen[1:] == pytest.approx(seen[1:], rel=0.2)


def test_effects_by_hand() -> None:
    """8 seen where 2 were expected, 4 of each counted more: 12 / 6, less the deviation of 9, which
    is 3 of 13; one seen where none was expected tells nothing."""
    hazards = Hazards(no_lower)
    assert hazards._effect(8, 2, 4) == pytest.approx(2 * math.exp(-3 / 13))
    assert hazards._effect(2, 8, 4) == pytest.approx(1 / 2 * math.exp(3 / 13))
    assert hazards._effect(5, 4, 4) == 1.0
    assert hazards._effect(1, 0, 4) == 1.0


def test_what_was_worked_out_is_renewed_piece_by_piece() -> None:
    """After 800 releases it is used for 50 more, each trait from when it was asked for."""
    hazards = Hazards(no_lower)
    for _ in range(800):
        hazards.tick()
    first = hazards.profile((0, 0))
    for _ in range(25):
        hazards.tick()
    second = hazards.profile((1, 1))
    for _ in range(30):
        hazards.tick()
    assert hazards.profile((0, 0)) is not first
    assert hazards.profile((1, 1)) is second


def test_a_grade_far_up_is_worked_out_without_those_below() -> None:
    """Of these only the factor over all ages is needed: a few calls each."""
    hazards = Hazards(lambda place, grade: grade - 1)
    for grade in range(25):
        for b in range(BINS):
            hazards.lived((grade,), b, 1.0, 1.0)
    for _ in range(9):
        hazards.tick()
    assert calls(lambda: void(hazards.profile((24,)).worth)) < 800


def test_counts_are_forgotten_by_halves() -> None:
    hazards = Hazards(no_lower)
    for _ in range((1 << 17) + 1):
        hazards.sampled(1.0)
    hazards.returned((0,), 3, 6.0)
    hazards.tick()
    cell, _ = hazards.profile((0,)).parts[0]
    assert cell.returned[3] == hazards._returned[3] == 3.0
    assert hazards._samples == ((1 << 17) + 1) / 2


def test_lower_grades() -> None:
    assert [lower_grade(1, grade) for grade in (0, 1, 2, 9)] == [-1, -1, 1, 8]
    assert [lower_grade(4, grade) for grade in (3, 5, 6, 17)] == [-1, -1, 3, 14]
    assert lower_grade(0, 3) == lower_grade(2, 3) == lower_grade(3, 3) == -1


# -- history -------------------------------------------------------------------------------------


def test_history_counts_a_use_once_and_measures_gaps() -> None:
    history = History()
    release(history, 1)  # time 1
    for _ in range(7):
        release(history, 2)
    history.hit(key(1))  # used at time 9
    assert release(history, 1).found == 1
    run = history.run(key(1))
    assert run is not None
    # Kind: the last, old. The second turn, 8 releases (4th grade) later, nothing new, two uses.
    assert run.traits == (2, 2, 4, 0, 3 * 2 + 2)
    assert (run.born, run.away, run.weight) == (9, 1, 1.0)
    again = history.run(key(2))  # computed anew six times, each one release after the one before
    assert again is not None
    assert (again.traits[1], again.traits[2]) == (5, 1)  # the seventh turn, of the grade of 7 and 8


def test_neighbours_with_equal_uses_are_one_run_and_the_last_is_its_own() -> None:
    history = History()
    release(history, 1, 2, 3, 4)
    assert history.run(key(1)) is history.run(key(3))
    assert history.run(key(4)) is not history.run(key(3))
    release(history, 1, 2, 5, 6, 7)
    runs = [history.run(key(n)) for n in (1, 2, 5, 6, 7)]
    assert runs[0] is runs[1]
    assert runs[2] is runs[3]
    assert len(set(runs)) == 3
    left = history.run(key(3))
    assert left is not None
    assert left.away == 1  # two of its three blocks went into another run
    assert left.weight == pytest.approx(1 / math.sqrt(3))


def test_a_run_is_worth_as_much_as_what_it_leads_to() -> None:
    history = History()
    for n in range(400):
        for block in (1, 2, 3) if n else ():
            history.hit(key(block))
        release(history, 1, 2, 3)
        release(history, 1000 + n)
    release(history, 5000, 1, 2, 3)
    head, tail = history.run(key(5000)), history.run(key(3))
    assert head is not None
    assert tail is not None
    assert head.worth >= tail.worth > 0


def test_a_release_ends_where_the_depth_does_not_go_on() -> None:
    history = History()
    history.add(key(1), 3)
    assert history.continues(2)
    assert not history.continues(3)
    ended = history.end(1)
    assert ended is not None
    assert (list(ended.keys), ended.depth, ended.found) == ([key(1)], 3, 0)
    assert not history.continues(2)
    assert history.end(1) is None
    assert history.now == 1


def test_memory_is_bounded() -> None:
    """Keys that never return: what is kept of them stops to grow, observed runs too."""
    history = History()

    def size() -> tuple[int, int]:
        return len(history._memory), sum(map(len, history._runs._calendar.values()))

    for n in range(70_000):
        release(history, n)
    assert size()[0] == 65_536
    assert size()[1] < 1.5 * 65_536  # forgotten ones leave when they would enter their next bin
    assert history.run(key(0)) is None
    assert history.run(key(69_999)) is not None


# -- the policy ----------------------------------------------------------------------------------


def followed() -> ReturnRate:
    """A policy that follows its model from the start, whatever it finds."""
    policy = ReturnRate()
    policy.referee.model_leads, policy.referee._lead = True, math.inf
    return policy


def test_policy_learns_that_new_ends_do_not_return() -> None:
    """Four conversations in turn, the last block of each request being its own: these go first,
    the young ones too."""
    policy = followed()
    ends = []
    for turn in range(200):
        talk = [turn % 4 * 10 + n for n in range(1, 4)]
        for block in talk if turn >= 4 else ():
            policy.hit(key(block))
            policy.remove(block)
        ends.append(1000 + turn)
        for depth, block in reversed(list(enumerate([*talk, ends[-1]]))):
            policy.add(block, key=key(block), depth=depth, priority=0)
    assert {policy.pop() for _ in ends} == set(ends)


def test_policy_finds_what_lru_misses_in_a_loop() -> None:
    chains = [list(range(n % 40 * 8, n % 40 * 8 + 8)) for n in range(3000)]

    def found(policy: LRU | ReturnRate) -> int:
        return prefix_hits(PagedAllocator(num_blocks=160, block_size=1, policy=policy), chains)

    assert found(LRU()) == 0
    assert found(ReturnRate()) > 0.15 * 3000 * 8


def test_same_calls_make_the_same_choices() -> None:
    def choices() -> list[int]:
        policy, rng, held, gone = ReturnRate(), random.Random(8), set[int](), list[int]()
        for _ in range(1500):
            talk = rng.randrange(60) * 10
            blocks = range(talk, talk + rng.randrange(1, 10))
            there = [block for block in blocks if block in held]
            for block in there:
                policy.hit(key(block))
                policy.remove(block)
            while len(held) > 200:
                gone.append(policy.pop())
                held.discard(gone[-1])
            released(policy, blocks)
            held.update(blocks)
        return gone

    first = choices()
    assert len(first) > 1000
    assert first == choices()


def test_blocks_come_back_with_other_keys_and_unknown_keys_are_harmless() -> None:
    policy = followed()
    released(policy, [1, 2, 3])
    policy.hit(b"unknown")
    policy.remove(2)
    policy.add(2, key=key(99), depth=0, priority=0)
    use(policy, [1])
    assert sorted(drain(policy)) == [1, 2, 3]


# -- the referee ---------------------------------------------------------------------------------


class Newest(EvictionPolicy):
    name = "newest"

    def __init__(self) -> None:
        self._blocks = set[int]()

    def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
        self._blocks.add(block)

    def remove(self, block: int) -> None:
        self._blocks.remove(block)

    def pop(self) -> int:
        block = max(self._blocks)
        self._blocks.remove(block)
        return block

    def __len__(self) -> int:
        return len(self._blocks)


def judge(referee: Referee, n: int, *, found: int, blocks: int) -> None:
    ended = Release()
    ended.keys, ended.depth, ended.found = {key(n): None}, 0, found
    referee.judge(ended, blocks=blocks)


def test_referee_follows_the_model_when_it_finds_more_and_leaves_it_when_less() -> None:
    """Four documents in turn do not fit LRU's pool of three; keeping the older ones finds some.
    Pairs that alternate are found by LRU only."""
    referee = Referee(Newest())
    for turn in range(400):
        judge(referee, turn % 4, found=1, blocks=min(turn + 1, 3))
    assert referee.model_leads
    for turn in range(40):
        judge(referee, 1000 + turn // 4 * 2 + turn % 2, found=0, blocks=3)
    assert not referee.model_leads


def test_referee_takes_no_small_lead_for_one() -> None:
    """The model finds one block in ten releases, LRU none: 100 are within chance, 200 are not,
    1.5 * sqrt(128 ** 2 + 195) being 193."""
    referee = Referee(Newest())
    followed_at = None
    for turn in range(2500):
        judge(referee, 0 if turn % 10 == 0 else 1000 + turn, found=0, blocks=min(turn + 1, 3))
        if referee.model_leads:
            followed_at = turn
            break
    assert followed_at is not None
    assert 1930 <= followed_at <= 2000


def test_referee_asks_for_more_after_a_loss() -> None:
    referee = Referee(Newest())
    for turn in range(400):
        judge(referee, turn % 4, found=1, blocks=min(turn + 1, 3))
    assert referee.model_leads
    referee._won = referee._best = 0
    judge(referee, 3, found=0, blocks=3)  # that LRU finds it too was lost
    assert not referee.model_leads
    assert (referee._proof, referee._lead) == (2.5, 0.0)


def test_referee_leaves_a_model_that_wins_on_paper_only() -> None:
    """The real pool finds nothing where LRU on paper would not either, and then less than it."""
    referee = Referee(Newest())
    for turn in range(400):
        judge(referee, turn % 4, found=1, blocks=min(turn + 1, 3))
    assert referee.model_leads
    left = None
    for turn in range(800):
        # One document over and over is found by both on paper.
        judge(referee, 3, found=0, blocks=3)
        if not referee.model_leads:
            left = turn
            break
    assert left is not None
