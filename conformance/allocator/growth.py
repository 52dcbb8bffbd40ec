"""What an operation costs in a large pool and in a small one, in operations instead of seconds.

Counted are the bytecodes of Python code, and the lengths of the lists and deques whose methods go
through them (remove, index, insert, ...). Work inside C extensions is not seen.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

from pagedattn.allocator import Addressing, BlockAllocator, Prefix
from pagedattn.conformance.allocator.expect import fail, must
from pagedattn.conformance.allocator.shadow import Factory
from pagedattn.conformance.case import Case, Declined, Kind
from pagedattn.errors import Refusal, Unsupported

__all__ = ["CASES", "operations"]

SMALL, LARGE = 64, 4096
SIZE = 4
MOST_GROWTH = 3.0
"""64 times the blocks: a scan costs 64 times as much, a heap twice as much."""
SLACK = 60

CALLS = 40
"""The average counts: work put off and done for many calls at once is fine."""

RULE = "cost"

WALKS = frozenset({"remove", "index", "insert", "count", "copy", "sort", "reverse"})
"""Methods that go through the whole container."""


def operations(call: Callable[[], object]) -> int:
    """Operations of one call."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event == "c_call" and getattr(argument, "__name__", "") in WALKS:
            owner = getattr(argument, "__self__", None)
            count += len(owner) if isinstance(owner, list | deque | bytearray) else 0

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return count


def _tokens(n: int, start: int) -> list[int]:
    return list(range(start, start + n))


def _prefill(alloc: BlockAllocator, seq: int, tokens: list[int]) -> None:
    hit = alloc.open(seq, tokens).tokens
    alloc.append(seq, len(tokens) - hit)
    alloc.commit(seq, tokens[hit:])


def _used(make: Factory, num_blocks: int) -> BlockAllocator:
    """Two open sequences; where there is a prefix cache, prefixes of many closed ones fill the
    rest of the pool."""
    try:
        alloc = make(num_blocks=num_blocks, block_size=SIZE)
    except Unsupported as error:
        raise Declined(error.refusals) from None
    for seq in (0, 1):
        _prefill(alloc, seq, _tokens(2 * SIZE + 1, 100 * seq))
    if alloc.capabilities().prefix is not Prefix.NONE:
        closed = range(10, 10 + alloc.stats().free // 4)
        for seq in closed:
            _prefill(alloc, seq, _tokens(4 * SIZE, 1000 * seq))
        for seq in closed:
            alloc.close(seq)
    return alloc


def _counted(name: str, alloc: BlockAllocator) -> Iterator[Callable[[], object]]:
    """The calls that are counted; what stands between them is not."""
    seq = 10**6
    for i in range(CALLS):
        if name in ("open-miss", "open-hit"):
            prompt = _tokens(9, 100) if name == "open-hit" else _tokens(9, 10**7 + 100 * i)
            yield partial(alloc.open, seq, prompt)
            alloc.close(seq)
        elif name == "append":  # a block each, and one is evicted for it where prefixes are kept
            alloc.open(seq + i, [])
            yield partial(alloc.append, seq + i, SIZE)
            if alloc.capabilities().prefix is Prefix.NONE:
                alloc.close(seq + i)
        elif name == "can-append":
            yield partial(alloc.can_append, {0: SIZE, 1: 1})
        elif name == "stats":
            yield alloc.stats
        elif name == "commit":
            alloc.open(seq, [])
            alloc.append(seq, SIZE)
            yield partial(alloc.commit, seq, _tokens(SIZE, 10**7 + 100 * i))
            alloc.close(seq)
        elif name == "close":
            alloc.open(seq, _tokens(5, 10**7 + 100 * i))
            alloc.append(seq, 5)
            yield partial(alloc.close, seq)
        elif name == "fork":
            yield partial(alloc.fork, 1, seq)
            alloc.close(seq)
        elif name == "truncate":
            alloc.append(1, 2)
            yield partial(alloc.truncate, 1, alloc.length(1) - 2)
        else:
            yield partial(alloc.evict, 1)


NEEDS = {"fork": "fork", "truncate": "truncate"}


def _growth(name: str, make: Factory) -> dict[str, Any]:
    """The same operation over 64 and over 4096 blocks."""
    counts = {}
    for num_blocks in (SMALL, LARGE):
        alloc = _used(make, num_blocks)
        caps = alloc.capabilities()
        offered = getattr(caps, NEEDS[name]) if name in NEEDS else True
        if name == "evict":
            offered = caps.prefix is not Prefix.NONE
        if not offered:
            raise Declined((Refusal(alloc.name, name, name, "not offered", "see capabilities()"),))
        try:
            spent = [operations(call) for call in _counted(name, alloc)]
        except Exception as error:
            raise fail(RULE, "no error", f"raised {error!r}") from error
        counts[num_blocks] = sum(spent) / len(spent)
    small, large = counts.values()
    must(
        large <= MOST_GROWTH * small + SLACK,
        RULE,
        f"{name} to cost as much in a pool of {LARGE} blocks as in one of {SMALL}",
        f"{small:.0f} operations became {large:.0f}",
    )
    return {"operations": f"{small:.0f} -> {large:.0f}"}


def _long_prompt(make: Factory) -> dict[str, Any]:
    """A block of a prompt costs as much when the prompt is long, its event included: its identity
    is computed from its parent's, not from the whole prefix."""
    counts = []
    for blocks in (16, 512):
        try:
            alloc = make(num_blocks=4 * blocks, block_size=SIZE)
        except Unsupported as error:
            raise Declined(error.refusals) from None
        if alloc.capabilities().prefix is Prefix.NONE:
            raise Declined((Refusal(alloc.name, "prefix", "hit", "not offered"),))
        tokens = _tokens(blocks * SIZE, 0)
        alloc.open(1, tokens)
        alloc.append(1, len(tokens))
        spent = operations(partial(alloc.commit, 1, tokens))
        spent += operations(partial(alloc.open, 2, tokens))
        spent += operations(alloc.drain_events)
        counts.append(spent / blocks)
    must(
        counts[1] <= MOST_GROWTH * counts[0] + SLACK,
        RULE,
        "a block of a long prompt to cost as much as one of a short prompt",
        f"{counts[0]:.0f} operations per block became {counts[1]:.0f}",
    )
    return {"operations": f"{counts[0]:.0f} -> {counts[1]:.0f} per block"}


def _long_sequence(name: str, make: Factory) -> dict[str, Any]:
    """A token more costs as much behind a long sequence as behind a short one."""
    counts = []
    for blocks in (8, 512):
        try:
            alloc = make(num_blocks=2 * blocks + 8, block_size=SIZE)
        except Unsupported as error:
            raise Declined(error.refusals) from None
        if alloc.capabilities().addressing is not Addressing.PAGED:  # may have to move it whole
            refusal = Refusal(alloc.name, "addressing", "paged", "not offered")
            raise Declined((refusal,))
        _prefill(alloc, 1, _tokens(blocks * SIZE, 0))
        spent = 0
        for i in range(CALLS):
            calls: dict[str, Callable[[], object]] = {
                "append": partial(alloc.append, 1, 1),
                "can-append": partial(alloc.can_append, {1: 1}),
                "commit": partial(alloc.commit, 1, [i]),
            }
            if name == "commit":
                alloc.append(1, 1)
            spent += operations(calls[name])
        counts.append(spent / CALLS)
    must(
        counts[1] <= MOST_GROWTH * counts[0] + SLACK,
        RULE,
        f"{name} of a token to cost as much after 512 blocks as after 8",
        f"{counts[0]:.0f} operations became {counts[1]:.0f}",
    )
    return {"operations": f"{counts[0]:.0f} -> {counts[1]:.0f}"}


REQUESTS = 1500
KEPT = 64 * 1024
"""Bytes that as many requests more may add: under 44 a request."""


def _host_memory(make: Factory) -> dict[str, Any]:
    """Nothing is kept of requests that have ended and content that was evicted: after as many
    requests again, the host's memory holds no more."""
    try:
        alloc = make(num_blocks=SMALL, block_size=SIZE)
    except Unsupported as error:
        raise Declined(error.refusals) from None
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        used = []
        for half in range(3):  # the first one is for what grows to its size once
            for i in range(half * REQUESTS, (half + 1) * REQUESTS):
                alloc.open(i, _tokens(9, 10**6 + 100 * i))
                alloc.append(i, 9)
                alloc.commit(i, _tokens(9, 10**6 + 100 * i))
                alloc.close(i)
                alloc.drain_events()
            gc.collect()
            used.append(tracemalloc.get_traced_memory()[0])
    except Exception as error:
        raise fail(RULE, "no error", f"raised {error!r}") from error
    finally:
        if not tracing:
            tracemalloc.stop()
    must(
        used[2] - used[1] <= KEPT,
        RULE,
        f"the memory of the host to hold no more after {REQUESTS} requests more",
        f"{used[2] - used[1]} bytes more",
    )
    return {"bytes": f"{used[1]} -> {used[2]}"}


def _case(id: str, run: Callable[[Factory], dict[str, Any] | None], *faults: str) -> Case:
    return Case(f"allocator/growth/{id}", Kind.ALLOCATOR, RULE, run, ("AH-34", *faults))


CASES = (
    *(
        _case(name, partial(_growth, name))
        for name in (
            "open-miss", "open-hit", "append", "can-append", "stats", "commit", "close", "fork",
            "truncate", "evict",
        )
    ),
    _case("long-prompt", _long_prompt),
    _case("host-memory", _host_memory, "AH-11"),
    *(
        _case(f"long-sequence/{name}", partial(_long_sequence, name))
        for name in ("append", "can-append", "commit")
    ),
)  # fmt: skip
