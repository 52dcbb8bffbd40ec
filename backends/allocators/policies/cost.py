"""Cost-aware: what is dear to compute again stays longer, the longer the more often it is used."""

from __future__ import annotations

from pagedattn.backends.allocators.policies.memory import KeyMemory
from pagedattn.backends.allocators.policies.scored import ScoredPolicy

__all__ = ["Cost"]


class Cost(ScoredPolicy):
    """Rank = level + uses * cost, the level being the rank evicted last (greedy dual).

    The cost of a block is 1 for what is the same everywhere (the linear layers) plus
    `attention` for each block before it. A release is lost from its tail, hence all its blocks
    count as dear as its deepest one. The rising level is what ages the blocks that are not used.
    Uses are remembered after an eviction, for 4 times as many keys as there are blocks.

    attention  cost of attending to one earlier block, in units of the linear layers' cost of a
               block: about block_size / (6 * hidden size)
    """

    name = "cost"

    def __init__(self, *, attention: float = 1 / 64) -> None:
        if not attention >= 0:
            raise ValueError(f"attention must be a cost of 0 or more, not {attention!r}")
        super().__init__()
        self._attention = attention
        self._level = 0.0
        self._uses: KeyMemory[int] = KeyMemory(times=4, floor=1024)

    def hit(self, key: bytes) -> None:
        self._uses.note(key, (self._uses.get(key) or 1) + 1, blocks=len(self))

    def clear(self) -> None:
        super().clear()
        self._level = 0.0
        self._uses.clear()

    def _rank(self, block: int, key: bytes, depth: int, head: int) -> float:
        uses = self._uses.get(key) or 1
        self._uses.note(key, uses, blocks=len(self))
        return self._level + uses * (1 + self._attention * head)

    def _left(self, block: int, rank: float, *, evicted: bool) -> None:
        if evicted:
            self._level = max(self._level, rank)
