"""append_many, can_append and OutOfBlocks."""

from __future__ import annotations

from pagedattn.conformance.allocator.expect import fail, must
from pagedattn.conformance.allocator.shadow import Shadow
from pagedattn.conformance.allocator.tools import Pool, case, need, need_paged, tokens
from pagedattn.errors import AllocatorError, OutOfBlocks

__all__ = ["CASES"]


def refuse(s: Shadow, wants: dict[int, list[int]], needed: int | None = None) -> None:
    """append_many(wants) must raise OutOfBlocks, with exactly `needed` where that is given."""
    try:
        s.append(wants)
    except OutOfBlocks as error:
        must(
            needed is None or error.needed == needed,
            "out-of-blocks",
            f"needed = {needed} new blocks, copies included",
            f"needed = {error.needed}",
        )
    else:
        counts = {seq: len(ids) for seq, ids in wants.items()}
        raise fail(
            "out-of-blocks", f"OutOfBlocks for {counts} in {s.total} blocks", "it was granted"
        )


@case("append/slots", rule="append-atomic", core=True)
def slots(pool: Pool) -> None:
    for size in (1, 4, 16):
        s = pool(1024 // size, size)
        for seq, n in enumerate((0, 1, size - 1, size, size + 1, 2 * size, 2 * size + 1)):
            s.open(seq, tokens(n, 100 * seq))
            s.append({seq: tokens(n, 100 * seq)})
        s.append({seq: [seq] for seq in range(7)})
        grant = s.append({3: []})[3]
        must(
            not grant.slots and not grant.blocks and not grant.copies,
            "append-atomic",
            "an empty grant for 0 tokens",
            grant,
        )
        must(
            s.append({}) == {}, "append-atomic", "no grant for an empty call", "something came back"
        )
        s.drain()


@case("append/bad-input", rule="append-atomic", core=True)
def bad_input(pool: Pool) -> None:
    s = pool(64)
    s.prefill(1, tokens(5))
    a = s.alloc
    s.refused(ValueError, "append-atomic", "a negative count", a.append, 1, -1)
    s.refused(ValueError, "append-atomic", "a negative count", a.append_many, {1: -2})
    s.refused(AllocatorError, "append-atomic", "an unknown id", a.append, 9, 1)
    s.refused(
        AllocatorError,
        "append-atomic",
        "an unknown id beside a known one",
        a.append_many,
        {1: 9, 9: 1},
    )
    s.refused(AllocatorError, "can-append", "an unknown id", a.can_append, {1: 9, 9: 1})
    s.drain()


@case("append/atomic", rule="append-atomic", faults=("AH-12", "AH-19", "AH-22"), core=True)
def atomic(pool: Pool) -> None:
    """Fill the pool one token each in turn, then fail a hundred times: nothing may leak."""
    s = pool(64)
    for seq in (1, 2, 3):
        s.open(seq, tokens(1, 100 * seq))
    try:
        while True:
            s.append({1: [1], 2: [2], 3: [3]})
    except OutOfBlocks:
        pass
    for _ in range(100):
        refuse(s, {1: tokens(5), 2: tokens(5), 3: tokens(40)})
    s.close(3)
    s.prefill(4, tokens(5, 400))
    s.drain()


@case("append/exact-fill", rule="out-of-blocks", faults=("AH-31", "AH-32"))
def exact_fill(pool: Pool) -> None:
    s = pool(5)
    need_paged(s)
    s.prefill(1, tokens(5))
    s.prefill(2, tokens(4, 100))
    refuse(s, {1: tokens(4), 2: tokens(5)}, needed=3)
    refuse(s, {2: tokens(9)}, needed=3)
    s.append({1: tokens(3), 2: tokens(8)})
    must(s.available() == 0, "out-of-blocks", "no block left", s.stats())
    refuse(s, {1: [1]}, needed=1)
    s.close(2)
    s.append({1: tokens(12)})
    s.drain()


@case("append/whole-pool", rule="out-of-blocks", faults=("AH-24",))
def whole_pool(pool: Pool) -> None:
    """No share of the pool is held back: a pool of one block serves one block, and so on."""
    for blocks in (1, 2, 3, 7, 101):
        s = pool(blocks)
        need_paged(s)
        for seq in range(blocks):
            s.open(seq, tokens(4, 10 * seq))
            s.append({seq: tokens(4, 10 * seq)})
        must(s.stats().live == blocks, "out-of-blocks", f"all {blocks} blocks in use", s.stats())
        refuse(s, {0: [1]}, needed=1)
        s.drain()


@case("append/parked", rule="out-of-blocks", faults=("AH-22", "AH-23"))
def parked(pool: Pool) -> None:
    """One needs a block more and none is free: what the other gives back is there at once."""
    for give_back in ("close", "truncate"):
        s = pool(7)
        need_paged(s)
        if give_back == "truncate":
            need(s, "truncate")
        s.prefill(1, tokens(16))
        s.prefill(2, tokens(11, 100))
        refuse(s, {1: [1]}, needed=1)
        if give_back == "close":
            s.close(2)
        else:
            s.truncate(2, 8)
        s.append({1: [1]})
        s.drain()


@case("append/huge", rule="out-of-blocks", faults=("AH-21",), core=True)
def huge(pool: Pool) -> None:
    s = pool(8, 16)
    s.open(1, tokens(3))
    for n in (129, 10_000, 10**12):
        a = s.alloc
        must(not a.can_append({1: n}), "can-append", f"False for {n} tokens", "it said True")
        s.refused(OutOfBlocks, "out-of-blocks", f"append of {n} tokens", a.append, 1, n)
    s.append({1: tokens(3)})
    s.drain()


@case("can-append/joint", rule="can-append", faults=("AH-22", "AH-32"))
def joint(pool: Pool) -> None:
    """Each fits alone, both together do not."""
    s = pool(5)
    need_paged(s)
    s.prefill(1, tokens(8))
    s.prefill(2, tokens(8, 100))
    a = s.alloc
    must(a.can_append({1: 1}) and a.can_append({2: 4}), "can-append", "True for each", "False")
    must(not a.can_append({1: 1, 2: 1}), "can-append", "False for both", "True")
    refuse(s, {1: [1], 2: [2]}, needed=2)
    s.append({1: tokens(4)})
    s.drain()


@case("can-append/copies", rule="can-append", faults=("AH-26",))
def copies(pool: Pool) -> None:
    """k holders of one partial block cost k - 1 copies when they write in one call."""
    s = pool(5)
    need(s, "fork")
    need_paged(s)
    s.prefill(1, tokens(6))
    for child in (2, 3, 4):
        s.fork(1, child)
    refuse(s, {1: tokens(6), 2: [1], 3: [1], 4: [1]}, needed=4)
    grants = s.append({seq: [10 * seq] for seq in (1, 2, 3, 4)})
    count = sum(len(grant.copies) for grant in grants.values())
    must(count == 3, "copy-on-write", "3 copies for 4 holders", f"{count} copies")
    must(s.stats().live == 5, "copy-on-write", "5 live blocks", s.stats())
    s.drain()


@case("append/grants-stay", rule="append-atomic", faults=("AH-38",), core=True)
def grants_stay(pool: Pool) -> None:
    """A grant is a value: what a step was given does not change while later steps are planned."""
    s = pool(64)
    s.open(1, tokens(3))
    first = s.append({1: tokens(3)})[1]
    given = (list(first.slots), tuple(first.blocks), tuple(first.copies))
    for step in range(9):
        s.append({1: [100 + step]})
    now = (list(first.slots), tuple(first.blocks), tuple(first.copies))
    must(now == given, "append-atomic", f"the first grant to stay {given}", now)
    s.drain()


@case("append/wide", rule="append-atomic", faults=("AH-22", "AH-26"))
def wide(pool: Pool) -> None:
    """40 sequences in one call, half of them forks of one: all or nothing, and one copy for each
    but the last holder of the block that they share."""
    s = pool(60)
    need(s, "fork")
    need_paged(s)
    s.prefill(0, tokens(6))  # 2 blocks
    for child in range(1, 20):
        s.fork(0, child)
    for seq in range(20, 40):
        s.prefill(seq, tokens(4, 100 * seq))  # 20 blocks
    everyone = {seq: [1000 + seq] for seq in range(40)}
    s.open(40, tokens(4, 9000))
    s.append({40: tokens(4, 9000)})  # 37 are left: 19 copies and 20 new blocks are wanted
    refuse(s, everyone, needed=39)
    s.close(40)  # never committed
    refuse(s, everyone, needed=39)
    s.close(20)
    del everyone[20]
    grants = s.append(everyone)
    count = sum(len(grant.copies) for grant in grants.values())
    must(count == 19, "copy-on-write", "19 copies for 20 holders", f"{count} copies")
    s.drain()


@case("append/far-slots", rule="append-atomic")
def far_slots(pool: Pool) -> None:
    """Slots go beyond 32 bits where blocks times tokens do."""
    s = pool(4, 2**31)
    for seq in range(4):
        s.open(seq, tokens(3, 100 * seq))
        s.append({seq: tokens(3, 100 * seq)})
    s.append({seq: [7] for seq in range(4)})
    s.drain()


CASES = (
    slots,
    bad_input,
    grants_stay,
    atomic,
    exact_fill,
    whole_pool,
    parked,
    huge,
    joint,
    copies,
    wide,
    far_slots,
)
