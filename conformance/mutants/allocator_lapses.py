"""Planted allocator bugs that show in long blocks, long families, far priorities, and after calls
that raised. They are planted on the allocator's calls, not on its inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pagedattn.allocator import Grant, PrefixHit
from pagedattn.conformance.mutants.allocator_garden import Blind, plant
from pagedattn.errors import OutOfBlocks

__all__: list[str] = []


class _OtherContent(Blind):
    """Tokens pass through seen() on their way in, with their positions."""

    def seen(self, position: int, token: int) -> int:
        raise NotImplementedError

    def _all(self, start: int, tokens: Sequence[int]) -> list[int]:
        return [
            self.seen(start + i, token) if isinstance(token, int) else token
            for i, token in enumerate(tokens)
        ]

    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        return super().open(seq, self._all(0, tokens), namespace=namespace, priority=priority)

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        super().commit(seq, self._all(self._state(seq).committed, tokens))


@plant("last-16-tokens", "a block is known by its last 16 tokens", "AH-01")
class _LastSixteen(_OtherContent):
    def seen(self, position: int, token: int) -> int:
        return token if position % self.block_size >= self.block_size - 16 else 0


@plant("tokens-as-floats", "tokens take a detour through floating point", "AH-01")
class _Floats(_OtherContent):
    def seen(self, position: int, token: int) -> int:
        return int(float(token)) if abs(token) < 2**63 - 2**10 else token


class _Opening(Blind):
    """What open() is given goes through one place."""

    def opened(self, seq: int, tokens: Sequence[int], namespace: bytes, priority: int) -> PrefixHit:
        return Blind.open(self, seq, tokens, namespace=namespace, priority=priority)

    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        return self.opened(seq, tokens, namespace, priority)


@plant("blocks-of-one", "with blocks of one token the last hit block is left out", "AH-04")
class _BlocksOfOne(_Opening):
    def opened(self, seq: int, tokens: Sequence[int], namespace: bytes, priority: int) -> PrefixHit:
        short = tokens[:-1] if self.block_size == 1 and len(tokens) > 1 else tokens
        return super().opened(seq, short, namespace, priority)


@plant("priorities-up-to-10", "priorities above 10 are all alike")
class _Priorities(_Opening):
    def opened(self, seq: int, tokens: Sequence[int], namespace: bytes, priority: int) -> PrefixHit:
        return super().opened(seq, tokens, namespace, min(10, priority))


@plant("bad-token-leaks", "a hit is kept when a later token of the prompt is none", "AH-12")
class _BadTokenLeaks(_Opening):
    def opened(self, seq: int, tokens: Sequence[int], namespace: bytes, priority: int) -> PrefixHit:
        try:
            return super().opened(seq, tokens, namespace, priority)
        except ValueError:
            good = next((i for i, t in enumerate(tokens) if not isinstance(t, int)), 0)
            if good > self.block_size:
                self._lost = getattr(self, "_lost", 10**6) + 1
                super().opened(self._lost, tokens[:good], namespace, priority)
            raise


@plant("pins-end-with-the-id", "using an id again drops what it had pinned")
class _PinsOfId(_Opening):
    def opened(self, seq: int, tokens: Sequence[int], namespace: bytes, priority: int) -> PrefixHit:
        hit = super().opened(seq, tokens, namespace, priority)
        if seq in self._pins:
            self.unpin(seq)
        return hit


@plant("failed-open-counts", "an open() of an open id is counted as a lookup")
class _FailedOpen(_Opening):
    def opened(self, seq: int, tokens: Sequence[int], namespace: bytes, priority: int) -> PrefixHit:
        self._lookups += seq in self._sequences
        return super().opened(seq, tokens, namespace, priority)


@plant("grandchildren-of-no-priority", "a fork of a fork has priority 0")
class _Grandchildren(Blind):
    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        super().fork(parent, child, length)
        children: set[int] = self.__dict__.setdefault("_children", set())
        if parent in children:
            self._state(child).priority = 0
        children.add(child)


@plant("children-are-pinned", "a fork of a pinned sequence is pinned too", "AH-12")
class _ChildrenPinned(Blind):
    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        super().fork(parent, child, length)
        if parent in self._pins:
            self.pin(child)


@plant("children-forget-windows", "a child may cut into what its parent has released", "AH-28")
class _ChildWindow(Blind):
    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        super().fork(parent, child, length)
        self._state(child).released = 0

    def close(self, seq: int) -> None:
        state = self._state(seq)
        state.released = sum(block < 0 for block in state.table)
        super().close(seq)


@plant("pins-of-nothing-ignored", "pin() of nothing is no pin, and its unpin() raises")
class _PinsOfNothing(Blind):
    def pin(self, seq: int) -> None:
        if self._state(seq).committed >= self.block_size:
            super().pin(seq)


@plant("good-before-bad", "the sequences before a wrong count keep what they got", "AH-26")
class _GoodBeforeBad(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        good: dict[int, int] = {}
        for seq, n in wants.items():
            if not isinstance(n, int) or n < 0 or seq not in self._sequences:
                if self.can_append(good):
                    super().append_many(good)
                break
            good[seq] = n
        return super().append_many(wants)


@plant("available-is-free", "OutOfBlocks counts the free blocks alone", "AH-19")
class _AvailableIsFree(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        try:
            return super().append_many(wants)
        except OutOfBlocks as error:
            raise OutOfBlocks(error.needed, self.stats().free) from None


@plant("table-is-the-list", "table() hands out the list that later calls change", "AH-38")
class _LiveTable(Blind):
    def table(self, seq: int) -> Sequence[int]:
        return self._state(seq).table


@plant("reset-forgets-counters", "reset() sets the counters of stats() back")
class _Counters(Blind):
    def reset(self) -> None:
        super().reset()
        self._lookups = self._hit_tokens = 0


@plant(
    "released-whole", "a sequence that has released all its blocks loses its last column", "AH-28"
)
class _ReleasedWhole(Blind):
    def release_before(self, seq: int, position: int) -> None:
        super().release_before(seq, position)
        state = self._state(seq)
        if state.released and state.released == len(state.table):
            state.table.pop()
            state.released -= 1
