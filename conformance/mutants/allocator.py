"""Planted bugs: allocators that are wrong in one small, plausible way each.

They test the suite. tests/test_allocator_mutants.py names the case that kills each of them. Their
check() is blind, so that the suite must notice by behaviour, as it must with a stranger's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from pagedattn.allocator import (
    AllocatorStats,
    BlockAllocator,
    CopyOp,
    EventKind,
    Grant,
    PrefixHit,
    Violation,
)
from pagedattn.backends.allocators.lru import LRU
from pagedattn.backends.allocators.paged import PagedAllocator
from pagedattn.backends.allocators.pool import BlockPool
from pagedattn.backends.allocators.prefix import Node, PrefixIndex, pack
from pagedattn.errors import OutOfBlocks

__all__ = ["ALLOCATOR_MUTANTS", "AllocatorMutant"]


@dataclass(frozen=True)
class AllocatorMutant:
    """One planted bug.

    summary  what it does wrong
    faults   entries of the public fault collection that are this bug
    make     the factory that a conformance case gets as its subject
    """

    name: str
    summary: str
    faults: tuple[str, ...]
    make: Callable[..., BlockAllocator]


class _Blind(PagedAllocator):
    def check(self) -> list[Violation]:
        return []


_found: dict[str, AllocatorMutant] = {}


def _plant(name: str, summary: str, *faults: str) -> Callable[[type[_Blind]], type[_Blind]]:
    def add(cls: type[_Blind]) -> type[_Blind]:
        _found[name] = AllocatorMutant(name, summary, faults, cls)
        return cls

    return add


# -- identity of content -------------------------------------------------------------------------


@_plant("hash-only", "a hash match is trusted without looking at the tokens", "AH-01")
class _HashOnly(_Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def _lookup(self, key: bytes, parent: Node, tokens: bytes) -> Node | None:
            return next(iter(self.by_key.get(key, ())), None)


@_plant("parent-ignored", "a block is found by its own tokens, whatever comes before", "AH-01")
class _ParentIgnored(_Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def key(self, parent: Node, tokens: bytes) -> bytes:
            return self._hash(tokens)

        def _lookup(self, key: bytes, parent: Node, tokens: bytes) -> Node | None:
            return next((n for n in self.by_key.get(key, ()) if n.tokens == tokens), None)


@_plant("namespace-ignored", "adapters and tenants share one namespace", "AH-02", "AH-03")
class _NamespaceIgnored(_Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        return super().open(seq, tokens, priority=priority)


@_plant("random-seed", "keys start from a random seed of the process", "AH-35")
class _RandomSeed(_Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._seed = os.urandom(8)

        def key(self, parent: Node, tokens: bytes) -> bytes:
            return super().key(parent, self._seed + tokens)


@_plant("whole-prompt-hit", "a fully cached prompt leaves nothing to compute", "AH-04", "AH-05")
class _WholePromptHit(_Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        return super().open(seq, [*tokens, 0], namespace=namespace, priority=priority)


@_plant("publish-before-commit", "the prompt can be found once it has slots", "AH-18")
class _PublishBeforeCommit(_Blind):
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


@_plant("partial-block-published", "a partly written last block is published", "AH-06", "AH-17")
class _PartialBlockPublished(_Blind):
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
                self._index.publish(block, self._index.child(state.tip, pack(rest)))


@_plant("one-copy-indexed", "of two copies of a prefix only the first can be found", "AH-12")
class _OneCopyIndexed(_Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def publish(self, block: int, node: Node) -> None:
            if not node.blocks:
                super().publish(block, node)


# -- ownership -----------------------------------------------------------------------------------


@_plant("fork-without-count", "forking does not raise the count of the last block", "AH-27")
class _ForkWithoutCount(_Blind):
    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        super().fork(parent, child, length)
        table = self._state(child).table
        if table and self._pool.refs[table[-1]] > 1:
            self._pool.refs[table[-1]] -= 1


@_plant("double-free", "the last block of a closed sequence is freed twice", "AH-09", "AH-10")
class _DoubleFree(_Blind):
    def close(self, seq: int) -> None:
        last = self._state(seq).table[-1:]
        super().close(seq)
        for block in last:
            if block in self._pool.room:
                self._pool.room.add(block)


@_plant("leak-last-block", "a partly filled last block is never given back", "AH-11")
class _LeakLastBlock(_Blind):
    def close(self, seq: int) -> None:
        state = self._state(seq)
        if state.length % self.block_size:
            state.table.pop()
        super().close(seq)


@_plant("second-close-ignored", "a second close passes in silence", "AH-09")
class _SecondCloseIgnored(_Blind):
    def close(self, seq: int) -> None:
        if seq in self._sequences:
            super().close(seq)


@_plant("hit-stays-evictable", "a block that was hit is still up for eviction", "AH-07", "AH-08")
class _HitStaysEvictable(_Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def share(self, block: int, priority: int) -> None:
            idle, node = self.refs[block] == self.pins[block] == 0, self.index.node_of[block]
            super().share(block, priority)
            if idle and node is not None:
                self.policy.add(block, key=node.key, depth=node.depth, priority=priority)
                self._hit = {*getattr(self, "_hit", ()), block}

        def _retire(self, block: int) -> None:
            if block in getattr(self, "_hit", ()):
                self._hit.discard(block)
                self.policy.remove(block)
            super()._retire(block)

        def _is_reclaimable(self, block: int) -> bool:
            return self.index.node_of[block] is not None

        def _forget(self, block: int) -> None:
            super()._forget(block)
            self._hit = {*getattr(self, "_hit", ())} - {block}


@_plant("no-copy-on-write", "shared blocks are written in place", "AH-06", "AH-25")
class _NoCopyOnWrite(_Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def shared(self, block: int, gone: int = 0) -> bool:
            return False


@_plant("copy-one-short", "copy-on-write forgets the last token", "AH-25", "AH-29")
class _CopyOneShort(_Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        return {
            seq: replace(
                grant,
                copies=tuple(CopyOp(op.src, op.dst, op.tokens - 1) for op in grant.copies),
            )
            for seq, grant in super().append_many(wants).items()
        }


@_plant("every-holder-copies", "the last of several holders copies too", "AH-26")
class _EveryHolderCopies(_Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def shared(self, block: int, gone: int = 0) -> bool:
            return super().shared(block)


@_plant("truncate-keeps-key", "a block is overwritten under its old key", "AH-16", "AH-30")
class _TruncateKeepsKey(_Blind):
    def _unpublish(self, block: int) -> None:
        return None


@_plant("window-offset", "the window is cut from the first kept column on", "AH-28")
class _WindowOffset(_Blind):
    def release_before(self, seq: int, position: int) -> None:
        state = self._state(seq)
        shifted = position + state.released * self.block_size
        super().release_before(seq, min(shifted, state.length))


# -- counting ------------------------------------------------------------------------------------


@_plant("append-not-atomic", "those before the one that fails keep blocks", "AH-12", "AH-26")
class _AppendNotAtomic(_Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        grants: dict[int, Grant] = {}
        for seq, n in wants.items():
            grants |= super().append_many({seq: n})
        return grants


@_plant("evict-then-fail", "an append that fails has evicted already", "AH-19")
class _EvictThenFail(_Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        try:
            return super().append_many(wants)
        except OutOfBlocks:
            self._pool.evict(1)
            raise


@_plant("can-append-alone", "each sequence is asked for alone", "AH-22", "AH-32")
class _CanAppendAlone(_Blind):
    def can_append(self, wants: Mapping[int, int]) -> bool:
        return all(PagedAllocator.can_append(self, {seq: n}) for seq, n in wants.items())


@_plant("reclaimable-twice", "reclaimable blocks are counted as free as well", "AH-19", "AH-32")
class _ReclaimableTwice(_Blind):
    def can_append(self, wants: Mapping[int, int]) -> bool:
        return self._plan(wants)[0] <= self._pool.available + self._pool.reclaimable


@_plant("live-counts-holders", "a block in two tables counts twice", "AH-20")
class _LiveCountsHolders(_Blind):
    def stats(self) -> AllocatorStats:
        stats = super().stats()
        live = sum(map(len, (state.table for state in self._sequences.values())))
        return replace(stats, live=live, free=stats.total - live - stats.reclaimable)


@_plant("commit-unchecked", "more can be committed than was appended")
class _CommitUnchecked(_Blind):
    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        state = self._state(seq)
        super().commit(seq, tokens[: state.length - state.committed])


# -- eviction ------------------------------------------------------------------------------------


@_plant("head-first", "the first block of a sequence is evicted first", "AH-14")
class _HeadFirst(_Blind):
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
        if not self._priority:
            raise IndexError("no reclaimable block")
        oldest = min(self._priority, key=lambda block: self._born[self._keys[block]])
        self.remove(oldest)
        return oldest


@_plant("touch-keeps-age", "a hit does not move a block in the order", "AH-15")
class _TouchKeepsAge(_Blind):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"policy": _Fifo, **options})


@_plant("last-priority", "a shared block takes the priority of whoever came last")
class _LastPriority(_Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def share(self, block: int, priority: int) -> None:
            super().share(block, priority)
            self.priority[block] = priority


@_plant("evicted-stays-indexed", "a block that was evicted keeps its key", "AH-16")
class _EvictedStaysIndexed(_Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def _forget(self, block: int) -> None:
            self.reclaimable -= 1
            self.evicted += 1

        def _is_reclaimable(self, block: int) -> bool:
            return True


@_plant("pin-forgotten", "pinned blocks are evicted like others")
class _PinForgotten(_Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def pin(self, block: int) -> None:
            return None

        def unpin(self, block: int) -> None:
            return None


@_plant("silent-removal", "the event log says what is stored but not what is removed", "AH-17")
class _SilentRemoval(_Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def _log(self, kind: EventKind, block: int, node: Node) -> None:
            if kind is EventKind.STORED:
                super()._log(kind, block, node)


@_plant("resize-drops-live", "shrinking ignores who holds the blocks")
class _ResizeDropsLive(_Blind):
    def resize(self, num_blocks: int) -> int:
        super().resize(num_blocks)
        self.num_blocks = num_blocks
        return num_blocks


@_plant("reset-keeps-prefixes", "reset leaves the prefixes where they are", "AH-03", "AH-39")
class _ResetKeepsPrefixes(_Blind):
    def reset(self) -> None:
        if self._sequences:
            super().reset()


ALLOCATOR_MUTANTS: Mapping[str, AllocatorMutant] = MappingProxyType(_found)
