"""A sparse set of ids in which the last one at or before any id is found."""

from __future__ import annotations

__all__ = ["Starts"]

_BITS = 11  # children of a word: 2**_BITS; three levels reach every id below 2**33
_MASK = (1 << _BITS) - 1


class Starts:
    """Ids as a tree of words, of which only those that are not 0 are kept.

    Bit i of leaf w is id (w << _BITS) + i, bit w of branch b is leaf (b << _BITS) + w, bit b of the
    root is branch b. Every operation looks at one word of each level at most.
    """

    __slots__ = ("_branches", "_leaves", "_root")

    def __init__(self) -> None:
        self._leaves: dict[int, int] = {}
        self._branches: dict[int, int] = {}
        self._root = 0

    def add(self, i: int) -> None:
        """`i` is not in the set yet."""
        w = i >> _BITS
        leaf = self._leaves.get(w)
        if leaf is None:
            b = w >> _BITS
            branch = self._branches.get(b)
            if branch is None:
                self._root |= 1 << b
                branch = 0
            self._branches[b] = branch | 1 << (w & _MASK)
            leaf = 0
        self._leaves[w] = leaf | 1 << (i & _MASK)

    def remove(self, i: int) -> None:
        """`i` is in the set."""
        w = i >> _BITS
        leaf = self._leaves[w] ^ 1 << (i & _MASK)
        if leaf:
            self._leaves[w] = leaf
            return
        del self._leaves[w]
        b = w >> _BITS
        branch = self._branches[b] ^ 1 << (w & _MASK)
        if branch:
            self._branches[b] = branch
            return
        del self._branches[b]
        self._root ^= 1 << b

    def last(self, i: int) -> int:
        """The greatest id up to `i`; -1: there is none."""
        w = i >> _BITS
        leaf = self._leaves.get(w, 0) & ((2 << (i & _MASK)) - 1)
        if not leaf:
            b = w >> _BITS
            branch = self._branches.get(b, 0) & ((1 << (w & _MASK)) - 1)
            if not branch:
                root = self._root & ((1 << b) - 1)
                if not root:
                    return -1
                b = root.bit_length() - 1
                branch = self._branches[b]
            w = (b << _BITS) + branch.bit_length() - 1
            leaf = self._leaves[w]
        return (w << _BITS) + leaf.bit_length() - 1
