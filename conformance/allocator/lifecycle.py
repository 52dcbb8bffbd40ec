"""open, close, commit: who may call what when, and whether everything comes back."""

from __future__ import annotations

from collections.abc import Callable

from pagedattn.allocator import Prefix
from pagedattn.conformance.allocator.expect import must
from pagedattn.conformance.allocator.tools import Pool, case, need, refusals_of, tokens
from pagedattn.errors import AllocatorError

__all__ = ["CASES"]


@case("open/fresh", rule="open-hit", core=True)
def fresh(pool: Pool) -> None:
    s = pool(64)
    stats = s.stats()
    must(stats.free == stats.total == 64, "stats-identity", "64 free blocks at first", stats)
    hit = s.open(1, tokens(9))
    must(hit.tokens == 0, "open-hit", "nothing to be found in an empty pool", hit)
    must(s.alloc.length(1) == 0, "open-hit", "length 0 without a hit", s.alloc.length(1))
    s.drain()


@case("open/twice", rule="open-hit", core=True)
def open_twice(pool: Pool) -> None:
    s = pool(64)
    s.prefill(1, tokens(6))
    s.refused(AllocatorError, "open-hit", "open of an open id", s.alloc.open, 1, [7])
    s.close(1)
    s.prefill(1, tokens(3, 50))
    s.drain()


@case("open/any-id", rule="close", core=True)
def any_id(pool: Pool) -> None:
    """Ids are the caller's: 0, negative ones, and ones that differ in their high bits."""
    s = pool(256)
    ids = (0, -1, 1, 2**32, 2**32 + 1, -(2**40), 2**70)
    for i, seq in enumerate(ids):
        s.prefill(seq, tokens(5 + i, 100 * i))
    for seq in ids:
        s.append({seq: [seq % 97, 1]})
        s.commit(seq)
    for seq in ids[::-1]:
        s.close(seq)
    s.drain()


@case("open/any-sequence", rule="open-hit", core=True)
def any_sequence(pool: Pool) -> None:
    """Tokens come as a list, a tuple or a range, and stay the caller's."""
    s = pool(64)
    mine = tokens(9)
    for seq, ids in enumerate((mine, tuple(mine), range(9))):
        hit = s.prefill(seq, ids)
        most = 8 - 8 % s.caps.hit_granularity if s.cached and seq else 0
        must(hit.tokens == most, "open-hit", f"a hit of {most} for {type(ids).__name__}", hit)
    must(mine == tokens(9), "open-hit", "the caller's list as it was", mine)
    s.drain()


@case("open/two-allocators", rule="open-hit", faults=("AH-39",), core=True)
def two_allocators(pool: Pool) -> None:
    """Two allocators in one process, as for two groups of layers, know nothing of each other."""
    a, b = pool(64), pool(64)
    for s in (a, b):
        s.prefill(1, tokens(9))
    if a.cached and a.caps.prefix is Prefix.HASH:
        a.pin(1)
        b.refused(AllocatorError, "pinning", "unpin of what another pinned", b.alloc.unpin, 1)
    b.close(1)
    a.append({1: [7]})
    b.refused(AllocatorError, "close", "close of what another has open", b.alloc.close, 1)
    b.reset()
    if a.cached:
        must(a.open(2, tokens(9)).tokens > 0, "reset", "reset() of one to leave the other", "none")
    b.drain()
    a.drain()


@case("close/twice", rule="close", faults=("AH-09", "AH-13"), core=True)
def close_twice(pool: Pool) -> None:
    s = pool(64)
    s.prefill(417, tokens(6))
    s.prefill(2, tokens(5, 50))
    s.close(417)
    a, unknown = s.alloc, 928
    calls: list[tuple[str, Callable[..., object], tuple[object, ...]]] = [
        ("close", a.close, ()),
        ("commit", a.commit, ([1],)),
        ("commit of nothing", a.commit, ([],)),
        ("append", a.append, (1,)),
        ("append of nothing", a.append, (0,)),
        ("table", a.table, ()),
        ("length", a.length, ()),
    ]
    if s.caps.truncate:
        calls.append(("truncate", a.truncate, (0,)))
    if s.caps.fork:
        calls.append(("fork", a.fork, (3,)))
    if s.caps.window:
        calls.append(("release_before", a.release_before, (0,)))
    for what, call, rest in calls:
        for seq, state in ((417, "after close"), (unknown, "of an unknown id")):
            said = s.refused(AllocatorError, "close", f"{what} {state}", call, seq, *rest)
            must(str(seq) in said, "close", f"{what} {state} to name sequence {seq}", said)
    s.drain()


@case("close/any-state", rule="close", faults=("AH-10", "AH-13"), core=True)
def close_any_state(pool: Pool) -> None:
    """Opened only; chunk not run; chunk committed; at, below and above block borders."""
    s = pool(64)
    for n in (0, 1, 3, 4, 5, 8, 9):
        for committed in sorted({0, n // 2, n}):
            s.open(1, tokens(9, 100 * n + 1000 * committed))
            s.append({1: tokens(n, 100 * n + 1000 * committed)})
            s.commit(1, committed)
            s.close(1)
    s.drain()
    must(s.stats().free == 64, "close", "64 free blocks after the drain", s.stats())


@case("close/short-requests", rule="close", faults=("AH-10", "AH-11", "AH-39"), core=True)
def short_requests(pool: Pool) -> None:
    s = pool(64)
    for i in range(200):
        n = 1 + (7 * i) % 40
        s.prefill(i, tokens(n, 1000 * i))
        for step in range(i % 6):
            s.append({i: [step]})
        s.close(i)
    s.drain()


@case("commit/bounds", rule="commit-before-share", core=True)
def commit_bounds(pool: Pool) -> None:
    s = pool(64)
    s.open(1, tokens(6))
    a = s.alloc
    s.refused(AllocatorError, "commit-before-share", "commit before append", a.commit, 1, [0])
    s.append({1: tokens(6)})
    s.commit(1, 4)
    s.refused(
        AllocatorError,
        "commit-before-share",
        "commit of more than was appended",
        a.commit,
        1,
        [4, 5, 6],
    )
    s.refused(AllocatorError, "commit-before-share", "commit of an unknown id", a.commit, 7, [1])
    s.commit(1, 0)
    s.commit(1)
    s.drain()


@case("close/forked", rule="close", faults=("AH-13", "AH-27"))
def close_forked(pool: Pool) -> None:
    s = pool(64)
    need(s, "fork")
    for order in ((1, 2, 3), (3, 2, 1), (2, 1, 3)):
        s.prefill(1, tokens(6))
        s.fork(1, 2)
        s.append({1: [100]})
        s.fork(1, 3)
        for seq in order:
            s.close(seq)
    s.drain()


@case("unsupported/refuses", rule="declined", core=True)
def refuses(pool: Pool) -> None:
    for capability in ("fork", "truncate", "resize", "window"):
        s = pool(64)
        if not getattr(s.caps, capability):
            refusals_of(s.alloc, capability)


CASES = (
    fresh,
    open_twice,
    any_id,
    any_sequence,
    two_allocators,
    close_twice,
    close_any_state,
    short_requests,
    commit_bounds,
    close_forked,
    refuses,
)
