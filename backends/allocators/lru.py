"""Least recently used: the reclaimable block whose last owner left first goes first."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

from pagedattn.allocator import EvictionPolicy

__all__ = ["LRU"]


class LRU(EvictionPolicy):
    """Lowest priority first; within one priority in the order of release.

    The allocator releases a sequence deepest block first, so that a long prefix loses its tail
    before its head. Blocks released together are one run, from whose end they are popped. A block
    that is owned again only loses its run: its entry there is stale, and is skipped or swept.
    All calls are O(1) a block, amortised, plus O(log p) for p distinct priorities.
    """

    name = "lru"

    def __init__(self) -> None:
        self._run_of: dict[int, list[int]] = {}
        self._queues: dict[int, deque[list[int]]] = {}  # by priority; the oldest run first
        self._heap: list[int] = []  # the priorities that have a queue
        self._entries = 0  # in all runs, stale ones too

    def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
        self._append([block], priority)

    def add_all(
        self, blocks: Sequence[int], *, priority: int, content: Callable[[int], tuple[bytes, int]]
    ) -> None:
        self._append(list(blocks[::-1]), priority)

    def remove(self, block: int) -> None:
        del self._run_of[block]

    def remove_all(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            del self._run_of[block]

    def pop(self) -> int:
        for block in self._take(1):
            return block
        raise IndexError("no reclaimable block")

    def pop_many(self, n: int) -> list[int]:
        return self._take(n)

    def __len__(self) -> int:
        return len(self._run_of)

    def _append(self, run: list[int], priority: int) -> None:
        if not self._run_of.keys().isdisjoint(run):
            block = next(block for block in run if block in self._run_of)
            raise ValueError(f"block {block} was added twice without a remove() between")
        self._run_of.update(dict.fromkeys(run, run))
        self._entries += len(run)
        if self._entries > 2 * len(self._run_of) + 16:
            self._sweep()
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = deque()
            heapq.heappush(self._heap, priority)
        queue.append(run)

    def _take(self, n: int) -> list[int]:
        """The next n blocks, or all when there are fewer."""
        found: list[int] = []
        run_of = self._run_of
        n = min(n, len(run_of))
        while len(found) < n:
            priority = self._heap[0]
            queue = self._queues[priority]
            while queue and len(found) < n:
                run = queue[0]
                part = run[len(found) - n :]
                del run[len(found) - n :]
                self._entries -= len(part)
                live = [block for block in reversed(part) if run_of.get(block) is run]
                for block in live:
                    del run_of[block]
                found += live
                if not run:
                    queue.popleft()
            if not queue:
                del self._queues[priority]
                heapq.heappop(self._heap)
        return found

    def _sweep(self) -> None:
        """Drop the stale entries: more than half of all are."""
        run_of = self._run_of
        for priority, queue in list(self._queues.items()):
            for run in queue:
                run[:] = [block for block in run if run_of.get(block) is run]
            self._queues[priority] = deque(run for run in queue if run)
            if not self._queues[priority]:
                del self._queues[priority]
        self._heap = sorted(self._queues)
        self._entries = len(run_of)
