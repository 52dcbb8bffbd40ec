"""Who holds which block: free runs, holders, pins and the blocks that could be reclaimed.

A block is in exactly one state, which follows from two counts and the prefix index:

    live         a table holds it
    reserved     no table holds it but a pin does
    reclaimable  nobody holds it and its content can be found: the eviction policy has it, or it is
                 staged
    free         the rest

Staged blocks are the ones that the policy gives up next, asked for a little ahead of time: up to
1/32 of the pool. Until they are taken they are found like before. Free and staged blocks together
are the room from which sequences are served: there is a choice, so that tables get long runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.prefix import PrefixIndex
from pagedattn.backends.allocators.runs import Runs
from pagedattn.backends.allocators.sparse import Counts
from pagedattn.errors import AllocatorError

__all__ = ["BlockPool"]

_CHOICE = 16  # blocks staged for each open sequence but the first, beyond what is needed
_ROOMY = 6  # blocks of room for each open sequence, from which on sequences keep their distance


class BlockPool:
    """States of all blocks. Every operation is O(1) per block plus the policy's own cost; memory
    is for the blocks that are in use, whatever the size of the pool."""

    _room_type: ClassVar[type[Runs]] = Runs

    def __init__(self, num_blocks: int, policy: EvictionPolicy, index: PrefixIndex) -> None:
        self.total = num_blocks
        self.policy, self.index = policy, index
        self.refs = Counts()  # tables that hold the block: the live ones only
        self.pins = Counts()
        self.priority = Counts()  # highest of those that held the block since it was free
        self.reserved = self.reclaimable = self.evicted = 0
        self.staged = OrderedDict[int, None]()  # in the policy's order
        self._staged_priority: int = 0  # of the blocks that are staged beyond need
        # Blocks that the policy has, by priority; those of priority 0 are all the others.
        self._ranked, self._ranked_in_all = Counts(), 0
        self._free_all()

    @property
    def live(self) -> int:
        """Blocks in tables."""
        return len(self.refs)

    @property
    def free(self) -> int:
        """Free blocks."""
        return len(self.room) - len(self.staged)

    @property
    def available(self) -> int:
        """Blocks that take() could give, one after the other."""
        return len(self.room) - len(self.staged) + self.reclaimable

    def stage(self, n: int, sequences: int) -> None:
        """Make room for n blocks, n <= available, and some more for `sequences` open ones to choose
        from. Raises AllocatorError when the policy is broken."""
        # A small pool, or one sequence alone, follows the policy to the letter.
        choice = min(_CHOICE * (sequences - 1), max(0, self.total - 256) // 32)
        short = n - len(self.room)
        found: list[int] = []
        alike = True
        try:
            for i in range(short + choice):
                # What is staged beyond need is of one priority, so that any of it may go first.
                if i >= short and not (alike and self._has(self._staged_priority)):
                    break
                block = self._pop()
                priority = self.priority.get(block, 0)
                if priority != self._staged_priority:
                    alike = alike and not self.staged
                    self._staged_priority = priority
                self.staged[block] = None
                found.append(block)
        finally:
            self.room.add_all(found)

    def take(self, n: int, priority: int, after: int, sequences: int) -> list[int]:
        """n blocks for one table whose last one is `after` (-1: it has none): the ids that follow
        `after` where they are to be had. `sequences` share the room. stage() made it."""
        room, blocks = self.room, list[int]()
        while n:
            start, length = after + 1, room.length.get(after + 1, 0) if after >= 0 else 0
            if not length:
                start, length = self._place(n, len(room) // sequences)
            length = min(n, length)
            room.remove(start, length)
            blocks += range(start, start + length)
            n -= length
            after = start + length - 1
        if staged := self.staged:
            for block in blocks:
                if block in staged:
                    del staged[block]
                    self._forget(block)
        self.refs.update(dict.fromkeys(blocks, 1))
        if priority:
            self.priority.update(dict.fromkeys(blocks, priority))
        return blocks

    def _place(self, n: int, share: int) -> tuple[int, int]:
        """(start, length) of adjacent ids for a table to go on with n blocks, or with some of them.

        Where room is short, many blocks fill a run that is little longer, and one starts a run that
        is long enough for a few more. Where there is plenty, a sequence keeps half of its share
        free before it, for whoever lies there, and half behind, for its own growth."""
        if share >= _ROOMY:
            start, length = self.room.fit(n + share)
            if length >= n + share and start:
                return start + share // 2, length - share // 2
            return self.room.fit(n)
        return self.room.fit(n if n > 1 else max(1, share // 2))

    def share(self, block: int, priority: int) -> None:
        """One more table holds `block`, which is live, reserved or reclaimable."""
        holders = self.refs.get(block, 0)
        if not holders:
            if block in self.pins:
                self.reserved -= 1
            else:
                self._keep(block)
                self.reclaimable -= 1
        self.refs[block] = holders + 1
        if priority > self.priority.get(block, 0):
            self.priority[block] = priority

    def drop(self, blocks: Sequence[int]) -> None:
        """One table less holds each of `blocks`, the deepest of which comes first."""
        refs, pins, node_of = self.refs, self.pins, self.index.node_of
        freed: list[int] = []
        for block in blocks:
            holders = refs[block]
            if holders > 1:
                refs[block] = holders - 1
                continue
            refs.pop(block, None)
            if block in pins:
                self.reserved += 1
            elif block in node_of:
                self._retire(block)
            else:
                freed.append(block)
        if freed:
            if self.priority:
                for block in freed:
                    self.priority.pop(block, None)
            self.room.add_all(freed)

    def pin(self, block: int) -> None:
        """Keep a live, published block published."""
        self.pins[block] += 1

    def unpin(self, block: int) -> None:
        """Undo one pin()."""
        self.pins[block] -= 1
        if not self.pins[block]:
            del self.pins[block]
            if block not in self.refs:
                self.reserved -= 1
                self._retire(block)

    def shared(self, block: int, gone: int = 0) -> bool:
        """Whether someone else would miss what a holder overwrites, `gone` holders having left."""
        return self.refs[block] - gone > 1 or block in self.pins

    def evict(self, n: int) -> int:
        """Free up to n reclaimable blocks; returns how many."""
        count = max(0, min(n, self.reclaimable))
        for _ in range(count):
            if self.staged:
                block = next(iter(self.staged))
                del self.staged[block]
            else:
                block = self._pop()
                self.room.add(block)
            self._forget(block)
        return count

    def resize(self, num_blocks: int) -> int:
        """Grow, or shrink down to the last held block; returns the new total. O(blocks in use)."""
        held = max(max(self.refs, default=-1), max(self.pins, default=-1))
        new, old = max(num_blocks, held + 1), self.total
        for block in sorted(block for block in self.index.node_of if block >= new):
            self._keep(block)
            self._forget(block)
        if new > old:
            self.room.add(old, new - old)
        else:
            self.room.cut(new)
        self.total = new
        return new

    def clear(self) -> None:
        """Every block is free; no table may hold one. Pins are forgotten."""
        self.policy.clear()
        self.index.clear()
        self.pins.clear()
        self.priority.clear()
        self.reserved = self.reclaimable = 0
        self.staged.clear()
        self._free_all()

    def _free_all(self) -> None:
        self.room = self._room_type()
        self.room.add(0, self.total)
        self._ranked.clear()
        self._ranked_in_all = 0

    def _pop(self) -> int:
        block = self.policy.pop()
        if block in self.staged or not self._is_reclaimable(block):
            raise AllocatorError(
                f"eviction policy {self.policy.name!r} chose block {block}, which it was not "
                "given or which was taken from it: the policy is broken"
            )
        if self._ranked:
            self._gone(block)
        return block

    def _is_reclaimable(self, block: int) -> bool:
        held = block in self.refs or block in self.pins
        return not held and block in self.index.node_of

    def _retire(self, block: int) -> None:
        """A published block that nobody holds any more is reclaimable."""
        node, priority = self.index.node_of[block], self.priority.get(block, 0)
        assert node is not None, f"block {block} is not published"
        if self.staged and priority < self._staged_priority:
            self._unstage()
        self.reclaimable += 1
        if priority:
            self._ranked[priority] += 1
            self._ranked_in_all += 1
        self.policy.add(block, key=node.key, depth=node.depth, priority=priority)

    def _unstage(self) -> None:
        """The policy gets back what is staged: it outlives a block that came after it."""
        blocks = list(self.staged)
        self.staged.clear()
        self.reclaimable -= len(blocks)
        for block in blocks:
            self.room.remove(block)
            self._retire(block)

    def _has(self, priority: int) -> bool:
        """Whether the policy has a block of that priority."""
        if priority:
            return priority in self._ranked
        return self.reclaimable - len(self.staged) > self._ranked_in_all

    def _gone(self, block: int) -> None:
        """The policy has one block less."""
        if priority := self.priority.get(block, 0):
            self._ranked[priority] -= 1
            self._ranked_in_all -= 1
            if not self._ranked[priority]:
                del self._ranked[priority]

    def _keep(self, block: int) -> None:
        """A reclaimable block is not up for eviction any more."""
        if block in self.staged:
            del self.staged[block]
            self.room.remove(block)
        else:
            self.policy.remove(block)
            if self._ranked:
                self._gone(block)

    def _forget(self, block: int) -> None:
        self.index.unpublish(block)
        self.priority.pop(block, None)
        self.reclaimable -= 1
        self.evicted += 1
