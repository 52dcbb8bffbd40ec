"""Pools of some hundred blocks, full of cached prefixes: as after hours of serving."""

from __future__ import annotations

from pagedattn.conformance.allocator.expect import must
from pagedattn.conformance.allocator.shadow import Shadow
from pagedattn.conformance.allocator.tools import Pool, case, need_paged, need_prefix, tokens
from pagedattn.conformance.allocator.walk import Walker
from pagedattn.conformance.settings import current

__all__ = ["CASES"]

BLOCKS = 640
PIECE = 20  # blocks of a cached prompt


def _full(pool: Pool, priority: int = 0) -> Shadow:
    """A pool in which every block is cached, and two sequences that are open and empty."""
    s = pool(BLOCKS, 1)
    need_prefix(s)
    need_paged(s)
    for i in range(BLOCKS // PIECE):
        s.prefill(9, tokens(PIECE, 1000 * i), priority=priority)
        s.close(9)
    for seq in (1, 2):
        s.open(seq, [])
    return s


def _found(s: Shadow, start: int) -> int:
    hit = s.open(99, tokens(PIECE + 1, start), priority=-1000).tokens
    s.close(99)
    return hit


@case("eviction/large-deepest-first", rule="eviction", faults=("AH-14",))
def deepest_first(pool: Pool) -> None:
    """Of one long prompt the tail goes, whoever takes it: what is left is found, but for a few."""
    s = pool(BLOCKS, 1)
    need_prefix(s)
    need_paged(s)
    s.prefill(9, tokens(BLOCKS))
    s.close(9)
    for seq in (1, 2):
        s.open(seq, [], namespace=b"other")
    for step in range(3):
        s.append({1: tokens(50, 10**6 + 50 * step), 2: tokens(10, 10**7 + 10 * step)})
        left = s.stats().reclaimable
        must(left == BLOCKS - 60 * step - 60, "eviction", f"{60 * step + 60} blocks to go", left)
        found = s.open(99, tokens(BLOCKS + 1)).tokens
        s.close(99)
        must(found >= left - PIECE, "eviction", f"at least {left - PIECE} of {left} found", found)
    s.drain()


@case("eviction/large-priority", rule="eviction")
def priority(pool: Pool) -> None:
    """Blocks of a higher priority outlive those of a lower one that come later, although there was
    nothing else to evict before."""
    s = _full(pool, priority=3)
    s.append({1: tokens(5, 10**6), 2: tokens(5, 10**7)})
    before = sum(_found(s, 1000 * i) for i in range(BLOCKS // PIECE))
    s.prefill(3, tokens(30, 10**8), priority=0)  # which takes 30 of the others
    s.close(3)
    lost = BLOCKS - 10 - 30
    s.append({1: tokens(10, 10**6 + 5), 2: tokens(10, 10**7 + 5)})
    found = sum(_found(s, 1000 * i) for i in range(BLOCKS // PIECE))
    must(before >= lost, "eviction", f"{lost} blocks of priority 3 to be found", before)
    must(
        found >= lost - PIECE and s.alloc.open(99, tokens(31, 10**8)).tokens <= 10,
        "eviction",
        "20 blocks of priority 0 to go before those of priority 3",
        f"{found} of {lost} blocks of priority 3 are found",
    )
    s.alloc.close(99)
    s.drain()


@case("walk/large-pool", rule="stats-identity", faults=("AH-08", "AH-09", "AH-16"))
def walk(pool: Pool) -> None:
    """Every call in every order, where each new block evicts one and prompts are found again."""
    for seed in (1, 2):
        s = _full(pool)
        walker = Walker(s, seed + 1000 * current().seed, sizes=range(BLOCKS, BLOCKS + 20))
        walker.prompts = {1: [], 2: []}
        walker.stems = [tokens(PIECE, 1000 * i) for i in range(6)]  # those that go first
        for _ in range(250):
            walker.step()
        s.drain()


CASES = (deepest_first, priority, walk)
