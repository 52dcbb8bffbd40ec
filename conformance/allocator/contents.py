"""What lies in every slot of the pool.

The KV of a token depends on everything before it, so each distinct (namespace, token, token, ...)
has a number, and a slot holds the number of what was last written or copied there.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagedattn.allocator import CopyOp

__all__ = ["Contents"]


class Contents:
    """Slots and the numbers in them; a slot that was never written holds None."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.committed: set[int] = set()  # numbers that some sequence has committed
        self._numbers: dict[tuple[int, int | bytes], int] = {}
        self._before: dict[int, int] = {}
        self._starts: set[int] = set()  # numbers of namespaces, which come before any token
        self._slots: dict[int, int | None] = {}

    def numbers(self, namespace: bytes, tokens: Iterable[int]) -> list[int]:
        """The content number of each token."""
        number = self._number(0, namespace)
        self._starts.add(number)
        result = []
        for token in tokens:
            number = self._number(number, token)
            result.append(number)
        return result

    def before(self, number: int) -> int:
        """The content number of the token before; 0 for the first one of a sequence."""
        return self._before[number]

    def write(self, slot: int, number: int) -> None:
        """A step wrote the KV of one token."""
        self._slots[slot] = number

    def copy(self, copies: Iterable[CopyOp]) -> None:
        """Run copies in order; the slots of dst beyond op.tokens hold nothing of use."""
        for op in copies:
            for i in range(self.block_size):
                number = self.slot(op.src * self.block_size + i) if i < op.tokens else None
                self._slots[op.dst * self.block_size + i] = number

    def slot(self, slot: int) -> int | None:
        """What lies in one slot."""
        return self._slots.get(slot)

    def block(self, block: int) -> list[int | None]:
        """What lies in one block."""
        return [self.slot(block * self.block_size + i) for i in range(self.block_size)]

    def _number(self, before: int, item: int | bytes) -> int:
        number = self._numbers.setdefault((before, item), len(self._numbers) + 1)
        self._before[number] = 0 if before in self._starts else before
        return number
