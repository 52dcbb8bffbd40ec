"""More planted allocator bugs: what an operation costs, and limits that are looked at alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagedattn.allocator import AllocatorStats, Grant, PrefixHit
from pagedattn.backends.allocators.lru import LRU
from pagedattn.backends.allocators.paged import PagedAllocator
from pagedattn.backends.allocators.prefix import Node, PrefixIndex
from pagedattn.conformance.mutants.allocator_garden import Blind, plant

__all__: list[str] = []


class _Scanning(LRU):
    """The right victim, found by looking at every block."""

    def pop(self) -> int:
        looked_at = 0
        for _ in self._run_of:
            looked_at += 1
        assert looked_at == len(self)
        return super().pop()


@plant("eviction-scans", "every eviction looks at all reclaimable blocks", "AH-34")
class _EvictionScans(Blind):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"policy": _Scanning, **options})


@plant("prefix-rehashed", "a block's key is computed from the whole prefix", "AH-34")
class _Rehashed(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def key(self, parent: Node, tokens: bytes) -> bytes:
            node: Node | None = parent
            while node is not None:
                node = node.parent
            return super().key(parent, tokens)


@plant("check-left-on", "every call audits the whole pool first", "AH-34")
class _CheckLeftOn(Blind):
    def _audit(self) -> None:
        for block in range(self.num_blocks):
            assert block >= 0

    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        self._audit()
        return super().open(seq, tokens, namespace=namespace, priority=priority)

    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        self._audit()
        return super().append_many(wants)

    def can_append(self, wants: Mapping[int, int]) -> bool:
        self._audit()
        return super().can_append(wants)

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        self._audit()
        super().commit(seq, tokens)

    def close(self, seq: int) -> None:
        self._audit()
        super().close(seq)

    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        self._audit()
        super().fork(parent, child, length)

    def truncate(self, seq: int, length: int) -> None:
        self._audit()
        super().truncate(seq, length)

    def evict(self, n: int) -> int:
        self._audit()
        return super().evict(n)

    def stats(self) -> AllocatorStats:
        self._audit()
        return super().stats()


@plant("hits-untold", "the policy is not told what is found")
class _HitsUntold(Blind):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._hit = None


@plant("depth-untold", "the policy is told a depth of 0 for every block")
class _DepthUntold(Blind):
    class _index_type(PrefixIndex):  # noqa: N801
        def describe(self, block: int) -> tuple[bytes, int]:
            return super().describe(block)[0], 0


@plant("policy-ignored", "the order of eviction is LRU whatever the policy")
class _PolicyIgnored(Blind):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "policy": LRU})


@plant("abort-leaks", "a sequence closed before its commit keeps its last block", "AH-13")
class _AbortLeaks(Blind):
    def close(self, seq: int) -> None:
        state = self._state(seq)
        if state.committed < state.length:
            state.table.pop()
        super().close(seq)


@plant("too-large-accepted", "what exceeds the whole pool is promised for later", "AH-21")
class _TooLarge(Blind):
    def can_append(self, wants: Mapping[int, int]) -> bool:
        return super().can_append(wants) or sum(wants.values()) > self.num_blocks * self.block_size


@plant("increment-alone", "only what is added is checked, not what is there", "AH-31")
class _IncrementAlone(Blind):
    def can_append(self, wants: Mapping[int, int]) -> bool:
        stats = PagedAllocator.stats(self)
        needed = sum(n // self.block_size for n in wants.values())
        return needed <= stats.free + stats.reclaimable


@plant("window-one-early", "the block in which the window begins is released", "AH-28", "AH-37")
class _WindowEarly(Blind):
    def release_before(self, seq: int, position: int) -> None:
        up = -(-position // self.block_size) * self.block_size
        super().release_before(seq, min(up, self.length(seq)))


@plant("grant-reused", "grants share one list of slots, which the next call rewrites", "AH-38")
class _GrantReused(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        if not hasattr(self, "_slots"):
            self._slots: dict[int, list[int]] = {}
        grants = super().append_many(wants)
        for seq, grant in grants.items():
            self._slots.setdefault(seq, [])[:] = grant.slots
        return {seq: replace(grant, slots=self._slots[seq]) for seq, grant in grants.items()}
