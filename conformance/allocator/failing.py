"""Calls that raise in the middle of their work: nothing of it is left."""

from __future__ import annotations

from pagedattn.conformance.allocator.expect import must
from pagedattn.conformance.allocator.prefix import expect_hit
from pagedattn.conformance.allocator.tools import Pool, case, need, need_paged, need_prefix, tokens
from pagedattn.errors import AllocatorError, OutOfBlocks

__all__ = ["CASES"]


@case("open/bad-tokens", rule="prefix-identity", faults=("AH-12", "AH-19"))
def bad_tokens(pool: Pool) -> None:
    """A token that is none, behind a prefix that is found: no hit is left behind."""
    s = pool(16)
    need_prefix(s)
    s.prefill(1, tokens(9))
    s.close(1)
    for bad in (None, 2**63, "5"):
        for _ in range(3):
            wrong = [*tokens(8), bad, *tokens(4)]
            s.refused(ValueError, "prefix-identity", f"token {bad!r}", s.alloc.open, 2, wrong)
    s.refused(AllocatorError, "close", "close of what was never opened", s.alloc.close, 2)
    expect_hit(s, 2, tokens(9), 8)
    s.drain()


@case("open/twice-counts", rule="stats-identity")
def twice_counts(pool: Pool) -> None:
    """An open() that raises is no lookup."""
    s = pool(16)
    s.prefill(1, tokens(9))
    before = s.stats()
    s.refused(AllocatorError, "close", "an open id", s.alloc.open, 1, tokens(9))
    after = s.stats()
    must(before == after, "stats-identity", f"{before} after an open that raised", after)
    s.drain()


@case("append/bad-beside-good", rule="append-atomic", faults=("AH-26",))
def bad_beside_good(pool: Pool) -> None:
    """One count of a call is wrong, first or last: nobody got anything."""
    s = pool(16)
    s.prefill(3, tokens(9, 100))  # cached, where there is a cache: a wrong call evicts nothing
    s.close(3)
    s.open(1, tokens(9))
    s.open(2, tokens(9))
    many = s.alloc.append_many
    for wants in ({1: 5, 2: -1}, {1: -1, 2: 5}):
        s.refused(ValueError, "append-atomic", f"append_many({wants})", many, wants)
    for wants in ({1: 5, 3: 1}, {3: 1, 1: 5}, {3: 0, 1: 5}):
        s.refused(AllocatorError, "append-atomic", f"append_many({wants})", many, wants)
    s.drain()


@case("append/figures", rule="out-of-blocks", faults=("AH-19",))
def figures(pool: Pool) -> None:
    """available counts what is cached and could go, once; needed counts copies."""
    s = pool(6)
    need_prefix(s)
    need_paged(s)
    s.prefill(1, tokens(12))
    s.close(1)  # 3 cached, 3 free
    s.open(2, tokens(5, 100))
    s.append({2: tokens(5, 100)})  # 3 cached, 1 free
    s.commit(2)
    wants = {2: 12}
    extra = 0
    if s.caps.fork:
        s.fork(2, 3)
        wants, extra = {2: 12, 3: 1}, 1  # one of the two copies the block that they share
    try:
        s.alloc.append_many({**wants, 2: 16 + 4})
    except OutOfBlocks as error:
        found = (error.needed, error.available)
        must(
            found == (5 + extra, 4),
            "out-of-blocks",
            f"needed {5 + extra}, available 4 (3 cached, 1 free)",
            found,
        )
    else:
        must(False, "out-of-blocks", "OutOfBlocks", "the call succeeded")
    s.append({seq: tokens(n, 200) for seq, n in wants.items()})
    s.drain()


@case("append/nothing-changes-nothing", rule="append-atomic")
def nothing(pool: Pool) -> None:
    """An append of no tokens, also in the middle of a published block, takes and hides nothing."""
    s = pool(16)
    need_prefix(s)
    need(s, "fork")
    s.prefill(1, tokens(8))
    s.fork(1, 2, 6)
    s.close(1)
    before = s.stats()
    s.append({2: []})
    must(s.stats() == before, "append-atomic", f"{before}", s.stats())
    expect_hit(s, 3, tokens(9), 8)
    s.drain()


@case("window/all", rule="window-release", faults=("AH-28",))
def window_all(pool: Pool) -> None:
    """Everything is released, at a border of blocks and behind one, and the sequence goes on; a
    child of it has released the same."""
    for length in (8, 10):
        s = pool(16)
        need(s, "window")
        s.prefill(1, tokens(length))
        s.release_before(1, length)
        s.append({1: tokens(7, 100)})
        s.commit(1)
        if s.caps.fork:
            s.fork(1, 2)
            for cut in (0, 3, 7):
                what = f"truncate of a child to {cut}, of which 8 are released"
                if s.caps.truncate:
                    s.refused(ValueError, "truncate", what, s.alloc.truncate, 2, cut)
                s.refused(ValueError, "fork", "a fork there", s.alloc.fork, 2, 3, cut)
            s.append({2: tokens(3, 200)})
        s.release_before(1, length + 7)
        s.drain()


@case("table/stays", rule="append-atomic", faults=("AH-38",))
def table_stays(pool: Pool) -> None:
    """A table that was handed out is a snapshot: what comes later does not change it."""
    s = pool(32)
    s.prefill(1, tokens(6))
    seen = [(s.alloc.table(1), tuple(s.alloc.table(1)))]
    s.append({1: tokens(9, 50)})
    seen.append((s.alloc.table(1), tuple(s.alloc.table(1))))
    if s.caps.truncate:
        s.truncate(1, 3)
    s.close(1)
    for table, was in seen:
        must(tuple(table) == was, "append-atomic", f"a table handed out to stay {was}", table)
    s.drain()


CASES = (
    bad_tokens,
    twice_counts,
    bad_beside_good,
    figures,
    nothing,
    window_all,
    table_stays,
)
