"""Policies that rank a block once, when it is released: a heap of ranks."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Callable

from pagedattn.backends.allocators.policies.chain import ChainPolicy, Order

__all__ = ["ScoredPolicy"]


class ScoredPolicy(ChainPolicy):
    """Evicts the lowest rank first, of equal ranks the block released first. O(log n) a call."""

    @abstractmethod
    def _rank(self, block: int, key: bytes, depth: int, head: int) -> float:
        """Rank of a block that is being released; `head` as in Order.add()."""

    def _left(self, block: int, rank: float, *, evicted: bool) -> None:
        """`block` of that rank was evicted, or is owned again."""

    def _order(self) -> Order:
        return _Heap(self._rank, self._left)


class _Heap(Order):
    """(rank, serial, block), lazily cleaned: an entry is stale unless `_entries` has it."""

    def __init__(
        self, rank: Callable[[int, bytes, int, int], float], left: Callable[..., None]
    ) -> None:
        self._rank, self._left = rank, left
        self._heap: list[tuple[float, int, int]] = []
        self._entries: dict[int, tuple[float, int, int]] = {}
        self._serial = 0

    def add(self, block: int, key: bytes, depth: int, head: int) -> None:
        self._serial += 1
        entry = (self._rank(block, key, depth, head), self._serial, block)
        self._entries[block] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + 16:
            self._heap = sorted(self._entries.values())

    def remove(self, block: int, *, evicted: bool) -> None:
        self._left(block, self._entries.pop(block)[0], evicted=evicted)

    def peek(self) -> int:
        while self._entries.get(self._heap[0][2]) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0][2]
