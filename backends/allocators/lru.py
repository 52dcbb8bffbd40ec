"""Least recently used: the reclaimable block whose last owner left first goes first."""

from __future__ import annotations

import heapq
from collections import OrderedDict

from pagedattn.allocator import EvictionPolicy

__all__ = ["LRU"]


class LRU(EvictionPolicy):
    """Lowest priority first; within one priority in the order of release.

    The allocator releases a sequence deepest block first, so that a long prefix loses its tail
    before its head. add and pop cost O(log p) for p distinct priorities, remove O(1).
    """

    name = "lru"

    def __init__(self) -> None:
        self._priority: dict[int, int] = {}
        self._queues: dict[int, OrderedDict[int, None]] = {}
        # Every priority with a queue is in the heap; entries without one are stale.
        self._heap: list[int] = []

    def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
        if block in self._priority:
            raise ValueError(f"block {block} was added twice without a remove() between")
        self._priority[block] = priority
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._start(priority)
        queue[block] = None

    def remove(self, block: int) -> None:
        priority = self._priority.pop(block)
        queue = self._queues[priority]
        del queue[block]
        if not queue:
            del self._queues[priority]

    def pop(self) -> int:
        if not self._priority:
            raise IndexError("no reclaimable block")
        while (queue := self._queues.get(self._heap[0])) is None:
            heapq.heappop(self._heap)
        block, _ = queue.popitem(last=False)
        del self._priority[block]
        if not queue:
            del self._queues[self._heap[0]]
        return block

    def __len__(self) -> int:
        return len(self._priority)

    def _start(self, priority: int) -> OrderedDict[int, None]:
        queue = self._queues[priority] = OrderedDict()
        heapq.heappush(self._heap, priority)
        if len(self._heap) > 2 * len(self._queues) + 16:
            self._heap = sorted(self._queues)
        return queue
