"""The allocator under test together with its model.

Every method makes the call, carries it out on the model (grants are written at once, copies
first), and compares everything observable. A call that fails must have changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagedattn.allocator import (
    Addressing,
    AllocatorCapabilities,
    AllocatorStats,
    BlockAllocator,
    Grant,
    Prefix,
    PrefixHit,
)
from pagedattn.conformance.allocator.audit import (
    audit,
    audit_evicted,
    audit_grant,
    audit_hit,
    audit_out_of_blocks,
    must_find,
)
from pagedattn.conformance.allocator.contents import Contents
from pagedattn.conformance.allocator.expect import fail, must
from pagedattn.conformance.allocator.replay import Replay
from pagedattn.conformance.case import Declined
from pagedattn.errors import OutOfBlocks, Unsupported

__all__ = ["Factory", "Shadow", "Tracked"]

Factory = Callable[..., BlockAllocator]


@dataclass
class Tracked:
    """An open sequence: tokens with slots, the content number of each, how many are committed,
    and how many columns were released."""

    namespace: bytes
    tokens: list[int]
    contents: list[int]
    committed: int
    released: int = 0


@dataclass(frozen=True)
class _Snapshot:
    """Everything observable that a failed or pure call may not change."""

    stats: AllocatorStats
    tables: dict[int, tuple[int, ...]]
    lengths: dict[int, int]


class Shadow:
    """unique_keys=False tells that hash collisions are planted; options go to the factory."""

    def __init__(
        self,
        make: Factory,
        *,
        num_blocks: int,
        block_size: int,
        unique_keys: bool = True,
        **options: Any,
    ) -> None:
        try:
            self.alloc = make(num_blocks=num_blocks, block_size=block_size, **options)
        except Unsupported as error:
            raise Declined(error.refusals) from None
        self.caps: AllocatorCapabilities = self.alloc.capabilities()
        self.paged = self.caps.addressing is Addressing.PAGED  # so that counts are exact
        self.cached = self.caps.prefix is not Prefix.NONE
        self.block_size, self.total = block_size, num_blocks
        self.sequences: dict[int, Tracked] = {}
        self.pinned: dict[int, tuple[bytes, list[int]]] = {}  # id -> namespace, pinned tokens
        self.contents = Contents(block_size)
        self.replay = Replay(
            self.contents,
            whole_blocks=self.caps.hit_granularity == block_size,
            unique_keys=unique_keys,
        )
        audit(self, "construction")

    def stats(self) -> AllocatorStats:
        """Counters of the allocator."""
        return self.alloc.stats()

    def available(self) -> int:
        """Blocks that could be had."""
        stats = self.stats()
        return stats.free + stats.reclaimable

    # -- life of a sequence --------------------------------------------------------------------

    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        """open(); OutOfBlocks passes through where the addressing allows it."""
        who = f"open of {len(tokens)} tokens {list(tokens)[:12]} in {namespace!r}"
        least, stats, before = must_find(self, namespace, tokens), self.stats(), self._snapshot()
        try:
            hit = self.alloc.open(seq, tokens, namespace=namespace, priority=priority)
        except OutOfBlocks as error:
            must(not self.paged, "open-hit", "open() to need no block", repr(error))
            self._unchanged(before, "open-hit", who)
            raise
        numbers = self.contents.numbers(namespace, tokens)
        audit_hit(self, hit, tuple(self.alloc.table(seq)), numbers, least, who)
        after = self.stats()
        must(
            (after.lookups - stats.lookups, after.hit_tokens - stats.hit_tokens) == (1, hit.tokens),
            "stats-identity",
            f"1 lookup and {hit.tokens} hit tokens more than {stats}",
            after,
        )
        self.contents.copy(hit.copies)
        self.sequences[seq] = Tracked(
            namespace, list(tokens[: hit.tokens]), numbers[: hit.tokens], hit.tokens
        )
        audit(self, who)
        return hit

    def append(self, wants: Mapping[int, Sequence[int]]) -> dict[int, Grant]:
        """append_many() of these tokens, predicted by can_append(). OutOfBlocks passes through."""
        counts = {seq: len(tokens) for seq, tokens in wants.items()}
        before, available, stats = self._snapshot(), self.available(), self.stats()
        promise = self.alloc.can_append(counts)
        self._unchanged(before, "can-append", "can_append()")
        try:
            grants = self.alloc.append_many(counts)
        except OutOfBlocks as error:
            must(not promise, "can-append", f"False for {counts}", f"True, then {error!r}")
            self._unchanged(before, "append-atomic", "append_many() that raised OutOfBlocks")
            if self.paged:
                audit_out_of_blocks(self, error, counts, available)
            raise
        must(promise, "can-append", f"True for {counts}", "False, then append_many succeeded")
        must(set(grants) == set(wants), "append-atomic", f"grants for {list(wants)}", list(grants))
        for seq, n in counts.items():
            first, table = len(self.sequences[seq].tokens), tuple(self.alloc.table(seq))
            audit_grant(self, first, n, grants[seq], before.tables[seq], table)
        if self.paged:
            audit_evicted(stats, self.stats(), sum(len(grant.blocks) for grant in grants.values()))
        self._write(wants, grants)
        audit(self, f"append of {counts}")
        return grants

    def _write(self, wants: Mapping[int, Sequence[int]], grants: Mapping[int, Grant]) -> None:
        for seq in wants:
            self.contents.copy(grants[seq].copies)
        writer: dict[int, int] = {}
        for seq, tokens in wants.items():
            tracked, first = self.sequences[seq], len(self.sequences[seq].tokens)
            tracked.tokens += tokens
            tracked.contents = self.contents.numbers(tracked.namespace, tracked.tokens)
            for slot, number in zip(grants[seq].slots, tracked.contents[first:], strict=True):
                must(
                    slot not in writer,
                    "copy-on-write",
                    "one writer for each slot",
                    f"slot {slot} was granted to sequences {writer.get(slot)} and {seq}",
                )
                writer[slot] = seq
                self.contents.write(slot, number)

    def commit(self, seq: int, n: int | None = None) -> None:
        """commit() of the next n tokens; default all that were appended."""
        tracked = self.sequences[seq]
        end = len(tracked.tokens) if n is None else tracked.committed + n
        self.alloc.commit(seq, tracked.tokens[tracked.committed : end])
        self.contents.committed.update(tracked.contents[tracked.committed : end])
        tracked.committed = end
        audit(self, f"commit of sequence {seq} up to {end}")

    def prefill(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        """open(), append what was not hit, commit it."""
        hit = self.open(seq, tokens, namespace=namespace, priority=priority)
        self.append({seq: tokens[hit.tokens :]})
        self.commit(seq)
        return hit

    def truncate(self, seq: int, length: int) -> None:
        """truncate()."""
        self.alloc.truncate(seq, length)
        tracked = self.sequences[seq]
        del tracked.tokens[length:], tracked.contents[length:]
        tracked.committed = min(tracked.committed, length)
        audit(self, f"truncate of sequence {seq} to {length}")

    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        """fork(); OutOfBlocks passes through."""
        before = self._snapshot()
        try:
            self.alloc.fork(parent, child, length)
        except OutOfBlocks:
            self._unchanged(before, "append-atomic", "fork() that raised OutOfBlocks")
            raise
        tracked = self.sequences[parent]
        end = tracked.committed if length is None else length
        self.sequences[child] = Tracked(
            tracked.namespace, tracked.tokens[:end], tracked.contents[:end], end, tracked.released
        )
        audit(self, f"fork of {parent} to {child} at {end}")

    def close(self, seq: int) -> None:
        """close()."""
        self.alloc.close(seq)
        del self.sequences[seq]
        audit(self, f"close of sequence {seq}")

    def release_before(self, seq: int, position: int) -> None:
        """release_before()."""
        self.alloc.release_before(seq, position)
        tracked = self.sequences[seq]
        tracked.released = max(tracked.released, position // self.block_size)
        audit(self, f"release_before of sequence {seq} below {position}")

    # -- the cache -----------------------------------------------------------------------------

    def pin(self, seq: int) -> None:
        """pin(); declined where it is not offered."""
        try:
            self.alloc.pin(seq)
        except Unsupported as error:
            raise Declined(error.refusals) from None
        tracked = self.sequences[seq]
        kept = 0 if tracked.released else tracked.committed
        self.pinned[seq] = (tracked.namespace, tracked.tokens[:kept])
        audit(self, f"pin of sequence {seq}")

    def unpin(self, seq: int) -> None:
        """unpin()."""
        self.alloc.unpin(seq)
        del self.pinned[seq]
        audit(self, f"unpin of sequence {seq}")

    def evict(self, n: int) -> int:
        """evict(), whose answer must be what became free."""
        before = self.stats()
        freed = self.alloc.evict(n)
        after = self.stats()
        must(
            freed <= min(n, before.reclaimable) and after.free - before.free == freed,
            "eviction",
            f"evict({n}) to return how many of {before.reclaimable} blocks became free",
            f"it returned {freed}; free went from {before.free} to {after.free}",
        )
        audit(self, f"evict({n})")
        return freed

    def resize(self, num_blocks: int) -> int:
        """resize(), whose answer is the new total."""
        new = self.alloc.resize(num_blocks)
        must(new >= num_blocks, "resize", f"at least {num_blocks} blocks", new)
        self.total = new
        audit(self, f"resize({num_blocks})")
        return new

    def reset(self) -> None:
        """reset()."""
        self.alloc.reset()
        self.pinned.clear()
        audit(self, "reset()")

    def drain(self) -> None:
        """Close and unpin everything: all blocks must come back."""
        for seq in list(self.sequences):
            self.close(seq)
        for seq in list(self.pinned):
            self.unpin(seq)
        stats = self.stats()
        must(
            stats.free + stats.reclaimable == stats.total,
            "close",
            "every block free or reclaimable after the last close",
            stats,
        )
        freed = self.evict(stats.total)
        must(
            self.stats().free == stats.total,
            "eviction",
            f"evict({stats.total}) to free all of {stats}",
            f"it freed {freed}",
        )

    # -- misuse --------------------------------------------------------------------------------

    def refused(
        self,
        error: type[Exception],
        rule: str,
        what: str,
        call: Callable[..., object],
        *arguments: object,
    ) -> str:
        """call(*arguments) must raise `error` and change nothing; returns what it says."""
        before = self._snapshot()
        try:
            call(*arguments)
        except error as raised:
            message = str(raised)
        except Exception as other:
            raise fail(rule, f"{error.__name__} for {what}", repr(other)) from other
        else:
            raise fail(rule, f"{error.__name__} for {what}", "it was accepted")
        self._unchanged(before, rule, what)
        audit(self, what)
        return message

    def _snapshot(self) -> _Snapshot:
        a, seqs = self.alloc, self.sequences
        return _Snapshot(
            replace(a.stats(), lookups=0, hit_tokens=0),
            {seq: tuple(a.table(seq)) for seq in seqs},
            {seq: a.length(seq) for seq in seqs},
        )

    def _unchanged(self, before: _Snapshot, rule: str, what: str) -> None:
        after = self._snapshot()
        must(after == before, rule, f"{what} to change nothing", f"{before} became {after}")
