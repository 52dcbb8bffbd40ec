"""The allocator suite: directed cases and random walks against a shadow model.

The subject of every case is a factory, `make(num_blocks=, block_size=, **options)`, that returns a
fresh BlockAllocator; the one option used is hash_fn, and only to plant hash collisions. Torch is
imported by the end-to-end cases alone, when they run.
"""

from pagedattn.conformance.allocator import (
    appending,
    end_to_end,
    eviction,
    forking,
    growth,
    lifecycle,
    pooling,
    prefix,
    stateful,
    walk,
)
from pagedattn.conformance.case import Case

__all__ = ["ALLOCATOR_CASES"]

ALLOCATOR_CASES: tuple[Case, ...] = (
    *lifecycle.CASES,
    *appending.CASES,
    *prefix.CASES,
    *forking.CASES,
    *eviction.CASES,
    *pooling.CASES,
    *walk.CASES,
    *stateful.CASES,
    *end_to_end.CASES,
    *growth.CASES,
)
