"""When and how often each key was used, and how long first returns take."""

from __future__ import annotations

import math

from pagedattn.backends.allocators.policies.memory import KeyMemory

__all__ = ["History", "Uses"]

_RETURNS_REMEMBERED = 4096  # first returns that the mean is taken over, roughly


class Uses:
    """Uses of one key. Times are counts of released blocks.

    count        uses so far
    first, last  time of the first and of the last one
    found        a lookup found the key since its block was last released
    """

    __slots__ = ("count", "first", "found", "last")

    def __init__(self, now: int) -> None:
        self.count, self.first, self.last, self.found = 1, now, now, False


class History:
    """Uses by key, for 8 times as many keys as the pool has blocks and at least 65,536.

    now    the time: released blocks so far
    found  a lookup had found the key that was released last
    gap    time from the first use of a key to the second, geometric mean; 1 before any is known
    """

    def __init__(self) -> None:
        self.now = 0
        self.found = False
        self.gap = 1.0
        self._returns, self._log_gap = 0, 0.0
        self._memory: KeyMemory[Uses] = KeyMemory(times=8, floor=65_536)

    def hit(self, key: bytes) -> None:
        """A lookup found `key`."""
        uses = self._memory.get(key)
        if uses is not None:
            self._again(uses)
            uses.found = True

    def release(self, key: bytes, blocks: int) -> None:
        """The block of `key` lost its last owner, `blocks` being held now. Content that was
        computed anew, not found, was used again as well."""
        self.now += 1
        uses = self._memory.get(key)
        self.found = uses is not None and uses.found
        if uses is None:
            uses = Uses(self.now)
        elif uses.found:
            uses.found, uses.last = False, self.now
        else:
            self._again(uses)
        self._memory.note(key, uses, blocks=blocks)

    def uses(self, key: bytes) -> Uses:
        """What is known of `key`; a first use now where nothing is."""
        return self._memory.get(key) or Uses(self.now)

    def _again(self, uses: Uses) -> None:
        if uses.count == 1:
            self._returns = min(self._returns + 1, _RETURNS_REMEMBERED)
            log = math.log(max(self.now - uses.last, 1))
            self._log_gap += (log - self._log_gap) / self._returns
            self.gap = math.exp(self._log_gap)
        uses.count += 1
        uses.last = self.now
