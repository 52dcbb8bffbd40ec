"""What is known of a few blocks of a large pool; nothing is stored for the others."""

from __future__ import annotations

__all__ = ["Counts"]


class Counts(dict[int, int]):
    """A number for each block, 0 where none was stored. get(block, 0) is the quicker way to ask for
    what is mostly not there."""

    __slots__ = ()

    def __missing__(self, block: int) -> int:
        return 0
