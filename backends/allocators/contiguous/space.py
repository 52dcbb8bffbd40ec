"""An address space of blocks, handed out first fit in adjacent runs (extents)."""

from __future__ import annotations

from collections.abc import Iterator

from pagedattn.backends.allocators.sparse import Counts

__all__ = ["AddressSpace"]


class AddressSpace:
    """Blocks 0 .. total - 1, each in one extent or in one hole; holes are as large as they can be.

    A tournament tree over the start positions holds the length of the hole that starts there (0:
    none does), so that the lowest hole that is large enough is found in O(log total). It is stored
    where it is not 0: memory is O(holes * log total). Every call but holes() is O(log total),
    largest is O(1). Which holes there are follows from what is taken
    alone: undoing calls in reverse order restores the space exactly.
    """

    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self._leaves = 1 << (total - 1).bit_length()
        self._tree = Counts()
        self._start_of: dict[int, int] = {}  # end of a hole (exclusive) -> its start
        self._add(0, total)

    @property
    def largest(self) -> int:
        """Blocks of the largest hole."""
        return self._tree[1]

    def take(self, n: int) -> int | None:
        """Start of an extent of n >= 1 blocks at the lowest address, or None: no hole has n."""
        if self._tree[1] < n:
            return None
        i = 1
        while i < self._leaves:
            i *= 2
            if self._tree[i] < n:
                i += 1
        start = i - self._leaves
        self._carve(start, n)
        return start

    def take_at(self, start: int, n: int) -> bool:
        """Take n >= 1 blocks from `start` on, where an extent has just ended; False: no room."""
        if start >= self.total or self._tree[self._leaves + start] < n:
            return False
        self._carve(start, n)
        return True

    def take_range(self, start: int, n: int) -> None:
        """Take n >= 1 blocks from `start` on, anywhere in a hole; AssertionError: not all free."""
        first = self._hole_of(start)
        end = first + self._tree[self._leaves + first]
        assert start + n <= end, f"blocks {start} .. {start + n - 1} are not one hole"
        self.free -= n
        self._remove(first, end)
        if start > first:
            self._add(first, start)
        if end > start + n:
            self._add(start + n, end)

    def give(self, start: int, n: int) -> None:
        """Return n >= 1 taken blocks; the holes on both sides grow together."""
        end = start + n
        self.free += n
        if start in self._start_of:
            first = self._start_of[start]
            self._remove(first, start)
            start = first
        after = self._tree[self._leaves + end] if end < self.total else 0
        if after:
            self._remove(end, end + after)
        self._add(start, end + after)

    def holes(self) -> Iterator[tuple[int, int]]:
        """(start, length) of every hole in ascending order."""
        for start in sorted(self._start_of.values()):
            yield start, self._tree[self._leaves + start]

    def _carve(self, start: int, n: int) -> None:
        length = self._tree[self._leaves + start]
        self.free -= n
        self._remove(start, start + length)
        if length > n:
            self._add(start + n, start + length)

    def _hole_of(self, block: int) -> int:
        """Start of the last hole that starts at or before `block`; block itself without one."""
        tree, i = self._tree, self._leaves + block
        if tree[i]:
            return block
        while i > 1 and not (i & 1 and tree[i - 1]):
            i //= 2
        if i == 1:
            return block
        i -= 1
        while i < self._leaves:
            i = 2 * i + 1 if tree[2 * i + 1] else 2 * i
        return i - self._leaves

    def _add(self, start: int, end: int) -> None:
        self._start_of[end] = start
        self._set(start, end - start)

    def _remove(self, start: int, end: int) -> None:
        del self._start_of[end]
        self._set(start, 0)

    def _set(self, start: int, length: int) -> None:
        tree, i = self._tree, self._leaves + start
        while True:
            if length:
                tree[i] = length
            else:
                tree.pop(i, None)
            if i == 1:
                return
            length = max(length, tree.get(i ^ 1, 0))
            i //= 2
            if tree.get(i, 0) == length:
                return
