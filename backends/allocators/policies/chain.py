"""What every policy of this package shares: priorities, and the order within one release."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict

from pagedattn.allocator import EvictionPolicy

__all__ = ["ChainPolicy", "Order"]


class Order(ABC):
    """The reclaimable blocks of one priority in the order in which they should go."""

    @abstractmethod
    def add(self, block: int, key: bytes, depth: int, head: int) -> None:
        """`block` is reclaimable from now on. head: depth of the deepest block released with it."""

    @abstractmethod
    def remove(self, block: int, *, evicted: bool) -> None:
        """`block` goes: evicted, or owned again."""

    @abstractmethod
    def peek(self) -> int:
        """The block that should go next; there is one."""


class ChainPolicy(EvictionPolicy):
    """Lowest priority first; within it as its Order says, but a release loses its tail first.

    A block can be found only through its ancestors, so that a chain that loses an ancestor keeps
    its descendants in vain. Whatever block an Order names, the deepest block still held of the
    same release (and priority) goes in its place.

    A subclass says what an Order is. Own cost: O(1) a call, O(log p) for p distinct priorities.
    """

    def __init__(self) -> None:
        self._priority: dict[int, int] = {}
        # Blocks released together, deepest first; one object shared by all of them.
        self._release: dict[int, OrderedDict[int, None]] = {}
        self._orders: dict[int, Order] = {}
        self._sizes: dict[int, int] = {}
        # Every priority with blocks is in the heap; others are stale.
        self._heap: list[int] = []
        self._current: OrderedDict[int, None] | None = None
        self._expected: tuple[int, int] = (-1, 0)  # depth and priority that continue the release
        self._head = 0

    @abstractmethod
    def _order(self) -> Order:
        """A new, empty Order."""

    def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
        if block in self._priority:
            raise ValueError(f"block {block} was added twice without a remove() between")
        if self._current is None or self._expected != (depth, priority):
            self._current, self._head = OrderedDict(), depth
        self._expected = (depth - 1, priority)
        self._current[block] = None
        self._release[block] = self._current
        self._priority[block] = priority
        if not self._sizes.get(priority):
            self._open_level(priority)
        self._sizes[priority] += 1
        self._orders[priority].add(block, key, depth, self._head)

    def remove(self, block: int) -> None:
        self._take(block, evicted=False)

    def pop(self) -> int:
        if not self._priority:
            raise IndexError("no reclaimable block")
        while not self._sizes.get(self._heap[0]):
            heapq.heappop(self._heap)
        block = next(iter(self._release[self._orders[self._heap[0]].peek()]))
        self._take(block, evicted=True)
        return block

    def __len__(self) -> int:
        return len(self._priority)

    def _take(self, block: int, *, evicted: bool) -> None:
        priority = self._priority.pop(block)
        self._current = None  # whatever is added next belongs to another release
        del self._release.pop(block)[block]
        self._orders[priority].remove(block, evicted=evicted)
        self._sizes[priority] -= 1
        if not self._sizes[priority]:
            del self._sizes[priority], self._orders[priority]

    def _open_level(self, priority: int) -> None:
        self._sizes[priority] = 0
        self._orders[priority] = self._order()
        heapq.heappush(self._heap, priority)
        if len(self._heap) > 2 * len(self._sizes) + 16:
            self._heap = sorted(self._sizes)
