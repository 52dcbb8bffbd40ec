"""What the tests of the paged allocator share."""

from pagedattn.backends.allocators import PagedAllocator

__all__ = ["blocks", "make", "prefill", "toks"]


def make(num_blocks=8, block_size=4, **options):
    return PagedAllocator(num_blocks=num_blocks, block_size=block_size, **options)


def prefill(a, seq, tokens, **options):
    hit = a.open(seq, tokens, **options)
    a.append(seq, len(tokens) - hit.tokens)
    a.commit(seq, tokens[hit.tokens :])
    return hit


def blocks(a):
    stats = a.stats()
    assert a.check() == []
    return stats.free, stats.reclaimable, stats.live, stats.reserved


def toks(n, start=0):
    return list(range(start, start + n))
