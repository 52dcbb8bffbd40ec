"""fork, copy-on-write, truncate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pagedattn.allocator import Grant
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
from pagedattn.errors import AllocatorError, OutOfBlocks

__all__ = ["CASES"]


def append_copies(s: Shadow, wants: Mapping[int, Sequence[int]], expected: int, why: str) -> None:
    """append, of which exactly `expected` copies are wanted."""
    grants: dict[int, Grant] = s.append(wants)
    copies = [op for grant in grants.values() for op in grant.copies]
    must(len(copies) == expected, "copy-on-write", f"{expected} copies ({why})", copies)


@case("fork/counts", rule="fork", faults=("AH-27",))
def fork_counts(pool: Pool) -> None:
    for first, second in ((2, 1), (1, 2)):
        s = pool(16)
        need(s, "fork")
        s.prefill(1, tokens(6))
        s.fork(1, 2)
        s.close(2)
        s.append({1: [100]})
        s.commit(1)
        s.fork(1, 2)
        s.close(first)
        s.append({second: [200, 201, 202]})
        s.close(second)
        s.drain()


@case("fork/bounds", rule="fork")
def fork_bounds(pool: Pool) -> None:
    s = pool(16)
    need(s, "fork")
    s.open(1, tokens(9), namespace=b"n")
    s.append({1: tokens(9)})
    s.commit(1, 6)
    a = s.alloc
    s.refused(ValueError, "fork", "fork of uncommitted tokens", a.fork, 1, 2, 7)
    s.refused(ValueError, "fork", "fork at -1", a.fork, 1, 2, -1)
    s.refused(AllocatorError, "fork", "fork of an unknown id", a.fork, 8, 2)
    s.refused(AllocatorError, "fork", "fork onto an open id", a.fork, 1, 1)
    s.fork(1, 2)
    must(a.length(2) == 6, "fork", "all 6 committed tokens by default", a.length(2))
    s.fork(1, 3, 0)
    must(a.length(3) == 0, "fork", "length 0 to be allowed", a.length(3))
    s.append({2: [50, 51], 3: [60]})
    s.commit(2)
    s.commit(3)
    if s.cached:
        expect_hit(s, 4, [*tokens(6), 50, 51, 0], 8, b"n")
        expect_hit(s, 4, [*tokens(6), 50, 51, 0], 0)
    s.drain()


@case("fork/one-copy-per-child", rule="copy-on-write", faults=("AH-06", "AH-25"))
def one_copy_per_child(pool: Pool) -> None:
    s = pool(32)
    need(s, "fork")
    need_paged(s)
    s.prefill(1, tokens(6))
    s.fork(1, 2)
    s.fork(1, 3)
    must(s.stats().live == 2, "fork", "no block taken by fork", s.stats())
    append_copies(s, {2: [], 3: []}, 0, "nothing is written")
    append_copies(s, {2: [100]}, 1, "a child diverges")
    append_copies(s, {1: [200]}, 1, "two of three holders have diverged")
    append_copies(s, {3: [300]}, 0, "the last holder writes in place")
    append_copies(s, {1: [1], 2: [2], 3: [3]}, 0, "nothing is shared any more")
    s.commit(1)
    s.fork(1, 4)
    append_copies(s, {4: tokens(5)}, 0, "a block boundary shares nothing that is written")
    append_copies(s, {1: tokens(5)}, 0, "a block boundary shares nothing that is written")
    s.drain()


@case("fork/last-holder", rule="copy-on-write", faults=("AH-25", "AH-27"))
def last_holder(pool: Pool) -> None:
    """The other holder is closed and its blocks evicted: the child keeps its content, in place."""
    for survivor, other in ((1, 2), (2, 1)):
        s = pool(8)
        need(s, "fork")
        need_paged(s)
        s.prefill(1, tokens(6))
        s.fork(1, 2)
        s.close(other)
        s.evict(8)
        append_copies(s, {survivor: [100, 101, 102]}, 0, "the last holder writes in place")
        s.drain()


@case("fork/no-room", rule="append-atomic", faults=("AH-26",))
def no_room(pool: Pool) -> None:
    """Parent with 3.5 blocks, 0 free, 1, 2 and 4 children: lazy, and atomic when they write."""
    for children in (1, 2, 4):
        s = pool(4)
        need(s, "fork")
        need_paged(s)
        s.prefill(1, tokens(14))
        for child in range(2, 2 + children):
            s.fork(1, child)
        a, everyone = s.alloc, dict.fromkeys(range(1, 2 + children), 1)
        s.refused(OutOfBlocks, "append-atomic", "a copy without room", a.append, 2, 1)
        s.refused(OutOfBlocks, "append-atomic", "copies without room", a.append_many, everyone)
        for child in range(2, 2 + children):
            s.close(child)
        s.append({1: [100]})
        s.drain()


@case("fork/inside-published", rule="copy-on-write", faults=("AH-06", "AH-16"))
def inside_published(pool: Pool) -> None:
    """A fork that ends inside a published block leaves that block as it is while it is wanted."""
    s = pool(16)
    need(s, "fork")
    need_prefix(s)
    s.prefill(1, tokens(8))
    s.fork(1, 2, 6)
    s.append({2: [100]})
    expect_hit(s, 3, tokens(9), 8)
    s.fork(1, 4, 5)
    s.close(1)
    s.append({4: [200]})  # the only holder by now: either way, nobody may find what it overwrites
    s.open(5, tokens(9))
    s.append({4: [201, 202], 5: [7]})
    s.drain()


@case("truncate/drafts", rule="truncate", faults=("AH-29", "AH-30"))
def drafts(pool: Pool) -> None:
    s = pool(32)
    need(s, "truncate")
    s.prefill(1, tokens(6))
    length = 6
    for round_ in range(20):
        accepted = round_ % 5
        s.append({1: tokens(5, 100 * round_ + 50)})
        s.commit(1, accepted + 1)
        length += accepted + 1
        s.truncate(1, length)
        must(s.alloc.length(1) == length, "truncate", f"length {length}", s.alloc.length(1))
    s.drain()


@case("truncate/rejected-not-cached", rule="truncate", faults=("AH-30",))
def rejected_not_cached(pool: Pool) -> None:
    s = pool(16)
    need(s, "truncate")
    need_prefix(s)
    s.prefill(1, tokens(6))
    s.append({1: [6, 70, 71]})
    s.commit(1, 1)
    s.truncate(1, 7)
    s.append({1: [7]})
    s.commit(1)
    expect_hit(s, 2, [*tokens(8), 0], 8)
    expect_hit(s, 2, [*tokens(7), 70, 0], 7)
    s.drain()


@case("truncate/published", rule="truncate", faults=("AH-16", "AH-30"))
def published(pool: Pool) -> None:
    """Committed tokens are cut and rewritten: the old block may not be found by its old key."""
    s = pool(16)
    need(s, "truncate")
    need_prefix(s)
    s.prefill(1, tokens(12))
    s.truncate(1, 6)
    s.append({1: [100, 101]})
    s.open(2, tokens(9))
    s.commit(1)
    s.close(2)
    expect_hit(s, 2, [*tokens(6), 100, 101, 0], 8)
    s.truncate(1, 0)
    must(s.stats().live == 0, "truncate", "no live block at length 0", s.stats())
    s.append({1: tokens(5, 300)})
    s.drain()


@case("truncate/shared", rule="truncate", faults=("AH-06", "AH-25"))
def shared(pool: Pool) -> None:
    """Blocks that others still read are cut from one table only, and copied when written."""
    s = pool(32)
    need(s, "truncate")
    need_prefix(s)
    s.prefill(1, tokens(12))
    s.open(2, tokens(12))
    s.truncate(2, 6)
    s.append({2: tokens(4, 100)})
    s.truncate(1, 7)
    s.append({1: tokens(4, 200)})
    s.commit(1)
    s.commit(2)
    expect_hit(s, 3, [*tokens(7), *tokens(4, 200), 0], 11)
    expect_hit(s, 3, [*tokens(6), *tokens(4, 100), 0], 10)
    s.drain()


@case("truncate/bounds", rule="truncate")
def bounds(pool: Pool) -> None:
    s = pool(16)
    need(s, "truncate")
    s.prefill(1, tokens(6))
    a = s.alloc
    s.refused(ValueError, "truncate", "truncate beyond the length", a.truncate, 1, 7)
    s.refused(ValueError, "truncate", "truncate to -1", a.truncate, 1, -1)
    s.refused(AllocatorError, "truncate", "an unknown id", a.truncate, 9, 0)
    s.truncate(1, 6)
    s.truncate(1, 4)
    s.refused(AllocatorError, "commit-before-share", "commit of what was cut", a.commit, 1, [4])
    s.drain()


@case("fork/inherits", rule="fork", faults=("AH-02",))
def inherits(pool: Pool) -> None:
    """The child has its parent's namespace and priority, for the blocks that it adds too, and when
    it starts with nothing."""
    s = pool(16)
    need(s, "fork")
    need_prefix(s)
    need_paged(s)
    s.prefill(1, tokens(8), namespace=b"n", priority=5)
    s.fork(1, 2)
    s.fork(1, 3, 0)
    s.append({2: tokens(4, 100), 3: tokens(8, 200)})
    s.commit(2)
    s.commit(3)
    s.prefill(4, tokens(12, 300))
    for seq in (1, 2, 3, 4):
        s.close(seq)
    s.evict(3)  # the youngest, and of the lowest priority
    expect_hit(s, 9, tokens(13, 300), 0)
    expect_hit(s, 9, [*tokens(8), *tokens(4, 100), 0], 12, b"n")
    expect_hit(s, 9, tokens(9, 200), 8, b"n")
    expect_hit(s, 9, tokens(9, 200), 0)
    s.drain()


CASES = (
    fork_counts,
    fork_bounds,
    one_copy_per_child,
    last_holder,
    no_room,
    inside_published,
    inherits,
    drafts,
    rejected_not_cached,
    published,
    shared,
    bounds,
)
