"""What the contiguous allocators share: a sequence is one extent, used from its start.

The blocks that hold tokens are live, the rest of the extent is reserved: nobody else can have it,
which is what these baselines are here to show.
"""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagedattn.allocator import (
    Addressing,
    AllocatorCapabilities,
    AllocatorStats,
    BlockAllocator,
    CopyOp,
    Grant,
    PrefixHit,
    Violation,
)
from pagedattn.backends.allocators.arguments import integer
from pagedattn.backends.allocators.contiguous.space import AddressSpace
from pagedattn.errors import AllocatorError, OutOfBlocks

__all__ = ["ContiguousAllocator", "Extent", "NoExtent", "default_max_seq_len"]

_MAX_BLOCKS = 2**31  # block ids are int32 in block tables


class NoExtent(OutOfBlocks):
    """No run of adjacent free blocks is long enough, or a sequence is at its limit.

    needed <= available says that the free blocks would do, were they adjacent: this is external
    fragmentation. reason says what was in the way."""

    def __init__(self, needed: int, available: int, reason: str) -> None:
        super().__init__(needed, available)
        self.reason = reason
        self.args = (f"{needed} adjacent blocks needed, {available} free; {reason}",)


@dataclass(slots=True)
class Extent:
    """One open sequence: blocks start .. start + blocks - 1, of which the first hold `length`
    tokens, the first `committed` of them written. An extent without blocks starts anywhere."""

    start: int
    blocks: int
    length: int = 0
    committed: int = 0


def default_max_seq_len(num_blocks: int, block_size: int) -> int:
    """4 * sqrt(tokens in the pool), in whole blocks, at most the pool.

    A reservation must be both long and concurrent; the root splits a pool of any size so that it
    has room for some of each: 128 tokens of 1024, 1456 of 131,072, 4096 of a million."""
    blocks = -(-4 * math.isqrt(num_blocks * block_size) // block_size)
    return min(blocks, num_blocks) * block_size


class ContiguousAllocator(BlockAllocator):
    """Base of the baselines. A subclass says how many blocks a sequence gets at open(), and may
    override grow().

    num_blocks   blocks in the pool, ids 0 .. num_blocks - 1
    block_size   tokens per block
    max_seq_len  tokens that a sequence may reach; appending more raises NoExtent
    """

    def __init__(self, *, num_blocks: int, block_size: int, max_seq_len: int) -> None:
        self.num_blocks = integer("num_blocks", num_blocks, 1, _MAX_BLOCKS)
        self.block_size = integer("block_size", block_size, 1)
        self.max_seq_len = integer("max_seq_len", max_seq_len, 1)
        self.space = AddressSpace(self.num_blocks)
        self._extents: dict[int, Extent] = {}
        self._live = self._lookups = 0

    # -- what a subclass decides -----------------------------------------------------------------

    @abstractmethod
    def blocks_at_open(self, seq: int, prompt: int) -> int:
        """Blocks to take for a sequence with a prompt of `prompt` tokens; 0 takes none yet."""

    def grow(self, extent: Extent, blocks: int) -> Extent | None:
        """`extent` with at least `blocks` blocks, more than it has; None when it cannot grow.

        May take and give blocks of the space; the new extent may lie elsewhere. What is given must
        be whole extents."""
        return None

    # -- life of a sequence --------------------------------------------------------------------

    def capabilities(self) -> AllocatorCapabilities:
        return AllocatorCapabilities(addressing=Addressing.CONTIGUOUS, truncate=True)

    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        """Takes the first extent; raises NoExtent. namespace and priority change nothing here: no
        prefix is found again."""
        if seq in self._extents:
            raise AllocatorError(f"sequence {seq} is open already; close it or take another id")
        if not isinstance(namespace, bytes):
            raise ValueError(f"sequence {seq}: namespace must be bytes, not {namespace!r}")
        integer("priority", priority)
        blocks = self.blocks_at_open(seq, len(tokens))
        start = self.space.take(blocks) if blocks else 0
        if start is None:
            raise NoExtent(blocks, self.space.free, self._obstacle(blocks))
        self._extents[seq] = Extent(start, blocks)
        self._lookups += 1
        return PrefixHit()

    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        grown = self._place(wants)
        return {
            seq: self._fill(seq, operator.index(n), grown.get(seq, self._extents[seq]))
            for seq, n in wants.items()
        }

    def can_append(self, wants: Mapping[int, int]) -> bool:
        try:
            grown = self._place(wants)
        except OutOfBlocks:
            return False
        self._undo(grown)
        return True

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        extent = self._extent(seq)
        if extent.committed + len(tokens) > extent.length:
            raise AllocatorError(
                f"sequence {seq}: commit of {len(tokens)} tokens after {extent.committed} exceeds "
                f"the {extent.length} that were appended; append first"
            )
        extent.committed += len(tokens)

    def truncate(self, seq: int, length: int) -> None:
        """The extent stays as it is: what is cut becomes reserved."""
        extent = self._extent(seq)
        length = integer(f"truncate of sequence {seq}: length", length, 0, extent.length, "its")
        self._live -= self._columns(extent.length) - self._columns(length)
        extent.length = length
        extent.committed = min(extent.committed, length)

    def close(self, seq: int) -> None:
        extent = self._extent(seq)
        del self._extents[seq]
        self._live -= self._columns(extent.length)
        if extent.blocks:
            self.space.give(extent.start, extent.blocks)

    def table(self, seq: int) -> Sequence[int]:
        extent = self._extent(seq)
        return range(extent.start, extent.start + self._columns(extent.length))

    def length(self, seq: int) -> int:
        return self._extent(seq).length

    # -- the pool ------------------------------------------------------------------------------

    def reset(self) -> None:
        if self._extents:
            some = ", ".join(map(str, list(self._extents)[:5]))
            raise AllocatorError(
                f"reset with {len(self._extents)} open sequences ({some}); close them first"
            )

    def stats(self) -> AllocatorStats:
        free = self.space.free
        return AllocatorStats(
            total=self.num_blocks,
            free=free,
            reclaimable=0,
            live=self._live,
            reserved=self.num_blocks - free - self._live,
            lookups=self._lookups,
        )

    def check(self) -> list[Violation]:
        found = []
        pieces = list(self.space.holes())
        free, live = sum(length for _, length in pieces), 0
        for seq, extent in self._extents.items():
            used = self._columns(extent.length)
            live += used
            if not 0 <= extent.committed <= extent.length or used > extent.blocks:
                found.append(Violation("extent", f"sequence {seq} does not fit: {extent}"))
            if extent.blocks:
                pieces.append((extent.start, extent.blocks))
        end = 0
        for start, length in sorted(pieces):
            if start != end:
                what = "belong to nobody" if start > end else "belong to two"
                found.append(Violation("extents", f"blocks between {end} and {start} {what}"))
            end = start + length
        if end != self.num_blocks:
            found.append(Violation("extents", f"the last piece ends at {end}"))
        for name, value, real in (("free", self.space.free, free), ("live", self._live, live)):
            if value != real:
                found.append(Violation("stats-identity", f"{name} is {value}; {real} blocks are"))
        return found

    # -- inside --------------------------------------------------------------------------------

    def _extent(self, seq: int) -> Extent:
        extent = self._extents.get(seq)
        if extent is None:
            raise AllocatorError(f"sequence {seq} is not open: never opened, or closed already")
        return extent

    def _columns(self, length: int) -> int:
        return -(-length // self.block_size)

    def _obstacle(self, blocks: int) -> str:
        if blocks > self.num_blocks:
            return f"the whole pool has {self.num_blocks}"
        return f"the largest hole has {self.space.largest}"

    def _place(self, wants: Mapping[int, int]) -> dict[int, Extent]:
        """The extents of the sequences that must grow, taken one after the other, so that a later
        one may move to where an earlier one was. All or none. The sequences are as they were."""
        checked = {
            seq: self._extent(seq).length + integer(f"append to sequence {seq}: count", n, 0)
            for seq, n in wants.items()
        }
        grown: dict[int, Extent] = {}
        for seq, length in checked.items():
            extent, blocks = self._extents[seq], self._columns(length)
            if blocks <= extent.blocks and length <= self.max_seq_len:
                continue
            new = self.grow(extent, blocks) if length <= self.max_seq_len else None
            if new is None:
                self._undo(grown)
                reason = f"sequence {seq} cannot grow from {extent.blocks} blocks to {blocks}: "
                if length > self.max_seq_len:
                    reason += f"{length} tokens are above max_seq_len={self.max_seq_len}"
                else:
                    reason += self._obstacle(blocks)
                raise NoExtent(blocks - extent.blocks, self.space.free, reason)
            grown[seq] = new
        return grown

    def _undo(self, grown: Mapping[int, Extent]) -> None:
        for seq, new in reversed(list(grown.items())):
            old = self._extents[seq]
            if new.start == old.start and old.blocks:
                self.space.give(old.start + old.blocks, new.blocks - old.blocks)
                continue
            if old.blocks:
                self.space.take_range(old.start, old.blocks)
            self.space.give(new.start, new.blocks)

    def _fill(self, seq: int, n: int, place: Extent) -> Grant:
        """n more tokens of a sequence in `place`, its present extent or what it has grown to."""
        old, size = self._extents[seq], self.block_size
        before = self._columns(old.length)
        moved = place.start != old.start and before > 0
        copies = tuple(
            CopyOp(old.start + i, place.start + i, min(size, old.length - i * size))
            for i in range(before if moved else 0)
        )
        first, end = old.length, old.length + n
        self._extents[seq] = Extent(place.start, place.blocks, end, old.committed)
        columns = self._columns(end)
        self._live += columns - before
        column = 0 if moved else before
        base = place.start * size
        return Grant(
            range(base + first, base + end),
            column,
            tuple(range(place.start + column, place.start + columns)),
            copies,
        )
