"""What the size of the pool costs the paged allocator:

    python -m pagedattn.benchmarks.pool_sizes

Construction, and operations that would show a scan: a decode step, and single blocks out of a pool
of which every second one is free. Times are CPU times of the process, the least of several; memory
is what Python has allocated.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from pagedattn import registry
from pagedattn.hooks import OfferKind

__all__ = ["main"]

SIZES = (1_000, 1_000_000, 2**31)
HALF_FREE = (65_536, 1_048_576)
RUNNING = 48
CACHED = 10_000  # blocks


def _least(rounds: int, call: Callable[[], object], before: Callable[[], object]) -> float:
    """Seconds of the quickest of so many calls."""
    found = []
    for _ in range(rounds):
        before()
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return min(found)


def _construction(num_blocks: int) -> str:
    make = partial(registry.load(OfferKind.ALLOCATOR, "paged"), num_blocks=num_blocks)
    seconds = _least(20, make, lambda: None)
    tracemalloc.start()
    allocator = make()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert allocator.stats().free == num_blocks
    return f"construction {1e3 * seconds:.2f} ms, {used / 1e3:.0f} kB"


def _decode(num_blocks: int) -> str:
    """A token for each of the running sequences, a block for each every 16th time."""
    allocator, running = registry.allocator(num_blocks=num_blocks), range(RUNNING)

    def again() -> None:
        if allocator.stats().live >= num_blocks - RUNNING:
            for seq in running:
                allocator.truncate(seq, 0)

    for seq in running:
        allocator.open(seq, [])
        allocator.append(seq, seq % 16)
    wants = dict.fromkeys(running, 1)
    seconds = _least(400, lambda: allocator.append_many(wants), again)
    return f"a step of {RUNNING} sequences {1e6 * seconds:.0f} us"


def _singles(num_blocks: int) -> float:
    """Seconds for a block out of a pool of which every second one is free."""
    allocator = registry.allocator(num_blocks=num_blocks, block_size=1, prefix_cache=False)
    for seq in range(num_blocks):
        allocator.open(seq, [])
        allocator.append(seq, 1)
    for seq in range(0, num_blocks, 2):
        allocator.close(seq)
    allocator.open(-1, [])
    wanted = num_blocks // 4

    def take() -> None:
        for _ in range(wanted):
            allocator.append(-1, 1)

    return _least(1, take, lambda: None) / wanted


def _cached() -> float:
    """Bytes for a cached block of 16 tokens, its event included."""
    allocator, tokens = (
        registry.allocator(num_blocks=CACHED),
        list(range(10**6, 10**6 + 16 * CACHED)),
    )
    tracemalloc.start()
    allocator.open(1, tokens)
    allocator.append(1, len(tokens))
    allocator.commit(1, tokens)
    allocator.close(1)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert allocator.stats().reclaimable == CACHED
    return used / CACHED


def main() -> None:
    """A line for each size."""
    for num_blocks in SIZES:
        print(f"{num_blocks:,} blocks: {_construction(num_blocks)}; {_decode(num_blocks)}")
    for num_blocks in HALF_FREE:
        seconds = _singles(num_blocks)
        print(f"{num_blocks:,} blocks, every second one free: {1e6 * seconds:.1f} us a block")
    print(f"a cached block of 16 tokens: {_cached():.0f} bytes")


if __name__ == "__main__":
    main()
