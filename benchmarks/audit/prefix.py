"""Prefix hits by cache size and policy: requests one after the other, prompts alone.

A hit is a leading block that is found; the rate is over all prompt blocks of the trace. One token
stands for each hash block, so that a pool of n blocks holds n blocks of the trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagedattn.allocator import BlockAllocator, Prefix
from pagedattn.benchmarks.audit.contender import Contender
from pagedattn.benchmarks.audit.optimum import optimal_hits
from pagedattn.benchmarks.audit.trace import Trace
from pagedattn.errors import OutOfBlocks

__all__ = ["CacheRow", "prefix_hits", "study"]


@dataclass(frozen=True)
class CacheRow:
    """One cache size. hits: leading blocks found, by contender label; None: it found no prefix.

    blocks   of the pool; `unbounded` says that it holds every block of the trace
    optimum  hits of the clairvoyant policy
    seconds  that the replay took, by label
    """

    blocks: int
    unbounded: bool
    prompt_blocks: int
    hits: dict[str, int]
    seconds: dict[str, float]
    optimum: int


def study(
    trace: Trace,
    contenders: Sequence[Contender],
    sizes: Sequence[int],
    progress: Callable[[str], None] = lambda what: None,
) -> list[CacheRow]:
    """A row for each size and one for an unbounded cache; only contenders that keep prefixes."""
    chains = [_prompt(trace, i) for i in range(len(trace.requests))]
    total = sum(map(len, chains))
    everything = max(1, len({i for chain in chains for i in chain}))
    rows = []
    for blocks in [*(n for n in sorted(set(sizes)) if n < everything), everything]:
        hits, seconds = {}, {}
        for contender in contenders:
            allocator = contender.make(
                num_blocks=blocks,
                block_size=1,
                max_seq_len=blocks,
                lengths=lambda seq: len(chains[seq]),
            )
            if allocator.capabilities().prefix is Prefix.NONE:
                continue
            progress(f"prefixes: {contender.label}, {blocks} blocks")
            begin = time.perf_counter()
            hits[contender.label] = prefix_hits(allocator, chains)
            seconds[contender.label] = time.perf_counter() - begin
        rows.append(
            CacheRow(
                blocks, blocks == everything, total, hits, seconds, optimal_hits(chains, blocks)
            )
        )
    return rows


def prefix_hits(allocator: BlockAllocator, chains: Sequence[Sequence[int]]) -> int:
    """Leading blocks found when these prompts (one id a block) are served one by one. A prompt
    larger than the pool is not served and finds nothing."""
    found = 0
    for seq, chain in enumerate(chains):
        # open() leaves at least one token to compute; a last one of no block makes it look at all.
        hit = allocator.open(seq, [*chain, -1]).tokens
        try:
            allocator.append(seq, len(chain) - hit)
        except OutOfBlocks:
            pass
        else:
            allocator.commit(seq, chain[hit:])
            found += hit
        allocator.close(seq)
    return found


def _prompt(trace: Trace, index: int) -> tuple[int, ...]:
    """Ids of a prompt's blocks. A last, partial block counts where its id is of the prompt alone;
    where ids go on into the output it is not full yet and equal to nothing."""
    request = trace.requests[index]
    if request.known > request.prompt:
        return request.ids[: request.prompt // trace.hash_block]
    return request.ids
