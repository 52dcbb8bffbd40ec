"""The safety net: what LRU would have found in the same pool, and whether to follow it."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Rival"]


class Rival:
    """A shadow of LRU, keys only, with the score between it and the policy it watches.

    leads  LRU is ahead: evict as it would

    The policy may fall behind by a sixteenth of the pool. Then LRU leads, at first for as long as
    it takes to release as many blocks as the pool has, twice as long each time it comes to that
    again: what the policy can lose grows with the logarithm of time only. Every call is O(1).
    """

    def __init__(self) -> None:
        self.leads = False
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._ahead = 0  # hits of the policy beyond those of LRU
        self._now = 0
        self._until = 0
        self._patience = 1
        self._room = 0.0

    def meet(self, key: bytes, *, found: bool, blocks: int) -> None:
        """The block of `key` was released. found: the policy's pool had it; blocks: held now."""
        self._now += 1
        # The pool may shrink: forget slowly what it once held.
        self._room = max(blocks, self._room - self._room / 65_536)
        in_lru = key in self._keys
        self._keys[key] = None
        self._keys.move_to_end(key)
        while len(self._keys) > self._room:
            self._keys.popitem(last=False)
        self._ahead = min(self._ahead + found - in_lru, int(self._room))
        if self.leads:
            if self._now >= self._until:
                self.leads, self._ahead = False, 0
        elif self._ahead < -self._room / 16:
            self.leads = True
            self._until = self._now + self._patience * int(self._room)
            self._patience *= 2
