"""Our best: the block goes that is worth least, by what is learned of returns."""

from __future__ import annotations

import heapq
from collections import OrderedDict

from pagedattn.backends.allocators.policies.chain import ChainPolicy, Order
from pagedattn.backends.allocators.policies.history import History
from pagedattn.backends.allocators.policies.referee import Referee

__all__ = ["ReturnRate"]


class ReturnRate(ChainPolicy):
    """Keeps the blocks with the most expected returns per unit of time, while that finds more
    than LRU.

    Time is counted in releases and nothing is tuned to a workload: how likely content returns,
    how long it takes and how that varies is learned from the requests (returns.py). What is known
    of a key outlives its eviction (history.py), so that a conversation that lost its blocks is
    known when it returns. Where use is a matter of recency alone LRU is better; which of the two
    to follow is found by replaying both on paper (referee.py).

    add, remove and hit are O(1), amortised over a release. pop compares the ends of classes of
    blocks with equal grades of chance and scale; there are at most a few hundred however many
    blocks, and they are ranked anew once per so many evictions that it costs O(1) each, amortised.
    """

    name = "return-rate"

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self.referee = Referee(_Model(self.history))

    def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
        if not self.history.continues(depth):
            self._settle()
        super().add(block, key=key, depth=depth, priority=priority)
        self.history.add(key, depth)

    def hit(self, key: bytes) -> None:
        self._settle()
        self.history.hit(key)

    def pop(self) -> int:
        self._settle()
        return super().pop()

    def clear(self) -> None:
        super().clear()
        self.history = History()
        self.referee = Referee(_Model(self.history))

    def _settle(self) -> None:
        """Learn from the release that has ended, if there is one."""
        release = self.history.end(len(self))
        if release is not None:
            self.referee.judge(release, blocks=len(self))

    def _order(self) -> Order:
        return _Led(self.history, self.referee)


class _Model(ChainPolicy):
    """The model alone, told of releases that the history knows already."""

    name = "return-rate on paper"

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def _order(self) -> Order:
        return _ByWorth(self._history)


# Blocks of equal grades: block -> time of its last use, oldest first.
_Members = OrderedDict[int, int]


class _ByWorth(Order):
    """Lowest worth first, by classes of equal odds and scale."""

    def __init__(self, history: History) -> None:
        self._history = history
        # Oldest first. None: not in a class yet, because its release has not ended.
        self._members_of: OrderedDict[int, _Members | None] = OrderedDict()
        self._new: dict[int, bytes] = {}
        self._time = 0  # at which these came
        self._classes: dict[tuple[int, int], _Members] = {}
        # A heap of (worth of a class when last looked at, name), one of each class. A worth that
        # has risen since is seen when it comes up; one that has fallen when all are ranked anew.
        self._ranking: list[tuple[float, tuple[int, int]]] = []
        self._due = 0  # evictions until then

    def add(self, block: int, key: bytes, depth: int, head: int) -> None:
        if self._time != self._history.now:
            self._classify()
            self._time = self._history.now
        self._members_of[block] = None
        self._new[block] = key

    def remove(self, block: int, *, evicted: bool) -> None:
        members = self._members_of.pop(block)
        if members is None:
            del self._new[block]
        else:
            del members[block]

    def peek(self) -> int:
        self._classify()
        if self._due <= 0:
            self._rank_all()
        self._due -= 1
        while True:
            known, name = self._ranking[0]
            members = self._classes[name]
            if not members:
                heapq.heappop(self._ranking)
                del self._classes[name]
                continue
            worth, block = self._least(name, members)
            if worth <= known:
                return block
            heapq.heapreplace(self._ranking, (worth, name))

    def _classify(self) -> None:
        """Every block that is new belongs to a release that has ended by now."""
        for block, key in self._new.items():
            record = self._history.record(key)
            name = record.odds, record.scale
            members = self._classes.get(name)
            if members is None:
                members = self._classes[name] = OrderedDict()
                members[block] = record.last
                heapq.heappush(self._ranking, (self._least(name, members)[0], name))
            else:
                members[block] = record.last
            self._members_of[block] = members
        self._new.clear()

    def _rank_all(self) -> None:
        self._classes = {name: members for name, members in self._classes.items() if members}
        self._ranking = [
            (self._least(name, members)[0], name) for name, members in self._classes.items()
        ]
        heapq.heapify(self._ranking)
        # Not later than a part of the pool has gone, else as many evictions as there are classes.
        self._due = max(1, min(len(self._classes), len(self._members_of) // 16))

    def _least(self, name: tuple[int, int], members: _Members) -> tuple[float, int]:
        """Least worth of a class and a block that has it. Worth rises and then falls with age, so
        that it is least at an end."""
        odds, scale = name
        worth, now = self._history.returns.worth, self._history.now + 1
        oldest, newest = next(iter(members)), next(reversed(members))
        old = worth(odds, scale, now - members[oldest])
        if members[newest] == members[oldest]:
            return old, oldest
        new = worth(odds, scale, now - members[newest])
        return (old, oldest) if old <= new else (new, newest)


class _Led(_ByWorth):
    """As the referee says: by worth or by age."""

    def __init__(self, history: History, referee: Referee) -> None:
        super().__init__(history)
        self._referee = referee

    def peek(self) -> int:
        if self._referee.model_leads:
            return super().peek()
        self._classify()
        return next(iter(self._members_of))
