"""contiguous_max: every sequence reserves the longest length that any may reach."""

from __future__ import annotations

from pagedattn.backends.allocators.contiguous.base import (
    ContiguousAllocator,
    default_max_seq_len,
)

__all__ = ["ContiguousMax"]


class ContiguousMax(ContiguousAllocator):
    """Reserves max_seq_len tokens at open(), as servers did before paging.

    max_seq_len  default: default_max_seq_len(), 4 * sqrt(tokens in the pool)
    """

    name = "contiguous_max"

    def __init__(
        self, *, num_blocks: int, block_size: int = 16, max_seq_len: int | None = None
    ) -> None:
        if max_seq_len is None:
            max_seq_len = default_max_seq_len(num_blocks, block_size)
        super().__init__(num_blocks=num_blocks, block_size=block_size, max_seq_len=max_seq_len)

    def blocks_at_open(self, seq: int, prompt: int) -> int:
        return self._columns(self.max_seq_len)
