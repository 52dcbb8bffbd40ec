"""What the return-rate policy learns, and the referee that decides whether it is followed."""

from __future__ import annotations

import math

import pytest

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.policies.history import History, Release
from pagedattn.backends.allocators.policies.referee import Referee
from pagedattn.backends.allocators.policies.return_rate import ReturnRate
from pagedattn.backends.allocators.policies.returns import STEP, Cell, Returns


def key(n: int) -> bytes:
    return n.to_bytes(4, "little")


def release(history: History, *keys: int) -> Release:
    """A release of these keys, first block to last, that ends at once."""
    for depth in range(len(keys) - 1, -1, -1):
        history.add(key(keys[depth]), depth)
    ended = history.end(len(keys))
    assert ended is not None
    return ended


# -- chance --------------------------------------------------------------------------------------


def test_probability_by_hand() -> None:
    everything = Cell(None)
    part = Cell(everything)
    part.count(6, 3)
    Cell(everything).count(4, 0)
    # All: (3 + 2/2) / (10 + 2) = 1/3. The part: (3 + 2/3) / (6 + 2).
    assert everything.probability(2) == pytest.approx(1 / 3)
    assert part.probability(2) == pytest.approx(11 / 24)


def test_cells_tell_uses_ends_and_new_blocks_apart() -> None:
    returns = Returns()
    cell = returns.cell(1, ends=False, fresh=4)
    assert returns.cell(1, ends=False, fresh=7) is cell
    assert returns.cell(1, ends=False, fresh=8) is not cell
    assert returns.cell(2, ends=False, fresh=4) is not cell
    last = returns.cell(1, ends=True, fresh=4)
    assert last is not cell
    assert last.parent is not None
    assert cell.parent is not None
    assert last.parent.parent is cell.parent.parent


# -- scale and shape -----------------------------------------------------------------------------


def test_scale_mixes_own_gaps_with_the_mean_first_one() -> None:
    """First gaps of 8 and of 32, second ones of 16 and 64 or the like: within a content log2 of a
    gap varies by 1/2 (half the mean square of +-1), all in all by 1; so much is between contents,
    and the mean first gap of 16 counts for one gap."""
    returns = Returns()
    cell = returns.cell(1, ends=False, fresh=1)
    for n in range(4000):
        first = 3.0 if n % 2 else 5.0
        returns.returned(cell, 0, first, uses=1, logs=0.0)
        returns.returned(cell, 0, first + (1 if n % 4 < 2 else -1), uses=2, logs=first)
    returns.released(1)
    # Own gaps 128 and 32, and 16 once: 2 ** ((7 + 5 + 4) / 3).
    assert returns.grades(cell, 3, 7.0 + 5.0)[1] == round(STEP * 16 / 3)
    assert returns.grades(cell, 1, 0.0)[1] == 4 * STEP


def test_worth_of_a_memoryless_return_is_its_rate() -> None:
    """Gaps exponential with mean 64, as is assumed at first: content that surely returns is worth
    1 / 64 at any age; with an even chance half of that at once, and less when it stays away."""
    returns = Returns()
    scale = 6 * STEP
    for age in (1, 20, 60):
        assert returns.worth(16, scale, age) == pytest.approx(1 / 64, rel=0.05)
    worths = [returns.worth(0, scale, age) for age in (1, 64, 128, 192)]
    assert worths[0] == pytest.approx(1 / 128, rel=0.05)
    for age, worth in zip((1, 64, 128, 192), worths, strict=True):
        assert worth == pytest.approx(1 / 64 / (1 + math.exp(age / 64)), rel=0.25)


def test_worth_doubles_with_half_the_scale() -> None:
    returns = Returns()
    assert returns.worth(4, 20, 40) == pytest.approx(2 * returns.worth(4, 20 + STEP, 80))


def test_content_with_a_rhythm_is_worth_most_just_before_its_time() -> None:
    returns = Returns()
    cell = returns.cell(1, ends=False, fresh=1)
    for _ in range(1000):
        cell.count(1, 0)
        returns.returned(cell, 6 * STEP, 6.0, uses=3, logs=12.0)
        returns.released(1)
    early, late, over = (returns.worth(16, 6 * STEP, age) for age in (4, 60, 200))
    assert early == pytest.approx(1 / 64, rel=0.2)
    assert late > 3.5 * early
    assert over < early


def test_counts_are_forgotten_by_halves() -> None:
    returns = Returns()
    cell = returns.cell(1, ends=False, fresh=1)
    cell.count((1 << 18) + 2, 1 << 17)
    returns.released(1)
    assert (cell.used, cell.returned) == ((1 << 17) + 1, 1 << 16)


# -- history -------------------------------------------------------------------------------------


def test_history_counts_a_use_once_and_measures_gaps() -> None:
    history = History()
    release(history, 1)  # time 1
    for _ in range(7):
        release(history, 2)
    history.hit(key(1))  # used at time 9
    record = history.record(key(1))
    assert (record.count, record.last, record.logs, record.found) == (2, 9, 3.0, True)
    assert release(history, 1).found == 1
    assert (record.count, record.last, record.found) == (2, 9, False)
    # Key 2 was computed anew six times, each one release after the one before.
    record = history.record(key(2))
    assert (record.count, record.last, record.logs) == (7, 8, 0.0)


def test_history_credits_the_cell_of_the_last_release_once() -> None:
    history = History()
    release(history, 1, 2, 3)
    cell = history.record(key(1)).cell
    assert cell is not None
    assert (cell.used, cell.returned) == (2, 0)  # of key 3, the end, one of its own
    history.hit(key(1))
    history.hit(key(1))  # by a second sequence, before the first one closes
    assert (cell.used, cell.returned) == (2, 1)
    assert history.record(key(1)).count == 3
    assert history.record(key(1)).cell is None


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


def test_policy_learns_that_new_ends_do_not_return() -> None:
    """Four conversations in turn, the last block of each request being its own: these go first,
    the young ones too."""
    policy = ReturnRate()
    policy.referee.model_leads = True
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


def test_referee_follows_the_model_when_it_finds_more_and_leaves_it_when_less() -> None:
    """Four documents in turn do not fit LRU's pool of three; keeping the older ones finds some.
    Pairs that alternate are found by LRU only."""
    referee = Referee(Newest())

    def judge(n: int, *, found: int, blocks: int) -> None:
        ended = Release()
        ended.keys, ended.depth, ended.found = {key(n): None}, 0, found
        referee.judge(ended, blocks=blocks)

    for turn in range(400):
        judge(turn % 4, found=1, blocks=min(turn + 1, 3))
    assert referee.model_leads
    for turn in range(40):
        judge(1000 + turn // 4 * 2 + turn % 2, found=0, blocks=3)
    assert not referee.model_leads
