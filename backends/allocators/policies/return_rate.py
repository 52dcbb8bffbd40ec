"""Our best: the block goes that is worth least, by what is learned of returns."""

from __future__ import annotations

import heapq
from collections import OrderedDict

from pagedattn.backends.allocators.policies.chain import ChainPolicy, Order
from pagedattn.backends.allocators.policies.history import History
from pagedattn.backends.allocators.policies.referee import Referee
from pagedattn.backends.allocators.policies.runs import Run

__all__ = ["ReturnRate"]


class ReturnRate(ChainPolicy):
    """Keeps the blocks with the most expected returns per unit of time, while that finds more
    than LRU.

    Time is counted in releases. How the hazard of a return depends on age and on what a block is
    like is learned from the requests (hazards.py), by runs of blocks that were released together
    (runs.py); a run is worth its Gittins index at its age (gittins.py). What is known of a key
    outlives its eviction (history.py), so that a conversation that lost its blocks is known when
    it returns. Where use is a matter of recency alone LRU is better; which of the two to follow is
    found by replaying both on paper (referee.py).

    A call is O(log n), amortised over a release: a run enters the heap once for each bin of age, at
    most 28 times. No call does the work of many releases.
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


class _ByWorth(Order):
    """Lowest worth first: a heap of runs with blocks here, by (worth, release, serial). Entries of
    runs whose worth has changed, or that have gone, are stale; `_entry` has the others."""

    def __init__(self, history: History) -> None:
        self._history = history
        # Oldest first. None: not in a run yet, because its release has not ended.
        self._run_of: OrderedDict[int, Run | None] = OrderedDict()
        self._new: dict[int, bytes] = {}
        self._time = 0  # at which these came
        self._blocks: dict[Run, dict[int, None]] = {}
        self._heap: list[tuple[float, int, int, Run]] = []
        self._entry: dict[Run, tuple[float, int, int, Run]] = {}
        self._serial = 0

    def add(self, block: int, key: bytes, depth: int, head: int) -> None:
        if self._time != self._history.now:
            self._join_runs()
            self._time = self._history.now
        self._run_of[block] = None
        self._new[block] = key

    def remove(self, block: int, *, evicted: bool) -> None:
        run = self._run_of.pop(block)
        if run is None:
            del self._new[block]
            return
        blocks = self._blocks[run]
        del blocks[block]
        if not blocks:
            del self._blocks[run], self._entry[run]
            run.holders.remove(self)

    def peek(self) -> int:
        self._join_runs()
        while self._entry.get(self._heap[0][3]) is not self._heap[0]:
            heapq.heappop(self._heap)
        return next(iter(self._blocks[self._heap[0][3]]))

    def moved(self, run: Run) -> None:
        """The worth of a run with blocks here has changed."""
        self._serial += 1
        entry = self._entry[run] = (run.worth, run.born, self._serial, run)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entry) + 16:
            self._heap = sorted(self._entry.values())

    def _join_runs(self) -> None:
        """Every block that is new belongs to a release that has ended by now."""
        for block, key in self._new.items():
            run = self._history.run(key)
            if run is None:  # so long ago that its key is forgotten
                run = Run(key, (), self._history.now, 1, 0.0)
            self._run_of[block] = run
            blocks = self._blocks.get(run)
            if blocks is None:
                blocks = self._blocks[run] = {}
                run.holders.append(self)
                self.moved(run)
            blocks[block] = None
        self._new.clear()


class _Led(_ByWorth):
    """As the referee says: by worth or by age."""

    def __init__(self, history: History, referee: Referee) -> None:
        super().__init__(history)
        self._referee = referee

    def peek(self) -> int:
        if self._referee.model_leads:
            return super().peek()
        self._join_runs()
        return next(iter(self._run_of))
