"""The suite judges allocators that are nothing like ours: what they lack, they decline."""

import pytest

from pagedattn.allocator import (
    Addressing,
    AllocatorCapabilities,
    AllocatorStats,
    BlockAllocator,
    Grant,
    PrefixHit,
)
from pagedattn.conformance.allocator import ALLOCATOR_CASES
from pagedattn.conformance.case import CaseFailure, Declined
from pagedattn.errors import AllocatorError, OutOfBlocks


class Minimal(BlockAllocator):
    """Free list and tables: the required methods and no more."""

    name = "minimal"

    def __init__(self, *, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free = list(range(num_blocks))
        self.tables, self.lengths, self.committed, self.lookups = {}, {}, {}, 0

    def capabilities(self):
        return AllocatorCapabilities()

    def known(self, seq):
        if seq not in self.tables:
            raise AllocatorError(f"sequence {seq} is not open")

    def open(self, seq, tokens, *, namespace=b"", priority=0):
        if seq in self.tables:
            raise AllocatorError(f"sequence {seq} is open")
        self.tables[seq], self.lengths[seq], self.committed[seq] = [], 0, 0
        self.lookups += 1
        return PrefixHit()

    def needed(self, wants):
        total = 0
        for seq, n in wants.items():
            self.known(seq)
            if n < 0:
                raise ValueError(f"sequence {seq}: {n} tokens")
            total += -(-(self.lengths[seq] + n) // self.block_size) - len(self.tables[seq])
        return total

    def can_append(self, wants):
        return self.needed(wants) <= len(self.free)

    def append_many(self, wants):
        if not self.can_append(wants):
            raise OutOfBlocks(self.needed(wants), len(self.free))
        return {seq: self.grow(seq, n) for seq, n in wants.items()}

    def grow(self, seq, n):
        table, start, size = self.tables[seq], self.lengths[seq], self.block_size
        column = len(table)
        self.lengths[seq] += n
        while len(table) * size < self.lengths[seq]:
            table.append(self.free.pop())
        slots = [table[p // size] * size + p % size for p in range(start, start + n)]
        return Grant(slots, column, tuple(table[column:]))

    def commit(self, seq, tokens):
        self.known(seq)
        if self.committed[seq] + len(tokens) > self.lengths[seq]:
            raise AllocatorError(f"sequence {seq}: too many")
        self.committed[seq] += len(tokens)

    def close(self, seq):
        self.known(seq)
        self.free += self.tables.pop(seq)

    def table(self, seq):
        self.known(seq)
        return list(self.tables[seq])

    def length(self, seq):
        self.known(seq)
        return self.lengths[seq]

    def stats(self):
        live = sum(map(len, self.tables.values()))
        return AllocatorStats(
            total=self.num_blocks,
            free=len(self.free),
            reclaimable=0,
            live=live,
            reserved=self.num_blocks - live - len(self.free),
            lookups=self.lookups,
        )

    def check(self):
        return []

    def reset(self):
        if self.tables:
            raise AllocatorError("open sequences")


class Contiguous(Minimal):
    """Reserves adjacent blocks for 48 tokens at open; a sequence cannot outgrow them."""

    name = "contiguous"

    def __init__(self, *, num_blocks, block_size):
        super().__init__(num_blocks=num_blocks, block_size=block_size)
        self.span = -(-48 // block_size)
        self.spans = list(range(num_blocks // self.span))
        self.held, self.free = {}, dict.fromkeys(self.free)

    def capabilities(self):
        return AllocatorCapabilities(addressing=Addressing.CONTIGUOUS)

    def open(self, seq, tokens, *, namespace=b"", priority=0):
        if seq not in self.tables and not self.spans:
            raise OutOfBlocks(self.span, len(self.free))
        hit = super().open(seq, tokens)
        self.held[seq] = self.spans.pop()
        first = self.held[seq] * self.span
        for block in range(first, first + self.span):
            del self.free[block]
        return hit

    def can_append(self, wants):
        self.needed(wants)
        return all(self.lengths[seq] + n <= self.span * self.block_size for seq, n in wants.items())

    def grow(self, seq, n):
        columns = -(-(self.lengths[seq] + n) // self.block_size)
        first = self.held[seq] * self.span
        free, column = self.free, len(self.tables[seq])
        self.free = list(range(first + columns - 1, first + column - 1, -1))
        grant = super().grow(seq, n)
        self.free = free
        return grant

    def close(self, seq):
        self.known(seq)
        first = self.held[seq] * self.span
        self.free |= dict.fromkeys(range(first, first + self.span))
        self.spans.append(self.held.pop(seq))
        del self.tables[seq]


class Liar(Minimal):
    """Declares what it does not have."""

    name = "liar"

    def capabilities(self):
        return AllocatorCapabilities(fork=True, truncate=True, resize=True, window=True)


class Hider(Minimal):
    """Does what it declares not to have."""

    name = "hider"

    def truncate(self, seq, length):
        self.lengths[seq] = length


def verdict(case, make):
    try:
        case.run(make)
    except Declined as declined:
        return declined.refusals[0].code
    except CaseFailure:
        return "failed"
    return "passed"


def judge(make):
    return {case.id.removeprefix("allocator/"): verdict(case, make) for case in ALLOCATOR_CASES}


CORE = [case.id.removeprefix("allocator/") for case in ALLOCATOR_CASES if case.core]


@pytest.mark.parametrize("make", [Minimal, Contiguous])
def test_conforms_with_the_required_core_alone(make):
    outcomes = judge(make)
    assert "failed" not in outcomes.values()
    assert {name: outcomes[name] for name in CORE} == dict.fromkeys(CORE, "passed")
    assert outcomes["fork/counts"] == "fork"
    assert outcomes["truncate/drafts"] == "truncate"
    assert outcomes["window/release"] == "window"
    assert outcomes["resize/grow-shrink"] == "resize"
    assert outcomes["prefix/hit"] == "prefix"
    assert outcomes["pin/survives"] == "prefix"


def test_exact_counts_are_asked_of_paged_allocators_only():
    assert judge(Minimal)["append/exact-fill"] == "passed"
    assert judge(Contiguous)["append/exact-fill"] == "addressing"


def test_refusing_what_was_declared_fails():
    outcomes = judge(Liar)
    for name in ("fork/counts", "truncate/drafts", "window/release", "resize/grow-shrink"):
        assert outcomes[name] == "failed"


def test_doing_what_was_not_declared_fails():
    outcomes = judge(Hider)
    assert outcomes["truncate/drafts"] == "failed"
    assert outcomes["unsupported/refuses"] == "failed"
    assert outcomes["fork/counts"] == "fork"
