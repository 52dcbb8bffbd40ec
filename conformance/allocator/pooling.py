"""The pool as a whole: window release, resize, reset, events."""

from __future__ import annotations

from pagedattn.allocator import Event, EventKind, Prefix
from pagedattn.conformance.allocator.expect import must
from pagedattn.conformance.allocator.prefix import expect_hit
from pagedattn.conformance.allocator.shadow import Shadow
from pagedattn.conformance.allocator.tools import (
    Pool,
    case,
    need,
    need_paged,
    need_prefix,
    tokens,
)
from pagedattn.conformance.case import Declined
from pagedattn.errors import AllocatorError, Refusal

__all__ = ["CASES"]


def need_events(s: Shadow) -> None:
    """Go on only with an event log; hashed prefixes must have one."""
    need_prefix(s)
    if s.caps.prefix is not Prefix.HASH:
        raise Declined((Refusal(s.alloc.name, "events", "stored blocks", "hashed prefixes only"),))


@case("window/release", rule="window-release", faults=("AH-28", "AH-37"))
def window_release(pool: Pool) -> None:
    """Blocks of 4, window of 8 keys, 40 tokens one by one and in chunks of 7."""
    for chunk in (1, 7):
        s = pool(16)
        need(s, "window")
        need_paged(s)
        s.open(1, tokens(1))
        for start in range(0, 40, chunk):
            s.append({1: tokens(min(chunk, 40 - start), start)})
            s.commit(1)
            length = s.alloc.length(1)
            for _ in range(2):
                s.release_before(1, max(0, length - 8))
            s.release_before(1, 0)
            kept = -(-length // 4) - max(0, length - 8) // 4
            must(s.stats().live == kept, "window-release", f"{kept} live blocks", s.stats())
        s.drain()


@case("window/uncommitted", rule="window-release", faults=("AH-28",))
def window_uncommitted(pool: Pool) -> None:
    """What was written is released before it is committed: the commit counts it, the blocks that
    are still there are found behind no gap, and those of another sequence make the gap good."""
    s = pool(16)
    need(s, "window")
    s.open(1, tokens(14))
    s.append({1: tokens(14)})
    s.commit(1, 2)
    s.release_before(1, 9)
    s.commit(1, 4)  # up to 6: inside a released block
    s.commit(1)
    if s.cached:
        expect_hit(s, 2, tokens(14), 0)
        s.prefill(2, tokens(9))
        if s.caps.hit_granularity == s.block_size:
            expect_hit(s, 3, tokens(14), 12)
    s.append({1: tokens(5, 14)})
    s.commit(1)
    s.drain()


@case("window/shared", rule="window-release", faults=("AH-27", "AH-28"))
def window_shared(pool: Pool) -> None:
    """What one sequence releases stays with the others that hold it."""
    s = pool(16)
    need(s, "window")
    need(s, "fork")
    s.prefill(1, tokens(14))
    s.fork(1, 2)
    s.release_before(1, 9)
    s.evict(16)
    s.append({1: [100, 101, 102], 2: [200, 201, 202]})
    s.fork(1, 3)
    s.close(2)
    s.evict(16)
    s.append({3: [300]})
    a = s.alloc
    s.refused(ValueError, "window-release", "position 18 of 17", a.release_before, 1, 18)
    s.refused(ValueError, "window-release", "position -1", a.release_before, 1, -1)
    s.refused(AllocatorError, "window-release", "unknown id", a.release_before, 9, 0)
    if s.caps.truncate:
        s.refused(ValueError, "truncate", "a cut into released blocks", a.truncate, 1, 3)
    s.drain()


@case("resize/grow-shrink", rule="resize")
def resize(pool: Pool) -> None:
    s = pool(4)
    need(s, "resize")
    s.prefill(1, tokens(8))
    s.resize(12)
    s.prefill(2, tokens(17, 100))
    s.prefill(3, tokens(13, 200))
    s.close(2)
    s.resize(1)
    must(s.stats().live == 4 + 2, "resize", "all 6 live blocks kept", s.stats())
    s.close(1)
    s.close(3)
    s.resize(2)
    must(s.total == 2, "resize", "2 blocks once none is live", s.total)
    s.resize(9)
    s.prefill(4, tokens(36, 300))
    s.close(4)
    for size in (9, 20):
        s.resize(size)
        if s.cached:
            expect_hit(s, 4, tokens(37, 300), 36)  # a pool that does not shrink forgets nothing
    for bad in (0, -1):
        s.refused(ValueError, "resize", f"resize({bad})", s.alloc.resize, bad)
    s.drain()


@case("reset/forgets", rule="reset", faults=("AH-03", "AH-39"))
def reset(pool: Pool) -> None:
    s = pool(16)
    for _ in range(2):
        s.prefill(1, tokens(9))
        s.refused(AllocatorError, "reset", "reset with an open sequence", s.alloc.reset)
        s.close(1)
        s.reset()
        must(s.stats().free == 16, "reset", "16 free blocks", s.stats())
        if s.cached:
            expect_hit(s, 2, tokens(9), 0)
    s.drain()


@case("reset/pinned", rule="reset", faults=("AH-39",))
def reset_pinned(pool: Pool) -> None:
    """reset() ends pins too: every block is free, and nothing is found."""
    s = pool(16)
    need_prefix(s)
    s.prefill(1, tokens(9))
    s.pin(1)
    s.close(1)
    s.reset()
    must(s.stats().free == 16, "reset", "16 free blocks", s.stats())
    expect_hit(s, 2, tokens(9), 0)
    s.prefill(1, tokens(64, 100))
    s.drain()


@case("resize/pinned", rule="resize")
def resize_pinned(pool: Pool) -> None:
    """A pinned prefix survives a pool that shrinks."""
    s = pool(16)
    need(s, "resize")
    need_prefix(s)
    s.prefill(1, tokens(8))
    s.pin(1)
    s.prefill(2, tokens(20, 100))
    s.close(1)
    s.close(2)
    s.resize(1)
    expect_hit(s, 3, tokens(9), 8)
    s.unpin(1)
    s.resize(1)
    must(s.total == 1, "resize", "1 block once nothing is pinned", s.total)
    s.drain()


@case("events/replay", rule="events", faults=("AH-16", "AH-17"))
def events_replay(pool: Pool) -> None:
    """Stored at commit, removed at eviction, cleared at reset; parents are the keys before."""
    log: list[Event] = []
    s = pool(16)
    need_events(s)
    a = s.alloc

    def step() -> list[EventKind]:
        new = a.drain_events()
        log.extend(new)
        return [event.kind for event in new]

    a.open(1, tokens(9))
    a.append(1, 9)
    must(step() == [], "events", "no event before a commit", log)
    a.commit(1, tokens(9))
    must(step() == [EventKind.STORED] * 2, "events", "two blocks stored", log)
    first, second = log
    must(first.parent == b"" and second.parent == first.key, "events", "parents in a chain", log)
    must((first.block, second.block) == tuple(a.table(1))[:2], "events", "the table's blocks", log)
    a.append(1, 3)
    a.commit(1, tokens(3, 9))
    must(step() == [EventKind.STORED], "events", "the third block stored", log)
    third = log[-1]
    must(third.parent == second.key, "events", "the second block to be its parent", log)
    a.close(1)
    a.open(2, tokens(9))
    a.close(2)
    must(step() == [], "events", "no event for a hit or a close", log[3:])
    a.evict(1)
    must(step() == [EventKind.REMOVED] and log[-1].key == third.key, "events", "one removed", log)
    a.reset()
    must(step() == [EventKind.CLEARED], "events", "one CLEARED", log)


@case("events/undrained", rule="events", faults=("AH-17",))
def events_undrained(pool: Pool) -> None:
    """A log that nobody drains for long leads to the right index too, whatever was known before."""
    s = pool(64)
    need_events(s)
    a = s.alloc
    for seq in range(3):
        s.prefill(seq, tokens(13, 1000 * seq))
    for seq in range(3):
        s.close(seq)
    for start in range(10**4, 10**4 + 120_000, 100):
        a.open(9, tokens(13, start))
        a.append(9, 13)
        a.commit(9, tokens(13, start))
        a.close(9)
    s.replay.follow(a.drain_events(), "3600 blocks stored and removed", contents=False)
    stats = a.stats()
    must(
        len(s.replay.index) == stats.reclaimable,
        "events",
        f"{stats.reclaimable} stored blocks, as many as are reclaimable",
        len(s.replay.index),
    )
    a.evict(64)
    s.replay.follow(a.drain_events(), "evict(64)", contents=False)
    must(not s.replay.index, "events", "every stored block to be removed", s.replay.index)


@case("events/stable-keys", rule="prefix-identity", faults=("AH-35",))
def stable_keys(pool: Pool) -> None:
    """Two allocators name the same content alike, and different content differently."""
    keys: list[list[bytes]] = []
    for _ in range(2):
        s = pool(16)
        need_events(s)
        s.prefill(9, tokens(3, 500))  # other block ids in the second round
        for seq, namespace in enumerate((b"", b"a", b"b")):
            s.prefill(seq, [*tokens(4), *tokens(4)], namespace=namespace)
        keys.append([s.replay.index[block] for seq in range(3) for block in s.alloc.table(seq)])
    must(keys[0] == keys[1], "prefix-identity", "equal keys in two allocators", keys)
    must(len(set(keys[0])) == 6, "prefix-identity", "6 keys for 6 contents", keys[0])


CASES = (
    window_release,
    window_uncommitted,
    window_shared,
    resize,
    resize_pinned,
    reset,
    reset_pinned,
    events_replay,
    events_undrained,
    stable_keys,
)
