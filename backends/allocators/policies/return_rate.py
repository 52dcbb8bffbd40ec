"""Our best: the block goes from which the fewest returns per unit of time are to be expected."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict

from pagedattn.backends.allocators.policies.chain import ChainPolicy, Order
from pagedattn.backends.allocators.policies.history import History
from pagedattn.backends.allocators.policies.referee import Referee

__all__ = ["ReturnRate", "expected_rate"]


def expected_rate(count: int, span: float, age: float, gap: float) -> float:
    """Returns per unit of time to expect of content used `count` times within `span`, the last
    time `age` ago, where first returns take `gap` on average.

    The model: content returns at a rate of its own until, after one of its uses, it is dropped
    for good. `count` uses, none of them the last but perhaps the latest, give

        rate     (count - 1/2) / (span + gap)
        dropped  1 / (count + 1) after the latest use     (rule of succession)
        alive    1 / (1 + exp(rate * age) / count)        (Bayes: no return for `age`)

    and the answer is rate * alive. It falls with age, sooner the higher the rate: a pause is long
    or short by the content's own measure.
    """
    rate = (count - 0.5) / (span + gap)
    return rate / (1.0 + math.exp(min(rate * age, 700.0)) / count)


class ReturnRate(ChainPolicy):
    """Keeps the blocks with the highest expected_rate(), while that finds more than LRU.

    Time is counted in released blocks and nothing is tuned to a workload: the one scale of the
    model, how long first returns take, is observed. What is known of a key outlives its eviction
    (history.py), so that a conversation that lost its blocks is known when it returns. Where use
    is a matter of recency alone LRU is better; which of the two to follow is found by replaying
    both on paper (referee.py).

    add, remove and hit are O(1). pop compares the oldest block of each class of blocks with
    similar histories; there are at most a few hundred classes however many blocks, and they are
    ranked anew once per so many evictions that it costs O(1) each, amortised.
    """

    name = "return-rate"

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self.referee = Referee(_Model(self.history))

    def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
        super().add(block, key=key, depth=depth, priority=priority)
        self.referee.meet(key, depth, found=self.history.found, blocks=len(self))

    def hit(self, key: bytes) -> None:
        self.history.hit(key)

    def clear(self) -> None:
        super().clear()
        self.history = History()
        self.referee = Referee(_Model(self.history))

    def _order(self) -> Order:
        return _Led(self.history, self.referee)


class _Model(ChainPolicy):
    """The model alone, told of releases that the history knows already."""

    name = "return-rate on paper"

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def _order(self) -> Order:
        return _ByRate(self._history)


# Blocks with similar histories: block -> (count, span, last), oldest first.
_Members = OrderedDict[int, tuple[int, int, int]]


class _ByRate(Order):
    """Lowest expected rate first, by classes."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._members_of: OrderedDict[int, _Members] = OrderedDict()  # oldest first
        self._classes: dict[tuple[int, int], _Members] = {}
        # A heap of (score of the oldest member when last looked at, name), one of each class.
        # A score that has risen since, because that member left, is seen when it comes up;
        # one that has fallen with age when all are ranked anew.
        self._ranking: list[tuple[float, tuple[int, int]]] = []
        self._due = 0  # evictions until then

    def add(self, block: int, key: bytes, depth: int, head: int) -> None:
        uses = self._history.uses(key)
        span = uses.last - uses.first
        # Exact to 3 uses, then two grades an octave; one grade an octave of the span.
        grade = uses.count if uses.count < 4 else (uses.count * uses.count).bit_length()
        name = (grade, span.bit_length())
        members = self._classes.get(name)
        if members is None:
            members = self._classes[name] = OrderedDict()
            members[block] = (uses.count, span, uses.last)
            heapq.heappush(self._ranking, (self._score(members), name))
        else:
            members[block] = (uses.count, span, uses.last)
        self._members_of[block] = members

    def remove(self, block: int, *, evicted: bool) -> None:
        del self._members_of.pop(block)[block]

    def peek(self) -> int:
        if self._due <= 0:
            self._rank_all()
        self._due -= 1
        while True:
            score, name = self._ranking[0]
            members = self._classes[name]
            if not members:
                heapq.heappop(self._ranking)
                del self._classes[name]
                continue
            now = self._score(members)
            if now <= score:
                return next(iter(members))
            heapq.heapreplace(self._ranking, (now, name))

    def _rank_all(self) -> None:
        self._classes = {name: members for name, members in self._classes.items() if members}
        self._ranking = [(self._score(members), name) for name, members in self._classes.items()]
        heapq.heapify(self._ranking)
        # Not later than a part of the pool has gone, else as many evictions as there are classes.
        self._due = max(1, min(len(self._classes), len(self._members_of) // 16))

    def _score(self, members: _Members) -> float:
        """Of the oldest member."""
        count, span, last = next(iter(members.values()))
        return expected_rate(count, span, self._history.now - last, self._history.gap)


class _Led(_ByRate):
    """As the referee says: by expected rate or by age."""

    def __init__(self, history: History, referee: Referee) -> None:
        super().__init__(history)
        self._referee = referee

    def add(self, block: int, key: bytes, depth: int, head: int) -> None:
        self._history.release(key, len(self._members_of) + 1)
        super().add(block, key, depth, head)

    def peek(self) -> int:
        return super().peek() if self._referee.model_leads else next(iter(self._members_of))
