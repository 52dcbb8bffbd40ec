"""First in, first out: the block whose content was released first goes first, hits or not."""

from __future__ import annotations

from pagedattn.backends.allocators.policies.scored import ScoredPolicy

__all__ = ["FIFO"]


class FIFO(ScoredPolicy):
    """In the order in which the blocks were first released with the key that they have now.

    A block that is hit keeps its place; a block that was evicted starts anew.
    """

    name = "fifo"

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[int, tuple[bytes, int]] = {}
        self._released = 0

    def _rank(self, block: int, key: bytes, depth: int, head: int) -> float:
        self._released += 1
        known, place = self._places.get(block, (b"", 0))
        if not place or known != key:
            place = self._released
            self._places[block] = (key, place)
        return place

    def _left(self, block: int, rank: float, *, evicted: bool) -> None:
        if evicted:
            del self._places[block]
