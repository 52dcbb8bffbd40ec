"""Least frequently used: the block found least often since it was cached goes first."""

from __future__ import annotations

from pagedattn.backends.allocators.policies.memory import KeyMemory
from pagedattn.backends.allocators.policies.scored import ScoredPolicy

__all__ = ["LFU"]


class LFU(ScoredPolicy):
    """Fewest hits first; of equal ones the block released first.

    Hits are forgotten with the eviction of the block, or when no block of the key was released
    for as long as it takes to release 4 times as many keys as there are blocks.
    """

    name = "lfu"

    def __init__(self) -> None:
        super().__init__()
        self._hits: KeyMemory[int] = KeyMemory(times=4, floor=1024)
        self._keys: dict[int, bytes] = {}

    def hit(self, key: bytes) -> None:
        self._hits.note(key, (self._hits.get(key) or 0) + 1, blocks=len(self))

    def clear(self) -> None:
        super().clear()
        self._hits.clear()

    def _rank(self, block: int, key: bytes, depth: int, head: int) -> float:
        hits = self._hits.get(key) or 0
        self._hits.note(key, hits, blocks=len(self))
        self._keys[block] = key
        return hits

    def _left(self, block: int, rank: float, *, evicted: bool) -> None:
        key = self._keys.pop(block)
        if evicted:
            self._hits.forget(key)
