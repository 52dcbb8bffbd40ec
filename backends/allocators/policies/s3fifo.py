"""Three queues: one for new blocks, one for those that came back, one of evicted keys."""

from __future__ import annotations

from collections import OrderedDict

from pagedattn.backends.allocators.policies.chain import ChainPolicy, Order
from pagedattn.backends.allocators.policies.memory import KeyMemory

__all__ = ["S3FIFO"]

_MOST = 3  # hits that count for a block


class S3FIFO(ChainPolicy):
    """S3-FIFO (Yang et al., SOSP 2023) on reclaimable blocks.

    New blocks enter a small queue. Those that were hit, or whose key was evicted not long ago,
    enter the main queue. While the small queue holds more than a tenth of the blocks its first
    one is evicted, else the first of the main queue; there a block that was hit k times goes
    round k times more, 3 at most. Every call is O(1) amortised.

    A block leaves its queue when it is hit, because it is owned then, and enters the main queue
    with the hits that it had.
    """

    name = "s3-fifo"

    def __init__(self) -> None:
        super().__init__()
        self._hits: KeyMemory[int] = KeyMemory(times=4, floor=1024)
        self._ghosts: KeyMemory[None] = KeyMemory(times=1, floor=1)

    def hit(self, key: bytes) -> None:
        self._hits.note(key, min((self._hits.get(key) or 0) + 1, _MOST), blocks=len(self))

    def clear(self) -> None:
        super().clear()
        self._hits.clear()
        self._ghosts.clear()

    def _order(self) -> Order:
        return _Queues(self._hits, self._ghosts)


class _Queues(Order):
    """The small and the main queue of one priority: block -> key."""

    def __init__(self, hits: KeyMemory[int], ghosts: KeyMemory[None]) -> None:
        self._hits, self._ghosts = hits, ghosts
        self._small: OrderedDict[int, bytes] = OrderedDict()
        self._main: OrderedDict[int, bytes] = OrderedDict()

    def add(self, block: int, key: bytes, depth: int, head: int) -> None:
        back = self._hits.get(key) or key in self._ghosts
        (self._main if back else self._small)[block] = key
        self._ghosts.forget(key)

    def remove(self, block: int, *, evicted: bool) -> None:
        if block in self._small:
            key = self._small.pop(block)
            if evicted:
                self._ghosts.note(key, None, blocks=len(self._small) + len(self._main))
        else:
            key = self._main.pop(block)
        if evicted:
            self._hits.forget(key)

    def peek(self) -> int:
        if self._small and (not self._main or 10 * len(self._small) > len(self._main)):
            return next(iter(self._small))
        while True:
            block, key = next(iter(self._main.items()))
            hits = self._hits.get(key)
            if not hits:
                return block
            self._hits.note(key, hits - 1)
            self._main.move_to_end(block)
