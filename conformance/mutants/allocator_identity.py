"""More planted allocator bugs: what a block, a sequence or a pin is known by, and what of a request
outlives its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagedattn.allocator import CopyOp, Grant, PrefixHit
from pagedattn.backends.allocators.pool import BlockPool
from pagedattn.backends.allocators.prefix import Node, PrefixIndex
from pagedattn.backends.allocators.sequence import SequenceState
from pagedattn.conformance.mutants.allocator_garden import Blind, plant
from pagedattn.errors import OutOfBlocks

__all__: list[str] = []


class _OtherTokens(Blind):
    """Tokens pass through seen() on their way in."""

    def seen(self, token: int) -> int:
        raise NotImplementedError

    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        seen = [self.seen(token) for token in tokens]
        return super().open(seq, seen, namespace=namespace, priority=priority)

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        super().commit(seq, [self.seen(token) for token in tokens])


@plant("tokens-of-32-bits", "token ids are cut to 32 bits", "AH-01")
class _Tokens32(_OtherTokens):
    def seen(self, token: int) -> int:
        return token & 0xFFFFFFFF


@plant("tokens-unsigned", "token ids lose their sign", "AH-01")
class _TokensUnsigned(_OtherTokens):
    def seen(self, token: int) -> int:
        return abs(token)


class _OtherNamespace(Blind):
    """Namespaces pass through seen() on their way in."""

    def seen(self, namespace: bytes) -> bytes:
        raise NotImplementedError

    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        return super().open(seq, tokens, namespace=self.seen(namespace), priority=priority)


@plant("namespace-cut", "a namespace is stored in a field of 64 bytes", "AH-02")
class _NamespaceCut(_OtherNamespace):
    def seen(self, namespace: bytes) -> bytes:
        return namespace[:64]


@plant("namespace-as-text", "a namespace ends at its first zero byte, as text in C", "AH-02")
class _NamespaceText(_OtherNamespace):
    def seen(self, namespace: bytes) -> bytes:
        return namespace.partition(b"\0")[0]


@plant("key-imitated", "a namespace can be chosen that imitates the key of a block", "AH-03")
class _KeyImitated(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def key(self, parent: Node, tokens: bytes) -> bytes:
            before = parent.tokens if parent.parent is None else parent.key
            return self._hash(before + tokens)


@plant("ids-of-32-bits", "sequence ids are cut to 32 bits")
class _Ids32(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        return super().open(seq & 0xFFFFFFFF, tokens, namespace=namespace, priority=priority)

    def close(self, seq: int) -> None:
        super().close(seq & 0xFFFFFFFF)

    def _state(self, seq: int) -> SequenceState:
        return super()._state(seq & 0xFFFFFFFF)


@plant("generated-not-published", "only blocks of the prompt are found again", "AH-36")
class _PromptOnly(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        hit = super().open(seq, tokens, namespace=namespace, priority=priority)
        self._prompts = {**getattr(self, "_prompts", {}), id(self._state(seq)): len(tokens)}
        return hit

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        state = self._state(seq)
        first = state.tip.depth + 1
        super().commit(seq, tokens)
        prompt = self._prompts.get(id(state), state.length) // self.block_size
        for block in state.table[max(first, prompt) : state.tip.depth + 1]:
            self._unpublish(block)


@plant("hit-of-256-blocks", "a prefix is looked up through a table of 256 blocks", "AH-20")
class _ShortHit(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        seen = tokens[: 256 * self.block_size + 1]
        return super().open(seq, seen, namespace=namespace, priority=priority)


@plant("lists-only", "tokens are joined to a list")
class _Lists(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        assert isinstance(tokens, list)
        return super().open(seq, tokens, namespace=namespace, priority=priority)


@plant("copy-for-nothing", "a shared block is copied although no token is appended", "AH-25")
class _CopyForNothing(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        grants = super().append_many(wants)
        for seq, n in wants.items():
            table = self._state(seq).table
            if not n and self.length(seq) % self.block_size and self._pool.refs[table[-1]] > 1:
                op = CopyOp(table[-1], table[-1], self.length(seq) % self.block_size)
                grants[seq] = replace(grants[seq], copies=(op,))
        return grants


# -- fork, pins, reset ---------------------------------------------------------------------------


@plant("fork-without-priority", "what a fork adds has priority 0")
class _ForkPriority(Blind):
    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        super().fork(parent, child, length)
        self._state(child).priority = 0


@plant("empty-fork-unnamed", "a fork of length 0 starts in the empty namespace", "AH-02")
class _EmptyFork(Blind):
    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        super().fork(parent, child, length)
        state = self._state(child)
        if not state.length:
            root = self._index.root(b"")
            self._index.hold(root)
            self._index.drop(state.tip)
            state.tip = root


@plant("pin-is-a-flag", "a block that two have pinned is let go with the first")
class _PinFlag(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def pin(self, block: int) -> None:
            if not self.pins[block]:
                super().pin(block)

        def unpin(self, blocks: Sequence[int]) -> None:
            super().unpin([block for block in blocks if self.pins[block]])


@plant("pin-ends-at-close", "a pinned block is given away while it is copied out", "AH-33")
class _PinEnds(Blind):
    def close(self, seq: int) -> None:
        super().close(seq)
        self._pool.unpin(self._pins.get(seq, [])[::-1])
        if seq in self._pins:
            self._pins[seq] = []


@plant("reset-keeps-pins", "pinned blocks stay where they are at a reset", "AH-39")
class _ResetPins(Blind):
    def reset(self) -> None:
        if self._sequences or not self._pins:
            super().reset()


@plant("resize-drops-pinned", "shrinking gives pinned blocks away")
class _ResizePinned(Blind):
    def resize(self, num_blocks: int) -> int:
        for seq in list(self._pins):
            self.unpin(seq)
        return super().resize(num_blocks)


# -- what is to be had ---------------------------------------------------------------------------


@plant("watermark", "a hundredth of the pool, rounded up, is held back", "AH-24")
class _Watermark(Blind):
    def can_append(self, wants: Mapping[int, int]) -> bool:
        needed = self._plan(wants)[0]
        return not needed or needed + -(-self.num_blocks // 100) <= self._pool.available

    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        if not self.can_append(wants):
            raise OutOfBlocks(self._plan(wants)[0], self._pool.available)
        return super().append_many(wants)


@plant("freed-at-the-next-close", "the blocks of a closed sequence come back late", "AH-23")
class _FreedLate(Blind):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._last: SequenceState | None = None

    def close(self, seq: int) -> None:
        state, before = self._state(seq), self._last
        del self._sequences[seq]
        if before is not None:
            self._drop_columns(before.table)
            self._index.drop(before.tip)
        self._last = state


@plant("priority-classes", "priorities are three classes: low, normal, high")
class _PriorityClasses(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        level = max(-1, min(priority, 1))
        return super().open(seq, tokens, namespace=namespace, priority=level)


@plant("asking-renews", "can_append() moves the block that would go to the end", "AH-15")
class _AskingRenews(Blind):
    def can_append(self, wants: Mapping[int, int]) -> bool:
        possible = super().can_append(wants)
        if self._pool.reclaimable > 1 and not self._pool.staged:
            block = self._policy.pop()
            node = self._index.node_of[block]
            assert node is not None
            priority = self._pool.priority[block]
            key = self._index.key_of(node)
            self._policy.add(block, key=key, depth=node.depth, priority=priority)
        return possible


@plant("table-walked", "every append goes through the whole table of the sequence", "AH-34")
class _TableWalked(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        for seq in wants:
            for block in self._state(seq).table:
                assert block >= -1
        return super().append_many(wants)


@plant("commit-walks", "every commit goes through all blocks before it", "AH-34")
class _CommitWalks(Blind):
    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        for block in self._state(seq).table:
            assert block >= -1
        super().commit(seq, tokens)
