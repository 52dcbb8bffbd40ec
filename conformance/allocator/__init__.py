"""The allocator suite: directed cases and random walks against a shadow model.

The subject of every case is a factory, `make(num_blocks=, block_size=, **options)`, that returns a
fresh BlockAllocator; the options used are hash_fn, only to plant hash collisions, and policy, only
to see what a policy is told. Torch is imported by the end-to-end cases alone, when they run.
"""

from pagedattn.conformance.allocator import (
    appending,
    end_to_end,
    eviction,
    failing,
    forking,
    growth,
    identity,
    keeping,
    large,
    lifecycle,
    policies,
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
    *policies.CASES,
    *pooling.CASES,
    *identity.CASES,
    *keeping.CASES,
    *failing.CASES,
    *walk.CASES,
    *large.CASES,
    *stateful.CASES,
    *end_to_end.CASES,
    *growth.CASES,
)
