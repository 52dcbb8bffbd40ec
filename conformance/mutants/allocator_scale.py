"""Planted allocator bugs that show in wide batches, large pools, far slots and many namespaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pagedattn.allocator import Grant, PrefixHit
from pagedattn.backends.allocators.pool import BlockPool
from pagedattn.conformance.mutants.allocator_garden import Blind, plant
from pagedattn.errors import AllocatorError

__all__: list[str] = []

_WIDE = 8


# -- calls ---------------------------------------------------------------------------------------


@plant("wide-calls-in-parts", "a call for many sequences is made of calls for a few", "AH-26")
class _Parts(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        seqs, grants = list(wants), dict[int, Grant]()
        for first in range(0, len(seqs), _WIDE):
            grants |= super().append_many({s: wants[s] for s in seqs[first : first + _WIDE]})
        return grants


@plant("wide-calls-promised", "of a call for many sequences the first few are asked for", "AH-22")
class _Promised(Blind):
    def can_append(self, wants: Mapping[int, int]) -> bool:
        return super().can_append({seq: wants[seq] for seq in list(wants)[:_WIDE]})


@plant("wrong-call-evicts", "a call that is refused for a wrong count has evicted", "AH-26")
class _WrongCallEvicts(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        try:
            return super().append_many(wants)
        except (ValueError, AllocatorError):
            self._pool.evict(1)
            raise


@plant("evicts-one-more", "an append that evicts takes a block more than it needs")
class _OneMore(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        evicted = self._pool.evicted
        grants = super().append_many(wants)
        if self._pool.evicted > evicted:
            self._pool.evict(1)
        return grants


@plant("appends-uncounted", "what makes room for an append is not counted as evicted")
class _Uncounted(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        evicted = self._pool.evicted
        try:
            return super().append_many(wants)
        finally:
            self._pool.evicted = evicted


@plant("slots-of-32-bits", "slots wrap at 2**31")
class _Slots32(Blind):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        return {
            seq: replace(grant, slots=[(slot + 2**31) % 2**32 - 2**31 for slot in grant.slots])
            for seq, grant in super().append_many(wants).items()
        }


# -- many and large ------------------------------------------------------------------------------


@plant("namespaces-of-a-byte", "a namespace is a number of 6 bits", "AH-02")
class _FewNamespaces(Blind):
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        numbers: dict[bytes, int] = self.__dict__.setdefault("_numbers", {})
        number = numbers.setdefault(namespace, len(numbers) % 64)
        return super().open(seq, tokens, namespace=bytes([number]), priority=priority)


@plant("staged-first", "in a large pool what waits to go goes before what came later")
class _StagedFirst(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def _unstage(self) -> None:
            return None


@plant("large-head-first", "in a large pool heads go before tails", "AH-14")
class _LargeHeads(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def _retire(self, blocks: Sequence[int]) -> None:
            super()._retire(blocks[::-1] if self.total > 256 else blocks)


@plant("staged-and-hit", "a block that was to go next can be given away while it is owned", "AH-08")
class _StagedAndHit(Blind):
    class _pool_type(BlockPool):  # noqa: N801
        def _keep(self, blocks: Sequence[int]) -> None:
            staged = [block for block in blocks if block in self.staged]
            super()._keep(blocks)
            self.room.add_all(staged)


@plant("growing-forgets", "a pool that grows starts without prefixes")
class _GrowingForgets(Blind):
    def resize(self, num_blocks: int) -> int:
        if num_blocks > self.num_blocks:
            self._pool.evict(self.num_blocks)
        return super().resize(num_blocks)


@plant(
    "pin-of-the-rest", "pin() keeps what lies behind released blocks and is never found", "AH-12"
)
class _PinOfTheRest(Blind):
    def pin(self, seq: int) -> None:
        super().pin(seq)
        state = self._state(seq)
        columns = range(state.released, state.committed // self.block_size)
        for block in [state.table[column] for column in columns if state.released]:
            self._pool.pin(block)
            self._pins[seq].append(block)
