"""contiguous_exact: an oracle, the best that contiguous reservation could do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pagedattn.backends.allocators.arguments import integer
from pagedattn.backends.allocators.contiguous.base import (
    ContiguousAllocator,
    default_max_seq_len,
)
from pagedattn.errors import AllocatorError

__all__ = ["ContiguousExact"]


class ContiguousExact(ContiguousAllocator):
    """Reserves at open() exactly the blocks that the sequence will have used when it closes.

    lengths      final length in tokens of each sequence id: a mapping, or a function. open() of an
                 id that is not in it is an AllocatorError. None: every sequence is taken to reach
                 max_seq_len, as with contiguous_max.
    max_seq_len  default: default_max_seq_len() without lengths, the pool with them

    Appending beyond the foretold length raises NoExtent.
    """

    name = "contiguous_exact"

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 16,
        max_seq_len: int | None = None,
        lengths: Mapping[int, int] | Callable[[int], int] | None = None,
    ) -> None:
        if max_seq_len is None and lengths is None:
            max_seq_len = default_max_seq_len(num_blocks, block_size)
        elif max_seq_len is None:
            max_seq_len = num_blocks * block_size
        super().__init__(num_blocks=num_blocks, block_size=block_size, max_seq_len=max_seq_len)
        self._lengths = lengths

    def blocks_at_open(self, seq: int, prompt: int) -> int:
        return self._columns(self._final(seq))

    def _final(self, seq: int) -> int:
        if self._lengths is None:
            return self.max_seq_len
        try:
            told = self._lengths(seq) if callable(self._lengths) else self._lengths[seq]
        except LookupError:
            raise AllocatorError(
                f"sequence {seq} has no entry in lengths=; contiguous_exact must be told the final "
                "length of every sequence"
            ) from None
        return integer(f"lengths of sequence {seq}", told, 0)
