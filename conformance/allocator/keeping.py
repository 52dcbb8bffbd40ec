"""How long content stays: whose priority counts, what a pin holds, how many may hold a block."""

from __future__ import annotations

from pagedattn.conformance.allocator.eviction import need_lru
from pagedattn.conformance.allocator.expect import must
from pagedattn.conformance.allocator.prefix import expect_hit
from pagedattn.conformance.allocator.shadow import Shadow
from pagedattn.conformance.allocator.tools import Pool, case, need, need_paged, need_prefix, tokens
from pagedattn.errors import AllocatorError, OutOfBlocks

__all__ = ["CASES"]

HOLDERS = 300


def _found(s: Shadow, start: int) -> bool:
    """Whether the block tokens(4, start) is found; raises no priority."""
    hit = s.open(99, tokens(5, start), priority=-(10**13))
    s.close(99)
    return hit.tokens > 0


def _goes_first(s: Shadow, first: int, second: int, why: str) -> None:
    s.evict(1)
    must(
        not _found(s, first) and _found(s, second),
        "eviction",
        f"the block of tokens from {first} on to go before the one from {second} on: {why}",
        {start: "found" if _found(s, start) else "gone" for start in (first, second)},
    )


def _block(s: Shadow, start: int, priority: int) -> None:
    s.prefill(1, tokens(4, start), priority=priority)
    s.close(1)


@case("eviction/fine-priorities", rule="eviction")
def fine_priorities(pool: Pool) -> None:
    """Neighbouring integers, small, large and negative, are different priorities."""
    for level in (-1001, -12, -1, 0, 9, 10, 99, 100, 255, 1000, 65535, 2**31 - 1, 2**53):
        s = pool(8)
        need_prefix(s)
        need_paged(s)
        _block(s, 100, level + 1)  # the older one
        _block(s, 200, level)
        _goes_first(s, 200, 100, f"priority {level} is below {level + 1}")
        s.drain()


@case("eviction/priority-of-the-content", rule="eviction")
def priority_of_content(pool: Pool) -> None:
    """A priority belongs to what lies in a block, and ends with it: by eviction, by a close of what
    cannot be found, by reset()."""
    for how in ("evicted", "closed", "reset"):
        s = pool(2)
        need_lru(s)
        need_paged(s)
        if how == "closed":  # never committed
            s.open(1, tokens(8), priority=9)
            s.append({1: tokens(8)})
            s.close(1)
        else:
            s.prefill(1, tokens(8), priority=9)
            s.close(1)
        if how == "reset":
            s.reset()
        elif how == "evicted":
            s.evict(2)
        _block(s, 200, 1)  # the older one
        _block(s, 100, 0)
        _goes_first(s, 100, 200, f"what lay in the blocks before was {how}")
        s.drain()
    s = pool(2)
    for start, level in ((800, 9), (900, 9), (100, 0), (200, 1)):  # each takes the next one's place
        _block(s, start, level)
    found = [start for start in (100, 200, 800, 900) if _found(s, start)]
    must(
        found == [200, 900], "eviction", "800 to go for 100, and 100, of priority 0, for 200", found
    )
    s.drain()


@case("eviction/priority-of-forks", rule="fork")
def priority_of_forks(pool: Pool) -> None:
    """A child's child has the priority of the first."""
    s = pool(16)
    need_lru(s)
    need(s, "fork")
    s.prefill(1, tokens(4), priority=5)
    for child in (2, 3, 4):
        s.fork(child - 1, child, 0)
    s.append({4: tokens(4, 100)})
    s.commit(4)
    s.close(4)
    s.prefill(5, tokens(4, 200), priority=4)
    s.close(5)
    _goes_first(s, 200, 100, "priority 4 is below 5, which forks inherit")
    s.drain()


@case("eviction/priority-raised", rule="eviction")
def priority_raised(pool: Pool) -> None:
    """A hit of a higher priority raises a block's, owned or not; a lower one takes nothing."""
    for owned in (False, True):
        s = pool(8)
        need_lru(s)
        need_paged(s)
        s.prefill(1, tokens(4, 100), priority=-2)
        if not owned:
            s.close(1)
        for level in (3, -9):
            s.open(2, tokens(5, 100), priority=level)
            s.close(2)
        if owned:
            s.close(1)
        s.prefill(1, tokens(4, 200), priority=2)
        s.close(1)
        _goes_first(s, 200, 100, "priority 2 is below 3, with which the other one was hit")
        s.drain()


@case("eviction/priority-of-copies", rule="copy-on-write")
def priority_of_copies(pool: Pool) -> None:
    """What copy-on-write replaces keeps its sequence's priority."""
    s = pool(8)
    need_lru(s)
    need_paged(s)
    need(s, "fork")
    s.prefill(1, tokens(2, 100), priority=3)
    s.fork(1, 2)
    s.append({2: tokens(2, 102)})  # into a copy
    s.commit(2)
    s.close(2)
    s.close(1)
    s.prefill(1, tokens(4, 200), priority=2)
    s.close(1)
    _goes_first(s, 200, 100, "priority 2 is below 3, that of the sequence that was copied for")
    s.drain()


@case("eviction/lru-order", rule="eviction", faults=("AH-15",))
def lru_order(pool: Pool) -> None:
    """A dozen blocks, some of them hit again: each goes in its turn, and what is released meanwhile
    comes last."""
    s = pool(24)
    need_lru(s)
    need_paged(s)
    starts = [100 * i for i in range(1, 13)]
    blocks = {}
    for start in starts:
        s.prefill(1, tokens(4, start))
        (blocks[start],) = s.alloc.table(1)
        s.close(1)
    for start in (300, 100, 800):
        _found(s, start)
        starts.remove(start)
        starts.append(start)
    _block(s, 5000, 0)
    for gone, start in enumerate(starts, start=1):
        s.evict(1)
        if gone == 4:
            _block(s, 6000, 0)
        left = {*s.replay.index}
        must(
            len(left) == 13 - gone + (gone >= 4) and blocks[start] not in left,
            "eviction",
            f"the block of tokens from {start} on to go as number {gone}",
            f"{len(left)} blocks are left",
        )
    s.drain()


@case("eviction/priority-and-pins", rule="eviction")
def priority_and_pins(pool: Pool) -> None:
    """What was pinned keeps its priority when the pin ends."""
    s = pool(8)
    need_prefix(s)
    need_paged(s)
    s.prefill(1, tokens(4, 100), priority=2)
    s.pin(1)
    s.close(1)
    _block(s, 200, 1)
    s.unpin(1)
    _goes_first(s, 200, 100, "priority 1 is below 2")
    s.drain()


@case("eviction/asking-in-vain", rule="can-append", faults=("AH-19",))
def asking_in_vain(pool: Pool) -> None:
    """What cannot be had renews nothing: not by can_append(), not by an append() that fails."""
    for call in ("can_append", "append"):
        s = pool(3)
        need_lru(s)
        need_paged(s)
        s.open(7, tokens(1, 900))
        for start in (100, 200, 300):
            _block(s, start, 0)
        for _ in range(2):
            if call == "append":
                s.refused(OutOfBlocks, "append-atomic", "4 of 3 blocks", s.alloc.append, 7, 13)
            elif s.alloc.can_append({7: 13}):
                must(False, "can-append", "False for 4 of 3 blocks", "True")
        _goes_first(s, 100, 200, f"it was released first, and {call}() changes nothing")
        s.drain()


# -- pins ----------------------------------------------------------------------------------------


@case("pin/no-more", rule="pinning", faults=("AH-12",))
def pin_no_more(pool: Pool) -> None:
    """A pin holds what can be found: not the partial block, not what was never committed."""
    s = pool(16)
    need_prefix(s)
    need_paged(s)
    if s.caps.hit_granularity != s.block_size:
        return  # a partial block can be found there
    s.open(1, tokens(14))
    s.append({1: tokens(14)})
    s.commit(1, 6)
    s.pin(1)
    s.close(1)
    must(s.stats().reserved == 1, "pinning", "1 pinned block: 6 of 14 are committed", s.stats())
    expect_hit(s, 2, tokens(14), 4)
    if s.caps.window:
        s.prefill(3, tokens(12, 100))
        s.release_before(3, 4)
        s.pin(3)
        s.close(3)
        must(s.stats().reserved == 1, "pinning", "no pinned block behind released ones", s.stats())
    s.drain()


@case("pin/nothing", rule="pinning")
def pin_nothing(pool: Pool) -> None:
    """pin() before anything was committed is a pin, of nothing yet; a second one adds."""
    s = pool(16)
    need_prefix(s)
    s.open(1, tokens(9))
    s.pin(1)
    s.unpin(1)
    s.pin(1)
    s.append({1: tokens(9)})
    s.commit(1)
    s.pin(1)
    s.close(1)
    s.evict(100)
    expect_hit(s, 2, tokens(9), 8)
    s.unpin(1)
    s.refused(AllocatorError, "pinning", "a second unpin", s.alloc.unpin, 1)
    s.drain()


@case("pin/not-of-children", rule="pinning", faults=("AH-12",))
def pin_not_of_children(pool: Pool) -> None:
    """Pins belong to the id that was pinned: a child has none, and holds none after its close."""
    s = pool(16)
    need_prefix(s)
    need(s, "fork")
    s.prefill(1, tokens(8))
    s.pin(1)
    s.fork(1, 2)
    s.refused(AllocatorError, "pinning", "unpin of a child", s.alloc.unpin, 2)
    s.close(2)
    s.close(1)
    s.unpin(1)
    must(s.stats().reserved == 0, "pinning", "no reserved block after the only unpin", s.stats())
    s.drain()


@case("pin/id-again", rule="pinning")
def pin_id_again(pool: Pool) -> None:
    """The id of a closed sequence is used again: what it pinned stays until unpin()."""
    s = pool(16)
    need_prefix(s)
    s.prefill(1, tokens(8))
    s.pin(1)
    s.close(1)
    s.prefill(1, tokens(8, 100))
    s.evict(100)
    expect_hit(s, 2, tokens(9), 8)
    s.close(1)
    s.evict(100)
    expect_hit(s, 2, tokens(9), 8)
    expect_hit(s, 2, tokens(9, 100), 0)
    s.drain()


# -- holders -------------------------------------------------------------------------------------


@case("fork/many-holders", rule="fork", faults=("AH-27",))
def many_holders(pool: Pool) -> None:
    """300 hold one block, by hits and by forks: it stays until the last has gone."""
    s = pool(HOLDERS + 8)
    need_prefix(s)
    need_paged(s)
    s.prefill(0, tokens(8))
    for seq in range(1, HOLDERS):
        if s.caps.fork and seq % 2:
            s.alloc.fork(seq - 1, seq, 4)
        else:
            s.alloc.open(seq, tokens(5))
    for seq in range(HOLDERS - 1):
        s.alloc.close(seq)
    del s.sequences[0]
    stats = s.stats()
    must(stats.live == 1, "stats-identity", "1 live block: the last of 300 has it", stats)
    s.alloc.evict(HOLDERS)
    s.alloc.close(HOLDERS - 1)
    expect_hit(s, 1, tokens(5), 4)
    s.drain()


@case("stats/only-grow", rule="stats-identity")
def only_grow(pool: Pool) -> None:
    """lookups, hit_tokens and evicted count for the allocator's life, and only what they name."""
    s = pool(16)
    need_prefix(s)
    need_paged(s)
    s.prefill(1, tokens(9))
    if s.caps.truncate:
        s.truncate(1, 6)
        s.append({1: tokens(3, 100)})  # a key is lost, but not to make room
        must(s.stats().evicted == 0, "stats-identity", "evicted = 0: nothing made room", s.stats())
    s.close(1)
    s.open(1, tokens(9))
    s.close(1)
    s.evict(1)
    before = s.stats()
    s.reset()
    after = s.stats()
    must(
        after.lookups == before.lookups == 2
        and after.hit_tokens == before.hit_tokens > 0
        and after.evicted >= before.evicted == 1,
        "stats-identity",
        f"the counters of {before} to go on after reset()",
        after,
    )
    s.drain()


CASES = (
    fine_priorities,
    priority_of_content,
    priority_of_forks,
    priority_raised,
    priority_of_copies,
    lru_order,
    priority_and_pins,
    asking_in_vain,
    pin_no_more,
    pin_nothing,
    pin_not_of_children,
    pin_id_again,
    many_holders,
    only_grow,
)
