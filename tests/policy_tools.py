"""What the tests of eviction policies share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType

import pytest

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.lru import LRU
from pagedattn.backends.allocators.policies.cost import Cost
from pagedattn.backends.allocators.policies.fifo import FIFO
from pagedattn.backends.allocators.policies.lfu import LFU
from pagedattn.backends.allocators.policies.return_rate import ReturnRate
from pagedattn.backends.allocators.policies.s3fifo import S3FIFO

__all__ = ["POLICIES", "Trace", "calls", "drain", "every_policy", "key", "release", "use", "void"]

POLICIES: list[type[EvictionPolicy]] = [LRU, FIFO, LFU, S3FIFO, Cost, ReturnRate]
Trace = list[list[int]]

every_policy = pytest.mark.parametrize("make", POLICIES, ids=lambda make: make.name)


def key(n: int) -> bytes:
    return n.to_bytes(4, "little")


def release(policy: EvictionPolicy, blocks: Sequence[int], *, priority: int = 0) -> None:
    """Blocks of one sequence, first to last; the key of a block is its number."""
    for depth in range(len(blocks) - 1, -1, -1):
        block = blocks[depth]
        policy.add(block, key=key(block), depth=depth, priority=priority)


def use(policy: EvictionPolicy, blocks: Sequence[int]) -> None:
    """The blocks are found by a sequence that computes nothing and closes at once."""
    for block in blocks:
        policy.hit(key(block))
        policy.remove(block)
    release(policy, blocks)


def drain(policy: EvictionPolicy) -> list[int]:
    return [policy.pop() for _ in range(len(policy))]


def calls(function: Callable[[], None]) -> int:
    """Calls of functions, Python's and built-in, that `function` makes."""
    count = 0

    def see(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def void(value: object) -> None:
    """Discard."""
