"""contiguous_pow2: grow by doubling, in place or by moving."""

from __future__ import annotations

from dataclasses import replace

from pagedattn.backends.allocators.contiguous.base import ContiguousAllocator, Extent

__all__ = ["ContiguousPow2"]


class ContiguousPow2(ContiguousAllocator):
    """Holds a power of two of blocks: that of the prompt at open(), doubled when full.

    A sequence that cannot grow where it lies moves to the first hole that is large enough, and its
    old extent is free for those that grow after it; the copies are in Grant.copies. Both extents
    exist at once while it moves, as they do for realloc().

    max_seq_len  tokens, default the whole pool; the last doubling stops there
    """

    name = "contiguous_pow2"

    def __init__(
        self, *, num_blocks: int, block_size: int = 16, max_seq_len: int | None = None
    ) -> None:
        if max_seq_len is None:
            max_seq_len = num_blocks * block_size
        super().__init__(num_blocks=num_blocks, block_size=block_size, max_seq_len=max_seq_len)

    def blocks_at_open(self, seq: int, prompt: int) -> int:
        return self._rounded(self._columns(prompt))

    def grow(self, extent: Extent, blocks: int) -> Extent | None:
        wanted, end = self._rounded(blocks), extent.start + extent.blocks
        if extent.blocks and self.space.take_at(end, wanted - extent.blocks):
            return replace(extent, blocks=wanted)
        start = self.space.take(wanted)
        if start is None:
            return None
        if extent.blocks:
            self.space.give(extent.start, extent.blocks)
        return replace(extent, start=start, blocks=wanted)

    def _rounded(self, blocks: int) -> int:
        """The power of two that holds `blocks`, but not more than a sequence can use."""
        if blocks == 0:
            return 0
        useful = min(self._columns(self.max_seq_len), self.num_blocks)
        return max(min(1 << (blocks - 1).bit_length(), useful), blocks)
