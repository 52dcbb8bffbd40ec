"""Which blocks go, in which order, and which never."""

from __future__ import annotations

from pagedattn.conformance.allocator.expect import must
from pagedattn.conformance.allocator.prefix import expect_hit
from pagedattn.conformance.allocator.shadow import Shadow
from pagedattn.conformance.allocator.tools import Pool, case, need_paged, need_prefix, tokens
from pagedattn.conformance.case import Declined
from pagedattn.errors import AllocatorError, OutOfBlocks, Refusal

__all__ = ["CASES"]


def need_lru(s: Shadow) -> None:
    """Go on only where the eviction order is least recently used."""
    need_prefix(s)
    if s.caps.policies != {"lru"}:
        raise Declined((Refusal(s.alloc.name, "policies", "lru", str(set(s.caps.policies))),))


@case("eviction/deepest-first", rule="eviction", faults=("AH-14",))
def deepest_first(pool: Pool) -> None:
    for _ in range(20):
        s = pool(3)
        need_prefix(s)
        need_paged(s)
        s.prefill(1, tokens(12))
        s.close(1)
        s.prefill(2, tokens(4, 100))
        s.close(2)
        expect_hit(s, 3, tokens(13), 8)
        s.drain()


@case("eviction/touch", rule="eviction", faults=("AH-15",))
def touch(pool: Pool) -> None:
    """A, B cached; a hit on A makes B the older one."""
    s = pool(2)
    need_lru(s)
    s.prefill(1, tokens(4))
    s.prefill(2, tokens(4, 100))
    s.close(1)
    s.close(2)
    expect_hit(s, 3, tokens(5), 4)
    s.evict(1)
    expect_hit(s, 3, tokens(5), 4)
    expect_hit(s, 3, tokens(5, 100), 0)
    s.drain()


@case("eviction/asking", rule="can-append", faults=("AH-15",))
def asking(pool: Pool) -> None:
    """can_append() asks: nothing is renewed, evicted or promised by it, however often it is."""
    s = pool(4)
    need_lru(s)
    s.prefill(1, tokens(4))
    s.prefill(2, tokens(4, 100))
    s.open(3, tokens(1, 200))
    s.close(1)
    s.close(2)
    for wanted in (1, 8, 16, 17, 1000):
        for _ in range(3):
            s.alloc.can_append({3: wanted})
    s.evict(1)
    expect_hit(s, 4, tokens(5), 0)
    expect_hit(s, 4, tokens(5, 100), 4)
    s.drain()


@case("eviction/priority", rule="eviction")
def priority(pool: Pool) -> None:
    """Higher stays longer whatever its age; a shared block keeps its highest priority."""
    s = pool(16)
    need_prefix(s)
    need_paged(s)
    s.prefill(1, tokens(8), priority=5)
    s.prefill(2, tokens(8, 100), priority=-1)
    s.prefill(3, tokens(8, 200))
    s.prefill(4, [*tokens(8), *tokens(4, 300)], priority=-3)
    for seq in (1, 3, 2, 4):
        s.close(seq)
    s.evict(3)
    expect_hit(s, 9, [*tokens(8), *tokens(4, 300), 0], 8)
    expect_hit(s, 9, tokens(9, 100), 0)
    expect_hit(s, 9, tokens(9, 200), 8)
    s.evict(2)
    expect_hit(s, 9, tokens(9, 200), 0)
    expect_hit(s, 9, tokens(9), 8)
    s.drain()


@case("eviction/far-priorities", rule="eviction")
def far_priorities(pool: Pool) -> None:
    """Priorities are any integers, not classes."""
    s = pool(16)
    need_prefix(s)
    need_paged(s)
    order = (-(10**12), -7, -6, 0, 3, 4, 2**40)
    for seq, level in enumerate(reversed(order)):  # the highest is the oldest
        s.prefill(seq, tokens(4, 100 * level), priority=level)
        s.close(seq)
    for gone in range(1, len(order) + 1):
        s.evict(1)
        for i, level in enumerate(order):
            # Looked for with the lowest priority of all, which raises nobody's.
            hit = s.open(99, tokens(5, 100 * level), priority=-(10**13))
            s.close(99)
            left = f"{len(order) - gone} blocks of priority above {order[gone - 1]}"
            must((hit.tokens > 0) == (i >= gone), "eviction", left, f"{level}: {hit}")
    s.drain()


@case("eviction/never-live", rule="eviction", faults=("AH-07", "AH-08"))
def never_live(pool: Pool) -> None:
    """A hit on the oldest blocks protects them, however much is evicted and written elsewhere."""
    s = pool(8)
    need_prefix(s)
    s.prefill(1, tokens(8))
    s.close(1)
    s.open(2, tokens(9))
    before = tuple(s.alloc.table(2))
    s.prefill(3, tokens(8, 100))
    s.close(3)
    s.evict(100)
    s.prefill(4, tokens(16, 200))
    s.append({2: tokens(1, 8)})
    must(tuple(s.alloc.table(2))[:2] == before, "eviction", f"{before} to stay", s.alloc.table(2))
    s.close(2)
    expect_hit(s, 5, tokens(9), 8)
    must(s.evict(100) >= 2, "eviction", "both blocks freed after the last close", "fewer were")
    s.drain()


@case("eviction/counts", rule="eviction")
def counts(pool: Pool) -> None:
    s = pool(16)
    need_prefix(s)
    need_paged(s)
    s.prefill(1, tokens(17))
    s.close(1)
    for n, freed in ((0, 0), (1, 1), (2, 2), (9, 1), (9, 0)):
        before = s.stats().evicted
        got = s.evict(n)
        must(got == freed, "eviction", f"evict({n}) to free {freed}", got)
        must(
            s.stats().evicted == before + freed,
            "stats-identity",
            f"evicted to grow by {freed}",
            s.stats(),
        )
    s.refused(ValueError, "eviction", "evict(-1)", s.alloc.evict, -1)
    s.drain()


@case("eviction/failed-append", rule="append-atomic", faults=("AH-19", "AH-32"))
def failed_append(pool: Pool) -> None:
    """Hit blocks are no longer available; reclaimable ones are, once; failing evicts nothing."""
    s = pool(5)
    need_prefix(s)
    need_paged(s)
    s.prefill(1, tokens(8))
    s.prefill(2, tokens(1, 100))
    s.close(1)
    a = s.alloc
    must(not a.can_append({2: 20}), "can-append", "False for 5 of 2 + 2 blocks", "True")
    must(a.can_append({2: 19}), "can-append", "True for 4 of 2 + 2 blocks", "False")
    for _ in range(20):
        s.refused(OutOfBlocks, "append-atomic", "an append of 5 blocks", a.append, 2, 20)
    expect_hit(s, 4, tokens(9), 8)
    s.open(3, [*tokens(8), *tokens(12, 200)])
    for _ in range(20):
        s.refused(OutOfBlocks, "append-atomic", "an append of 3 blocks", a.append, 3, 12)
    s.append({3: tokens(8, 200)})
    s.close(3)
    s.close(2)
    expect_hit(s, 4, tokens(9), 8)
    s.drain()


@case("pin/survives", rule="pinning")
def pin_survives(pool: Pool) -> None:
    s = pool(6)
    need_prefix(s)
    s.prefill(1, tokens(8))
    s.pin(1)
    s.close(1)
    s.evict(100)
    expect_hit(s, 2, tokens(9), 8)
    s.open(3, tokens(4, 100))
    a = s.alloc
    s.refused(OutOfBlocks, "pinning", "an append into pinned blocks", a.append, 3, 17)
    s.append({3: tokens(16, 100)})
    expect_hit(s, 2, tokens(9), 8)
    s.unpin(1)
    s.append({3: tokens(8, 200)})
    expect_hit(s, 2, tokens(9), 0)
    s.refused(AllocatorError, "pinning", "a second unpin", a.unpin, 1)
    s.refused(AllocatorError, "pinning", "pin of a closed id", a.pin, 1)
    s.drain()


@case("pin/adds", rule="pinning")
def pin_adds(pool: Pool) -> None:
    """A second pin keeps what was committed meanwhile; one unpin undoes both."""
    s = pool(6)
    need_prefix(s)
    s.prefill(1, tokens(4))
    s.pin(1)
    s.append({1: tokens(4, 4)})
    s.commit(1, 4)
    s.pin(1)
    s.close(1)
    s.evict(100)
    expect_hit(s, 2, tokens(9), 8)
    s.unpin(1)
    s.evict(100)
    expect_hit(s, 3, tokens(9), 0)
    s.drain()


@case("pin/counted", rule="pinning")
def pin_counted(pool: Pool) -> None:
    """Two sequences pin one prefix: it stays until both have let go."""
    for first, second in ((1, 2), (2, 1)):
        s = pool(8)
        need_prefix(s)
        s.prefill(1, tokens(8))
        s.pin(1)
        s.prefill(2, tokens(9))
        s.pin(2)
        s.close(1)
        s.close(2)
        s.unpin(first)
        s.evict(100)
        expect_hit(s, 3, tokens(9), 8)
        s.unpin(second)
        s.evict(100)
        expect_hit(s, 3, tokens(9), 0)
        s.drain()


@case("pin/until-copied", rule="pinning", faults=("AH-33",))
def pin_until_copied(pool: Pool) -> None:
    """A request is preempted while its blocks are still being copied out: pinned, they keep their
    bytes and are nobody else's, however much is written meanwhile."""
    s = pool(6)
    need_prefix(s)
    s.prefill(1, tokens(9))
    kept = tuple(s.alloc.table(1))[: 8 // s.caps.hit_granularity * s.caps.hit_granularity // 4]
    before = [s.contents.block(block) for block in kept]
    s.pin(1)
    s.close(1)
    s.open(2, tokens(1, 500))
    try:
        while True:
            s.append({2: [501]})
            s.commit(2)
    except OutOfBlocks:
        pass
    after = [s.contents.block(block) for block in kept]
    must(before == after, "pinning", f"blocks {kept} to keep their content while pinned", after)
    shared = set(kept) & set(s.alloc.table(2))
    must(not shared, "pinning", "pinned blocks to be given to nobody", sorted(shared))
    s.unpin(1)
    s.append({2: [502]})
    s.drain()


@case("pin/never-overwritten", rule="pinning", faults=("AH-25",))
def pin_never_overwritten(pool: Pool) -> None:
    """The owner of a pinned block cuts it and writes: a copy is written, the pin keeps its own."""
    s = pool(8)
    need_prefix(s)
    s.prefill(1, tokens(8))
    s.pin(1)
    if s.caps.truncate:
        s.truncate(1, 6)
    s.append({1: tokens(5, 100)})
    s.commit(1)
    expect_hit(s, 2, tokens(9), 8)
    s.close(1)
    expect_hit(s, 2, tokens(9), 8)
    s.unpin(1)
    s.drain()


CASES = (
    deepest_first,
    touch,
    asking,
    priority,
    far_priorities,
    never_live,
    counts,
    failed_append,
    pin_survives,
    pin_adds,
    pin_counted,
    pin_until_copied,
    pin_never_overwritten,
)
