"""Planted bugs: allocators that are wrong in one small, plausible way each.

They test the suite. tests/test_allocator_mutants.py names the case that kills each of them. More of
them are in allocator_aftermath.py, allocator_costs.py, allocator_identity.py, allocator_lapses.py
and allocator_scale.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pagedattn.allocator import (
    AllocatorStats,
    CopyOp,
    EventKind,
    Grant,
    PrefixHit,
)
from pagedattn.backends.allocators.lru import LRU
from pagedattn.backends.allocators.paged import PagedAllocator
from pagedattn.backends.allocators.pool import BlockPool
from pagedattn.backends.allocators.prefix import Node, PrefixIndex, pack
from pagedattn.conformance.mutants import (
    allocator_aftermath as _aftermath,  # noqa: F401 - they enter themselves into PLANTED
    allocator_costs as _costs,  # noqa: F401
    allocator_identity as _identity,  # noqa: F401
    allocator_lapses as _lapses,  # noqa: F401
    allocator_scale as _scale,  # noqa: F401
)
from pagedattn.conformance.mutants.allocator_garden import PLANTED, AllocatorMutant, Blind, plant
from pagedattn.errors import OutOfBlocks

__all__ = ["ALLOCATOR_MUTANTS", "AllocatorMutant"]


# -- identity of content -------------------------------------------------------------------------


@plant("hash-only", "a hash match is trusted without looking at the tokens", "AH-01")
class _HashOnly(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def find(self, parent: Node, tokens: bytes) -> Node | None:
            self.key_of(parent)
            key = self.key(parent, tokens)
            return next((n for n in self.nodes.values() if self.key_of(n) == key), None)


@plant("parent-ignored", "a block is found by its own tokens, whatever comes before", "AH-01")
class _ParentIgnored(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def key(self, parent: Node, tokens: bytes) -> bytes:
            return self._hash(tokens)

        def find(self, parent: Node, tokens: bytes) -> Node | None:
            return next((n for n in self.nodes.values() if n.tokens == tokens), None)


@plant("namespace-ignored", "adapters and tenants share one namespace", "AH-02", "AH-03")
class _NamespaceIgnored(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        return super().open(seq, tokens, priority=priority)


@plant("random-seed", "keys start from a random seed of the process", "AH-35")
class _RandomSeed(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._seed = os.urandom(8)

        def key(self, parent: Node, tokens: bytes) -> bytes:
            return super().key(parent, self._seed + tokens)


@plant("whole-prompt-hit", "a fully cached prompt leaves nothing to compute", "AH-04", "AH-05")
class _WholePromptHit(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        return super().open(seq, [*tokens, 0], namespace=namespace, priority=priority)


@plant("publish-before-commit", "the prompt can be found once it has slots", "AH-18")
class _PublishBeforeCommit(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        hit = super().open(seq, tokens, namespace=namespace, priority=priority)
        self._prompts = {**getattr(self, "_prompts", {}), seq: list(tokens)}
        return hit

    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        grants = super().append_many(wants)
        for seq in wants:
            state = self._state(seq)
            early = self._prompts.get(seq, [])[state.committed : state.length]
            super().commit(seq, early)
        return grants

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        state = self._state(seq)
        super().commit(seq, tokens[: state.length - state.committed])


@plant("partial-block-published", "a partly written last block is published", "AH-06", "AH-17")
class _PartialBlockPublished(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        self._prompts = {**getattr(self, "_prompts", {}), seq: list(tokens)}
        return super().open(seq, tokens, namespace=namespace, priority=priority)

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        super().commit(seq, tokens)
        state = self._state(seq)
        start = state.committed - state.committed % self.block_size
        rest = self._prompts.get(seq, [])[start : start + self.block_size]
        if state.tail and len(rest) == self.block_size:
            block = state.table[start // self.block_size]
            if self._index.node_of[block] is None:
                end = self._index.publish(state.tip, pack(rest), [block])
                self._index.hold(state.tip)
                self._index.drop(end)


@plant("one-copy-indexed", "of two copies of a prefix only the first can be found", "AH-12")
class _OneCopyIndexed(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def publish(self, tip: Node, tokens: bytes, blocks: Sequence[int]) -> Node:
            end = super().publish(tip, tokens, blocks)
            self.unpublish([b for b in blocks if (node := self.node_of[b]) and node.block != b])
            return end


# -- ownership -----------------------------------------------------------------------------------


@plant("fork-without-count", "forking does not raise the count of the last block", "AH-27")
class _ForkWithoutCount(Blind):
    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        super().fork(parent, child, length)
        table = self._state(child).table
        if table and self._pool.refs[table[-1]] > 1:
            self._pool.refs[table[-1]] -= 1


@plant("double-free", "the last block of a closed sequence is freed twice", "AH-09", "AH-10")
class _DoubleFree(Blind):
    def close(self, seq: int) -> None:
        last = self._state(seq).table[-1:]
        super().close(seq)
        for block in last:
            if block in self._pool.room:
                self._pool.room.add(block)


@plant("leak-last-block", "a partly filled last block is never given back", "AH-11")
class _LeakLastBlock(Blind):
    def close(self, seq: int) -> None:
        state = self._state(seq)
        if state.length % self.block_size:
            state.table.pop()
        super().close(seq)


@plant("second-close-ignored", "a second close passes in silence", "AH-09")
class _SecondCloseIgnored(Blind):
    def close(self, seq: int) -> None:
        if seq in self._sequences:
            super().close(seq)


@plant("hit-stays-evictable", "a block that was hit is still up for eviction", "AH-07", "AH-08")
class _HitStaysEvictable(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def share(self, blocks: Sequence[int], priority: int) -> None:
            idle = [block for block in blocks if self.refs[block] == self.pins[block] == 0]
            super().share(blocks, priority)
            self.policy.add_all(idle[::-1], priority=priority, content=self.index.describe)
            self._hit = {*getattr(self, "_hit", ()), *idle}

        def _gone(self, blocks: Sequence[int]) -> None:
            return None

        def _retire(self, blocks: Sequence[int]) -> None:
            hit = getattr(self, "_hit", set[int]()) & {*blocks}
            self.policy.remove_all(sorted(hit))
            self._hit = getattr(self, "_hit", set[int]()) - hit
            super()._retire(blocks)

        def _may_go(self, blocks: Sequence[int]) -> bool:
            return all(self.index.node_of[block] is not None for block in blocks)

        def _forget(self, blocks: Sequence[int]) -> None:
            super()._forget(blocks)
            self._hit = {*getattr(self, "_hit", ())} - {*blocks}


@plant("no-copy-on-write", "shared blocks are written in place", "AH-06", "AH-25")
class _NoCopyOnWrite(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def shared(self, block: int, gone: int = 0) -> bool:
            return False


@plant("copy-one-short", "copy-on-write forgets the last token", "AH-25", "AH-29")
class _CopyOneShort(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        return {
            seq: replace(
                grant,
                copies=tuple(CopyOp(op.src, op.dst, op.tokens - 1) for op in grant.copies),
            )
            for seq, grant in super().append_many(wants).items()
        }


@plant("every-holder-copies", "the last of several holders copies too", "AH-26")
class _EveryHolderCopies(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def shared(self, block: int, gone: int = 0) -> bool:
            return super().shared(block)


@plant("truncate-keeps-key", "a block is overwritten under its old key", "AH-16", "AH-30")
class _TruncateKeepsKey(Blind):
    def _unpublish(self, block: int) -> None:
        return None


@plant("window-offset", "the window is cut from the first kept column on", "AH-28")
class _WindowOffset(Blind):
    def release_before(self, seq: int, position: int) -> None:
        state = self._state(seq)
        shifted = position + state.released * self.block_size
        super().release_before(seq, min(shifted, state.length))


# -- counting ------------------------------------------------------------------------------------


@plant("append-not-atomic", "those before the one that fails keep blocks", "AH-12", "AH-26")
class _AppendNotAtomic(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        grants: dict[int, Grant] = {}
        for seq, n in wants.items():
            grants |= super().append_many({seq: n})
        return grants


@plant("evict-then-fail", "an append that fails has evicted already", "AH-19")
class _EvictThenFail(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        try:
            return super().append_many(wants)
        except OutOfBlocks:
            self._pool.evict(1)
            raise


@plant("can-append-alone", "each sequence is asked for alone", "AH-22", "AH-32")
class _CanAppendAlone(Blind):
    def can_append(self, wants: Mapping[int, int]) -> bool:
        return all(PagedAllocator.can_append(self, {seq: n}) for seq, n in wants.items())


@plant("reclaimable-twice", "reclaimable blocks are counted as free as well", "AH-19", "AH-32")
class _ReclaimableTwice(Blind):
    def can_append(self, wants: Mapping[int, int]) -> bool:
        return self._plan(wants)[0] <= self._pool.available + self._pool.reclaimable


@plant("live-counts-holders", "a block in two tables counts twice", "AH-20")
class _LiveCountsHolders(Blind):
    def stats(self) -> AllocatorStats:
        stats = super().stats()
        live = sum(map(len, (state.table for state in self._sequences.values())))
        return replace(stats, live=live, free=stats.total - live - stats.reclaimable)


@plant("commit-unchecked", "more can be committed than was appended")
class _CommitUnchecked(Blind):
    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        state = self._state(seq)
        super().commit(seq, tokens[: state.length - state.committed])


# -- eviction ------------------------------------------------------------------------------------


@plant("head-first", "the first block of a sequence is evicted first", "AH-14")
class _HeadFirst(Blind):
    def _drop_columns(self, blocks: Sequence[int]) -> None:
        super()._drop_columns(blocks[::-1])


class _Fifo(LRU):
    """Age is when a block first became reclaimable, whatever happened since."""

    def __init__(self) -> None:
        super().__init__()
        self._born: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
        self._born.setdefault(key, len(self._born))
        self._keys[block] = key
        super().add(block, key=key, depth=depth, priority=priority)

    def pop(self) -> int:
        if not self._run_of:
            raise IndexError("no reclaimable block")
        oldest = min(self._run_of, key=lambda block: self._born[self._keys[block]])
        self.remove(oldest)
        return oldest


@plant("touch-keeps-age", "a hit does not move a block in the order", "AH-15")
class _TouchKeepsAge(Blind):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"policy": _Fifo, **options})


@plant("last-priority", "a shared block takes the priority of whoever came last")
class _LastPriority(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def share(self, blocks: Sequence[int], priority: int) -> None:
            super().share(blocks, priority)
            self.priority.update(dict.fromkeys(blocks, priority))


@plant("evicted-stays-indexed", "a block that was evicted keeps its key", "AH-16")
class _EvictedStaysIndexed(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def _forget(self, blocks: Sequence[int]) -> None:
            self.reclaimable -= len(blocks)
            self.evicted += len(blocks)

        def _may_go(self, blocks: Sequence[int]) -> bool:
            return True


@plant("pin-forgotten", "pinned blocks are evicted like others")
class _PinForgotten(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def pin(self, block: int) -> None:
            return None

        def unpin(self, blocks: Sequence[int]) -> None:
            return None


@plant("pin-replaces", "a second pin forgets the blocks of the first")
class _PinReplaces(Blind):
    def pin(self, seq: int) -> None:
        self._pins.pop(seq, None)
        super().pin(seq)


@plant("silent-removal", "the event log says what is stored but not what is removed", "AH-17")
class _SilentRemoval(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def _log(self, kind: EventKind, blocks: Sequence[int], nodes: Sequence[Node]) -> None:
            if kind is EventKind.STORED:
                super()._log(kind, blocks, nodes)


@plant("resize-drops-live", "shrinking ignores who holds the blocks")
class _ResizeDropsLive(Blind):
    def resize(self, num_blocks: int) -> int:
        super().resize(num_blocks)
        self.num_blocks = num_blocks
        return num_blocks


@plant("reset-keeps-prefixes", "reset leaves the prefixes where they are", "AH-03", "AH-39")
class _ResetKeepsPrefixes(Blind):
    def reset(self) -> None:
        if self._sequences:
            super().reset()


ALLOCATOR_MUTANTS: Mapping[str, AllocatorMutant] = MappingProxyType(PLANTED)
