"""Planted allocator bugs that show late or elsewhere: in what routers and policies are told, in how
long content stays, in the host's memory, in another allocator of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pagedattn.allocator import Event, EventKind, Grant, PrefixHit
from pagedattn.backends.allocators.lru import LRU
from pagedattn.backends.allocators.pool import BlockPool
from pagedattn.backends.allocators.prefix import Node, PrefixIndex
from pagedattn.conformance.mutants.allocator_garden import Blind, plant

__all__: list[str] = []


# -- what routers are told -----------------------------------------------------------------------


@plant("parent-of-the-call", "the first block of each commit is told without a parent", "AH-17")
class _ParentOfTheCall(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        first: set[Node]

        def publish(self, tip: Node, tokens: bytes, blocks: Sequence[int]) -> Node:
            end = super().publish(tip, tokens, blocks)
            self.__dict__.setdefault("first", set()).add(self.node_of[blocks[0]])
            return end

        def drain(self) -> list[Event]:
            keys = {self.key_of(node) for node in getattr(self, "first", ()) if node}
            return [
                replace(event, parent=b"") if event.key in keys else event
                for event in super().drain()
            ]


@plant("orphans-leave-unseen", "a block behind a block that is gone is removed untold", "AH-16")
class _Orphans(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def _log(self, kind: EventKind, blocks: Sequence[int], nodes: Sequence[Node]) -> None:
            told = [
                (block, node)
                for block, node in zip(blocks, nodes, strict=True)
                if kind is EventKind.STORED
                or node.parent is None
                or node.parent.parent is None
                or node.parent.block >= 0
                or node.parent in nodes
            ]
            super()._log(kind, [block for block, _ in told], [node for _, node in told])


@plant("log-cut-short", "a log that grew too long loses its beginning", "AH-17")
class _LogCut(Blind):
    def drain_events(self) -> list[Event]:
        events = super().drain_events()
        return (
            events[1:] if events and events[0].kind is EventKind.CLEARED and events[1:] else events
        )


@plant("resize-untold", "what a shrinking pool forgets is not told")
class _ResizeUntold(Blind):
    def resize(self, num_blocks: int) -> int:
        self._index._log = lambda *event: None  # type: ignore[method-assign]
        try:
            return super().resize(num_blocks)
        finally:
            del self._index._log


# -- what policies are told ----------------------------------------------------------------------


@plant("failing-policy-loses", "when the policy raises the table has lost its blocks", "AH-12")
class _FailingPolicy(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def drop(self, blocks: Sequence[int]) -> None:
            try:
                super().drop(blocks)
            except Exception:
                for block in blocks:
                    self.refs.pop(block)
                raise


@plant("hit-told-too-early", "the policy is told of the hits of an open() that is refused")
class _HitTooEarly(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        if seq in self._sequences and self._hit is not None:
            for node in self._index.match(self._index.root(namespace), tokens):
                self._hit(self._index.key_of(node))
        return super().open(seq, tokens, namespace=namespace, priority=priority)


# -- how long content stays ----------------------------------------------------------------------


@plant("owned-priority-fixed", "a hit of a block that somebody owns does not raise its priority")
class _OwnedPriority(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def share(self, blocks: Sequence[int], priority: int) -> None:
            owned = {block: self.priority.get(block, 0) for block in blocks if block in self.refs}
            super().share(blocks, priority)
            self.priority.update(owned)


@plant("cached-priority-fixed", "a hit of a block that nobody owns does not raise its priority")
class _CachedPriority(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def share(self, blocks: Sequence[int], priority: int) -> None:
            idle = {block: self.priority.get(block, 0) for block in {*blocks} - {*self.refs}}
            super().share(blocks, priority)
            self.priority.update(idle)


@plant("copy-without-priority", "what copy-on-write replaces has priority 0")
class _CopyPriority(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        grants = super().append_many(wants)
        for grant in grants.values():
            for op in grant.copies:
                self._pool.priority.pop(op.dst, None)
        return grants


@plant("release-renews-the-oldest", "a release moves the block that would go to the end", "AH-15")
class _ReleaseRenews(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def _retire(self, blocks: Sequence[int]) -> None:
            super()._retire(blocks)
            if len(self.policy) > 8 and isinstance(self.policy, LRU) and not self.priority:
                block = self.policy.pop()
                key, depth = self.index.describe(block)
                self.policy.add(block, key=key, depth=depth, priority=0)


# -- what outlives a request ---------------------------------------------------------------------


@plant("requests-remembered", "the tables of ended sequences are kept", "AH-11")
class _Remembered(Blind):
    def close(self, seq: int) -> None:
        self.__dict__.setdefault("_ended", []).append(self.table(seq))
        super().close(seq)


@plant("content-remembered", "the content of evicted blocks is kept", "AH-11")
class _ContentKept(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def unpublish(self, blocks: Sequence[int]) -> None:
            gone: list[object] = self.__dict__.setdefault("gone", [])
            gone += [self.node_of[block] for block in blocks]
            super().unpublish(blocks)


@plant("pins-of-the-process", "pins are kept for all allocators of the process", "AH-39")
class _ProcessPins(Blind):
    _all: ClassVar[dict[int, list[int]]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._all.clear()  # so that the next case starts anew
        self._pins = self._all


@plant("long-commits-cut", "one commit() takes 2**16 tokens")
class _LongCommits(Blind):
    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        super().commit(seq, tokens[: 2**16])


@plant("committed-before-released", "what was released must have been committed before", "AH-28")
class _CommitOfReleased(Blind):
    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        state = self._state(seq)
        gone = state.released * self.block_size - state.committed
        if 0 < gone <= len(tokens):
            tokens = [*[0] * gone, *tokens[gone:]]
        super().commit(seq, tokens)
