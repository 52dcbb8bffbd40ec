"""When and how often each key was used, and how long first returns take."""

from __future__ import annotations

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

    now     the time: released blocks so far
    gap     mean time from the first use of a key to the second; 1 before any is known
    newest  uses of the key released last
    """

    def __init__(self) -> None:
        self.now = 0
        self.gap = 1.0
        self.newest = Uses(0)
        self._returns = 0
        self._memory: KeyMemory[Uses] = KeyMemory(times=8, floor=65_536)

    def hit(self, key: bytes) -> None:
        """A lookup found `key`."""
        uses = self._memory.get(key)
        if uses is not None:
            self._again(uses)
            uses.found = True

    def release(self, key: bytes, blocks: int) -> bool:
        """The block of `key` lost its last owner, `blocks` being held now; whether a lookup had
        found it. Content that was computed anew was used again as well."""
        self.now += 1
        uses = self._memory.get(key)
        found = uses is not None and uses.found
        if uses is None:
            uses = Uses(self.now)
        elif found:
            uses.found, uses.last = False, self.now
        else:
            self._again(uses)
        self._memory.note(key, uses, blocks)
        self.newest = uses
        return found

    def _again(self, uses: Uses) -> None:
        if uses.count == 1:
            self._returns = min(self._returns + 1, _RETURNS_REMEMBERED)
            self.gap += (max(self.now - uses.last, 1) - self.gap) / self._returns
        uses.count += 1
        uses.last = self.now
