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

from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby, islice, repeat
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
        # Policies that know the single calls alone are told block by block, so that what they were
        # told of can be taken back when one of the calls raises.
        self._adds_singly = type(policy).add_all is EvictionPolicy.add_all
        self._removes_singly = type(policy).remove_all is EvictionPolicy.remove_all
        self.refs = Counter[int]()  # tables that hold the block: the live ones only
        self.pins = Counts()
        self.priority = Counts()  # highest of those that held the block since it was free
        self.reserved = self.reclaimable = self.evicted = 0
        self.staged = OrderedDict[int, None]()  # in the policy's order
        self._loose: list[int] = []  # evicted for the append at hand, not in the room yet
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
        if choice <= 0:
            if short > 0:
                self._loose = self._evict(short)
            return
        alike, more = True, choice + min(short, 0)
        if short > 0:
            alike = self._stage(self._pop(short))
        # What is staged beyond need is of one priority, so that any of it may go first.
        while alike and (step := min(more, self._left(self._staged_priority))) > 0:
            step = 1 if self._ranked else step
            alike = self._stage(self._pop(step))
            more -= step

    def take(self, n: int, priority: int, after: int, sequences: int) -> list[int]:
        """n blocks for one table whose last one is `after` (-1: it has none): the ids that follow
        `after` where they are to be had. `sequences` share the room. stage() made it."""
        room, blocks = self.room, list[int]()
        if self._loose:
            if len(self._loose) == n and not room:  # there is nothing to choose from
                blocks, n = sorted(self._loose), 0
            else:
                room.add_all(self._loose)
            self._loose = []
        while n:
            start, length = after + 1, room.length.get(after + 1, 0) if after >= 0 else 0
            if not length:
                start, length = self._place(n, len(room) // sequences)
            length = min(n, length)
            room.remove(start, length)
            blocks += range(start, start + length)
            n -= length
            after = start + length - 1
        if self.staged:
            staged = [block for block in blocks if block in self.staged]
            for block in staged:
                del self.staged[block]
            self._forget(staged)
        self.refs.update(blocks)
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

    def share(self, blocks: Sequence[int], priority: int) -> None:
        """One more table holds each of `blocks`, which are live, reserved or reclaimable."""
        fresh = [block for block in blocks if block not in self.refs]
        if fresh:
            idle = [block for block in fresh if block not in self.pins] if self.pins else fresh
            self._keep(idle)
            self.reserved -= len(fresh) - len(idle)
            self.reclaimable -= len(idle)
        self.refs.update(blocks)
        if priority > 0 or self.priority:
            for block in blocks:
                if priority > self.priority.get(block, 0):
                    self.priority[block] = priority

    def drop(self, blocks: Sequence[int]) -> None:
        """One table less holds each of `blocks`, the deepest of which comes first."""
        refs, pins, node_of = self.refs, self.pins, self.index.node_of
        dropped, reserved = blocks, self.reserved
        holders = list(map(refs.pop, blocks, repeat(0)))
        if holders.count(1) < len(blocks):
            held = list(zip(blocks, holders, strict=True))
            for block, n in held:
                if n > 1:
                    refs[block] = n - 1
            blocks = [block for block, n in held if n <= 1]
        if pins:
            last, blocks = blocks, [block for block in blocks if block not in pins]
            self.reserved += len(last) - len(blocks)
        idle = list(filter(node_of.__contains__, blocks))
        freed: Sequence[int] = ()
        if len(idle) < len(blocks):
            freed = [block for block in blocks if block not in node_of]
        if idle:
            try:
                self._retire(idle)
            except BaseException:  # a policy or a hash_fn: the table keeps its blocks
                refs.update(dropped)
                self.reserved = reserved
                raise
        if freed:
            if self.priority:
                for block in freed:
                    self.priority.pop(block, None)
            self.room.add_all(freed)

    def pin(self, block: int) -> None:
        """Keep a live, published block published."""
        self.pins[block] += 1

    def unpin(self, blocks: Sequence[int]) -> None:
        """Undo one pin() of each of `blocks`, the deepest of which comes first."""
        idle = [block for block in blocks if self.pins[block] == 1 and block not in self.refs]
        if idle:
            self._retire(idle)
            self.reserved -= len(idle)
        for block in blocks:
            self.pins[block] -= 1
            if not self.pins[block]:
                del self.pins[block]

    def shared(self, block: int, gone: int = 0) -> bool:
        """Whether someone else would miss what a holder overwrites, `gone` holders having left."""
        return self.refs[block] - gone > 1 or block in self.pins

    def evict(self, n: int) -> int:
        """Free up to n reclaimable blocks; returns how many."""
        count = max(0, min(n, self.reclaimable))
        blocks = list(islice(self.staged, count))
        if count > len(blocks):
            self.room.add_all(self._evict(count - len(blocks)))
        for block in blocks:
            del self.staged[block]
        self._forget(blocks)
        return count

    def resize(self, num_blocks: int) -> int:
        """Grow, or shrink down to the last held block; returns the new total. O(blocks in use)."""
        held = max(max(self.refs, default=-1), max(self.pins, default=-1))
        new, old = max(num_blocks, held + 1), self.total
        gone = sorted(block for block in self.index.node_of if block >= new)
        self._keep(gone)
        self._forget(gone)
        if new > old:
            self.room.add(old, new - old)
        else:
            self.room.cut(new)
        self.total = new
        return new

    def clear(self) -> None:
        """Every block is free; no table may hold one. Pins are forgotten."""
        try:
            self.policy.clear()
        except Exception as error:
            raise self.failed("clear", error) from error
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

    def _evict(self, n: int) -> list[int]:
        """n blocks that the policy has are free; they are not in the room yet."""
        found = self._pop(n)
        self._forget(found)
        return found

    def _pop(self, n: int) -> list[int]:
        """The next n blocks of the policy. AllocatorError when it has no right to one of them; the
        others are staged then."""
        found: list[int] = []
        try:
            # Keeps what came before an error; one too many is enough to see that there are more.
            found.extend(islice(self.policy.pop_many(n), n + 1))
            if len(found) != n or not self._may_go(found):
                raise self._broken(found, n)
        except BaseException as error:
            numbers = (block for block in found if isinstance(block, int))
            found = [block for block in dict.fromkeys(numbers) if self._may_go((block,))]
            self._gone(found)
            if found:
                self._stage(found)
            if isinstance(error, Exception) and not isinstance(error, AllocatorError):
                raise self.failed("pop", error) from error
            raise
        self._gone(found)
        return found

    def _may_go(self, blocks: Sequence[int]) -> bool:
        """Whether the policy was given all of these and has given up none of them before."""
        once = set(blocks)
        return (
            len(once) == len(blocks)
            and self.index.node_of.keys() >= once
            and self.refs.keys().isdisjoint(once)
            and self.pins.keys().isdisjoint(once)
            and self.staged.keys().isdisjoint(once)
        )

    def _broken(self, found: list[int], n: int) -> AllocatorError:
        """Why `found` are not the n blocks that the policy was asked for."""
        for i, block in enumerate(found):
            if block in found[:i] or not self._may_go((block,)):
                return AllocatorError(
                    f"eviction policy {self.policy.name!r} chose block {block}, which it was not "
                    "given or which was taken from it: the policy is broken"
                )
        return AllocatorError(
            f"eviction policy {self.policy.name!r} gave {len(found)} blocks of {n}: it is broken"
        )

    def failed(self, call: str, error: Exception) -> AllocatorError:
        """The error that says which policy it was."""
        return AllocatorError(f"eviction policy {self.policy.name!r} failed in {call}(): {error!r}")

    def _stage(self, blocks: Sequence[int]) -> bool:
        """Put by what the policy gave up; whether all that is staged is of one priority."""
        levels = [self.priority.get(block, 0) for block in blocks] if self.priority else [0]
        alike = len({*levels, self._staged_priority} if self.staged else {*levels}) == 1
        self._staged_priority = levels[-1]
        self.staged.update(dict.fromkeys(blocks))
        self.room.add_all(blocks)
        return alike

    def _retire(self, blocks: Sequence[int]) -> None:
        """Published blocks that nobody holds any more are reclaimable; the deepest comes first. A
        policy or a hash_fn that raises leaves them as they were."""
        levels = self._levels(blocks)
        if self.staged and min(priority for priority, _ in levels) < self._staged_priority:
            self._unstage()
        self._give(levels)
        self.reclaimable += len(blocks)

    def _unstage(self) -> None:
        """The policy gets back what is staged: it outlives a block that came after it."""
        blocks = list(self.staged)
        self._give(self._levels(blocks))
        self.staged.clear()
        for block in blocks:
            self.room.remove(block)

    def _levels(self, blocks: Sequence[int]) -> list[tuple[int, Sequence[int]]]:
        """Neighbours of equal priority, with it."""
        if not self.priority:
            return [(0, blocks)]
        by_level = groupby(blocks, key=lambda block: self.priority.get(block, 0))
        return [(priority, list(group)) for priority, group in by_level]

    def _give(self, levels: Sequence[tuple[int, Sequence[int]]]) -> None:
        """The policy gets all of these blocks, or none of them and AllocatorError."""
        policy, describe, given = self.policy, self.index.describe, list[int]()
        if self._adds_singly:  # before the policy is told: a hash_fn that raises is not its fault
            for block in (block for _, group in levels for block in group):
                describe(block)
        try:
            for priority, group in levels:
                if self._adds_singly:
                    for block in group:
                        key, depth = describe(block)
                        policy.add(block, key=key, depth=depth, priority=priority)
                        given.append(block)
                else:
                    policy.add_all(group, priority=priority, content=describe)
                    given += group
        except Exception as error:
            with suppress(Exception):  # what it keeps it may not choose, see _may_go()
                policy.remove_all(given)
            raise self.failed("add", error) from error
        for priority, group in levels:
            if priority:
                self._ranked[priority] += len(group)
                self._ranked_in_all += len(group)

    def _left(self, priority: int) -> int:
        """Blocks of that priority that the policy has."""
        if priority:
            return self._ranked.get(priority, 0)
        return self.reclaimable - len(self.staged) - self._ranked_in_all

    def _gone(self, blocks: Sequence[int]) -> None:
        """The policy does not have these any more."""
        if not self._ranked:
            return
        for block in blocks:
            if priority := self.priority.get(block, 0):
                self._ranked[priority] -= 1
                self._ranked_in_all -= 1
                if not self._ranked[priority]:
                    del self._ranked[priority]

    def _keep(self, blocks: Sequence[int]) -> None:
        """Reclaimable blocks are not up for eviction any more."""
        staged: Sequence[int] = ()
        if self.staged:
            staged = [block for block in blocks if block in self.staged]
            blocks = [block for block in blocks if block not in self.staged]
        self._demand(blocks)
        self._gone(blocks)
        for block in staged:
            del self.staged[block]
            self.room.remove(block)

    def _demand(self, blocks: Sequence[int]) -> None:
        """The policy gives all of these blocks back, or AllocatorError; what it had given back
        before it raised is staged then, as reclaimable as before."""
        policy, back = self.policy, list[int]()
        try:
            if self._removes_singly:
                for block in blocks:
                    policy.remove(block)
                    back.append(block)
            else:
                policy.remove_all(blocks)
        except Exception as error:
            if back:
                self._gone(back)
                self._stage(back)
            raise self.failed("remove", error) from error

    def _forget(self, blocks: Sequence[int]) -> None:
        """Reclaimable blocks lose their content."""
        self.index.unpublish(blocks)
        for block in blocks if self.priority else ():
            self.priority.pop(block, None)
        self.reclaimable -= len(blocks)
        self.evicted += len(blocks)
