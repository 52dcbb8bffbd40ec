"""What must hold after every call, and of every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pagedattn.allocator import AllocatorStats, CopyOp, Grant, Prefix, PrefixHit
from pagedattn.conformance.allocator.expect import must
from pagedattn.errors import OutOfBlocks

if TYPE_CHECKING:
    from pagedattn.conformance.allocator.shadow import Shadow, Tracked

__all__ = [
    "audit",
    "audit_evicted",
    "audit_grant",
    "audit_hit",
    "audit_out_of_blocks",
    "must_find",
]


def audit(s: Shadow, after: str) -> None:
    """The whole state of the allocator against the model."""
    violations = s.alloc.check()
    must(not violations, "stats-identity", f"no violation after {after}", violations)
    tables = {seq: tuple(s.alloc.table(seq)) for seq in s.sequences}
    for seq, tracked in s.sequences.items():
        _audit_sequence(s, tracked, s.alloc.length(seq), tables[seq], f"{seq} after {after}")
    s.replay.follow(s.alloc.drain_events(), after)
    stats = s.stats()
    counts = (stats.free, stats.reclaimable, stats.live, stats.reserved)
    must(
        stats.total == s.total == sum(counts) and min(counts) >= 0,
        "stats-identity",
        f"total {s.total} = free + reclaimable + live + reserved after {after}",
        stats,
    )
    live = {block for table in tables.values() for block in table if block >= 0}
    must(stats.live == len(live), "stats-identity", f"live = {len(live)} after {after}", stats)
    if s.caps.prefix is Prefix.HASH and s.paged and not s.pinned:
        kept = len(s.replay.index.keys() - live)
        must(
            stats.reclaimable == kept,
            "stats-identity",
            f"reclaimable = the {kept} ownerless blocks that are stored, after {after}",
            stats,
        )


def _audit_sequence(
    s: Shadow, tracked: Tracked, length: int, table: tuple[int, ...], who: str
) -> None:
    size, want = s.block_size, len(tracked.tokens)
    must(length == want, "append-atomic", f"length {want} of sequence {who}", length)
    columns = -(-length // size)
    must(len(table) == columns, "append-atomic", f"{columns} columns in the table of {who}", table)
    gone, rest = table[: tracked.released], table[tracked.released :]
    must(set(gone) <= {-1}, "window-release", f"-1 in {len(gone)} columns of sequence {who}", table)
    must(
        all(0 <= block < s.total for block in rest),
        "copy-on-write",
        f"ids of blocks below {s.total} in the table of sequence {who}",
        table,
    )
    for position in range(tracked.released * size, length):
        slot = table[position // size] * size + position % size
        must(
            s.contents.slot(slot) == tracked.contents[position],
            "copy-on-write",
            f"slot {slot} to hold position {position} of sequence {who}",
            "it holds something else, or was never written",
        )


def must_find(s: Shadow, namespace: bytes, tokens: Sequence[int]) -> int:
    """Tokens of this prompt that open() must find, because somebody holds them."""
    if not s.cached:
        return 0
    held = [(t.namespace, t.tokens[: t.committed]) for t in s.sequences.values() if not t.released]
    best = 0
    for other, theirs in (*held, *s.pinned.values()):
        same = 0
        while (
            same < min(len(tokens) - 1, len(theirs))
            and other == namespace
            and theirs[same] == tokens[same]
        ):
            same += 1
        best = max(best, same)
    return best - best % s.caps.hit_granularity


def audit_hit(
    s: Shadow, hit: PrefixHit, table: tuple[int, ...], numbers: list[int], least: int, who: str
) -> None:
    """An answer of open(); `numbers` are the contents of the prompt, `least` is must_find()."""
    most = max(len(numbers) - 1, 0)
    seen = f"{who} hit {hit.tokens}"
    must(hit.tokens <= most, "open-hit", f"at most {most} tokens", seen)
    must(s.cached or hit.tokens == 0, "open-hit", "no hit without a prefix cache", seen)
    granularity = s.caps.hit_granularity
    must(hit.tokens % granularity == 0, "open-hit", f"a multiple of {granularity}", seen)
    must(hit.tokens >= least, "prefix-identity", f"the {least} tokens that somebody holds", seen)
    must(table == tuple(hit.blocks), "open-hit", f"hit.blocks to be the table {table}", hit.blocks)
    for position, number in enumerate(numbers[: hit.tokens]):
        must(
            number in s.contents.committed,
            "commit-before-share",
            f"position {position} to be committed by somebody before it is found",
            seen,
        )


def audit_grant(
    s: Shadow, first: int, n: int, grant: Grant, before: tuple[int, ...], table: tuple[int, ...]
) -> None:
    """A grant of n tokens from position `first` on, which took the table from `before`."""
    size = s.block_size
    slots = [table[p // size] * size + p % size for p in range(first, first + n)]
    must(list(grant.slots) == slots, "append-atomic", f"slots {slots}", list(grant.slots))
    must(
        0 <= grant.column <= len(before) and table == before[: grant.column] + tuple(grant.blocks),
        "append-atomic",
        f"the columns before grant.column of {before}, then grant.blocks, to be {table}",
        grant,
    )
    for op in grant.copies:
        want = CopyOp(before[-1], table[first // size], first % size)
        if not s.paged:  # a sequence that moves is copied column by column
            column = before.index(op.src) if op.src in before else 0
            want = CopyOp(before[column], table[column], min(size, first - column * size))
        must(op == want, "copy-on-write", want, op)


def audit_evicted(before: AllocatorStats, after: AllocatorStats, granted: int) -> None:
    """An append that granted so many blocks: what was evicted is counted, and is not more."""
    evicted, lost = after.evicted - before.evicted, before.reclaimable - after.reclaimable
    must(
        evicted == lost <= granted,
        "stats-identity",
        f"evicted to grow by the reclaimable blocks that went, at most {granted}",
        f"it grew by {evicted}, {lost} went",
    )


def audit_out_of_blocks(
    s: Shadow, error: OutOfBlocks, counts: Mapping[int, int], available: int
) -> None:
    """The figures of OutOfBlocks, where blocks are taken one by one."""
    size = s.block_size
    growth = sum(
        -(-(len(s.sequences[seq].tokens) + n) // size) - len(s.alloc.table(seq))
        for seq, n in counts.items()
    )
    must(
        error.available == available < error.needed and growth <= error.needed,
        "out-of-blocks",
        f"available = {available} < needed, and needed at least {growth}",
        f"needed {error.needed}, available {error.available}",
    )
