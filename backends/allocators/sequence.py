"""What the paged allocator remembers of one open sequence."""

from __future__ import annotations

from dataclasses import dataclass

from pagedattn.backends.allocators.prefix import Node

__all__ = ["SequenceState"]


@dataclass(slots=True, kw_only=True)
class SequenceState:
    """One open sequence.

    table      block ids; the first `released` columns hold -1
    length     tokens with slots, of which the first `committed` are written
    spare      tokens that fit into the last block without a question: it is in no other table, not
               pinned and not published; 0 where that is not known
    tip, tail  the committed content: node of the last full block (or the root of the namespace)
               and the packed tokens after it; without a prefix cache the root and b""
    """

    table: list[int]
    length: int
    committed: int
    tip: Node
    tail: bytes
    priority: int
    released: int = 0
    spare: int = 0
