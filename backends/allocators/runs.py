"""Free block ids as runs of adjacent ones: what a sequence gets next lies beside what it has.

A run is kept by its first id, in a class of runs of like length (k: 2**(k-1) <= length < 2**k),
and in a set of first ids in which the run around any id is found. Every operation costs a few
dictionary and word operations, whatever the size of the pool; runs merge with their neighbours as
soon as these come back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from pagedattn.backends.allocators.starts import Starts

__all__ = ["Runs"]


class Runs:
    """A set of block ids, held as maximal runs [start, start + length)."""

    def __init__(self) -> None:
        self.length: dict[int, int] = {}  # by first id
        # Ordered, because the first of many is asked for and taken out again and again.
        self._classes = [OrderedDict[int, None]() for _ in range(33)]
        self._present = 0  # bit k: class k has a run
        self._starts = Starts()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: int) -> bool:
        start = self._starts.last(block)
        return start >= 0 and block < start + self.length[start]

    def __iter__(self) -> Iterator[int]:
        for start in sorted(self.length):
            yield from range(start, start + self.length[start])

    def add(self, start: int, n: int = 1) -> None:
        """n ids from `start` on, none of which is in the set."""
        self._count += n
        after = self.length.get(start + n)
        if after is not None:
            self._delete(start + n, after)
            n += after
        before = self._starts.last(start)
        if before >= 0:
            length = self.length[before]
            if before + length == start:
                self._resize(before, length, length + n)
                return
        self._insert(start, n)

    def add_all(self, blocks: Iterable[int]) -> None:
        """The same for single ids; neighbours that follow one another are added at once."""
        low, high = 0, 0
        for block in blocks:
            if block + 1 == low:
                low = block
            elif block == high:
                high += 1
            else:
                if high > low:
                    self.add(low, high - low)
                low, high = block, block + 1
        if high > low:
            self.add(low, high - low)

    def remove(self, start: int, n: int = 1) -> None:
        """n ids from `start` on, all of which are in one run."""
        self._count -= n
        length = self.length.get(start)
        if length is not None:
            self._delete(start, length)
            rest = length - n
        else:
            first = self._starts.last(start)
            length = self.length[first]
            self._resize(first, length, start - first)
            rest = first + length - start - n
        if rest:
            self._insert(start + n, rest)

    def cut(self, end: int) -> None:
        """Ids from `end` >= 1 on leave the set; O(runs)."""
        first = self._starts.last(end - 1)
        if first >= 0 and first + self.length[first] > end:
            self.remove(end, first + self.length[first] - end)
        for start in [start for start in self.length if start >= end]:
            self.remove(start, self.length[start])

    def fit(self, n: int) -> tuple[int, int]:
        """(start, length) of a run of at least n ids, of a small class that has one; else of the
        longest class. The set is not empty."""
        k = n.bit_length()
        for start in self._classes[k]:
            length = self.length[start]
            if length >= n:
                return start, length
            break
        above = self._present >> (k + 1)
        if above:
            k += (above & -above).bit_length()
        else:
            k = self._present.bit_length() - 1
        start = next(iter(self._classes[k]))
        return start, self.length[start]

    def problems(self) -> Iterator[str]:
        """What is wrong with the set itself; O(runs)."""
        end = -1
        for start in sorted(self.length):
            if start <= end:
                yield f"the run from block {start} on touches the one before"
            end = start + self.length[start]
            if start not in self._classes[self.length[start].bit_length()]:
                yield f"the run from block {start} on is in the wrong class"
            if self._starts.last(start) != start:
                yield f"the run from block {start} on is not among the starts"
        if sum(self.length.values()) != self._count:
            yield f"{self._count} blocks are counted, {sum(self.length.values())} are in runs"

    # -- inside --------------------------------------------------------------------------------

    def _insert(self, start: int, n: int) -> None:
        self.length[start] = n
        k = n.bit_length()
        self._classes[k][start] = None
        self._present |= 1 << k
        self._starts.add(start)

    def _delete(self, start: int, n: int) -> None:
        del self.length[start]
        self._leave(start, n.bit_length())
        self._starts.remove(start)

    def _resize(self, start: int, old: int, new: int) -> None:
        self.length[start] = new
        k, j = old.bit_length(), new.bit_length()
        if k != j:
            self._leave(start, k)
            self._classes[j][start] = None
            self._present |= 1 << j

    def _leave(self, start: int, k: int) -> None:
        members = self._classes[k]
        del members[start]
        if not members:
            self._present ^= 1 << k
