"""Where blocks lie after long churn, beside two common free lists:

    python tests/free_lists.py [TRACE ...]

Each trace (a made-up one without TRACE) is replayed as `pagedattn audit` does, with memory alone as
limit of concurrency, and with a number of clients that leaves some of it free. Printed is the mean
length of runs of adjacent ascending ids in the tables of ended requests.

    lifo   what came back last goes out first, block by block; nothing is cached
    queue  the order of vLLM's block pool: cached blocks go out first in, first out, of one sequence
           the deepest first; others go out before them
    paged  ours
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pagedattn.allocator import BlockAllocator
from pagedattn.backends.allocators import PagedAllocator
from pagedattn.backends.allocators.pool import BlockPool
from pagedattn.backends.allocators.runs import Runs
from pagedattn.benchmarks.audit.contender import Contender, Make
from pagedattn.benchmarks.audit.generator import generate
from pagedattn.benchmarks.audit.readers import read_trace
from pagedattn.benchmarks.audit.results import Replay
from pagedattn.benchmarks.audit.run import replay
from pagedattn.benchmarks.audit.server import Server
from pagedattn.benchmarks.audit.trace import Trace

__all__ = ["FREE_LISTS", "replayed"]

LIMIT = 3000  # requests of a trace


class _Queue(Runs):
    """First in, first out, id by id."""

    last = False

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def add(self, start: int, n: int = 1) -> None:
        ids = range(start, start + n)
        self.ids.update(dict.fromkeys(reversed(ids) if self.last else ids))

    def add_all(self, blocks: Iterable[int]) -> None:
        self.ids.update(dict.fromkeys(blocks))

    def remove(self, start: int, n: int = 1) -> None:
        del self.ids[start]

    def fit(self, n: int) -> tuple[int, int]:
        return next(reversed(self.ids) if self.last else iter(self.ids)), 1


class _Stack(_Queue):
    """Last in, first out."""

    last = True


class _LettingGo(BlockPool):
    """Evicts what is needed and no more."""

    def stage(self, n: int, sequences: int) -> None:
        super().stage(n, 1)
        self.room.add_all(self._loose)
        self._loose = []


def _over(free_list: type[Runs], *, cache: bool) -> Make:
    """The paged allocator with another free list."""

    class Pool(_LettingGo):
        _room_type = free_list

    class Allocator(PagedAllocator):
        _pool_type = Pool

    def make(
        *, num_blocks: int, block_size: int, max_seq_len: int, lengths: Callable[[int], int]
    ) -> BlockAllocator:
        return Allocator(num_blocks=num_blocks, block_size=block_size, prefix_cache=cache)

    return make


def _paged(
    *, num_blocks: int, block_size: int, max_seq_len: int, lengths: Callable[[int], int]
) -> BlockAllocator:
    return PagedAllocator(num_blocks=num_blocks, block_size=block_size)


FREE_LISTS: dict[str, Make] = {
    "lifo": _over(_Stack, cache=False),
    "queue": _over(_Queue, cache=True),
    "paged": _paged,
}


def replayed(trace: Trace, server: Server, name: str) -> Replay:
    """A replay with one of FREE_LISTS."""
    return replay(trace, Contender(name, None, FREE_LISTS[name]), server)


def _servers(trace: Trace) -> tuple[Server, Server]:
    """A pool of 64 mean requests in blocks of 16 (or of the trace's own), full and half full."""
    size = trace.hash_block or 16
    mean = sum(request.total for request in trace.requests) // len(trace.requests)
    blocks = max(1 + max(request.total for request in trace.requests) // size, 64 * mean // size)

    def server(clients: int) -> Server:
        return Server(
            num_blocks=blocks, block_size=size, max_len=1 << 20, unit=size, clients=clients
        )

    return server(0), server(32)


def main() -> None:
    """The table, as Markdown."""
    traces = [read_trace(Path(path), limit=LIMIT) for path in sys.argv[1:]]
    print(f"| trace | clients | {' | '.join(FREE_LISTS)} |\n|{' --- |' * (2 + len(FREE_LISTS))}")
    for trace in traces or [generate(LIMIT, seed=0)]:
        for server in _servers(trace):
            rows = [replayed(trace, server, name) for name in FREE_LISTS]
            cells = [row.failure or f"{row.run_length:.2f}" for row in rows]
            print(f"| {trace.name} | {server.clients or 'all'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
