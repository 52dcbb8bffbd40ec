"""Allocator operations side by side with a peer's, in one process:

    python -m pagedattn.benchmarks.peer_allocator [TRACE]

The sides take turns round by round, so that a machine that slows down does so for both. Times are
CPU times of the process; the ratio is the median of the rounds' ratios. test_allocator.py runs the
same operations under pytest-benchmark. TRACE (JSONL with hash_ids) is replayed as well: prompts one
after the other, a block for each hash id, in pools of several sizes.
"""

from __future__ import annotations

import gc
import importlib.metadata
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pagedattn.benchmarks.audit.readers import read_trace
from pagedattn.benchmarks.peer_sides import Paged, Side, peers

__all__ = ["BLOCK_SIZE", "OPERATIONS", "POOL", "Operation", "Rounds", "fill"]

POOL = 65_536  # blocks, more than the rounds of any operation take
BLOCK_SIZE = 16
RUNNING = 256
ROUNDS = 41
TRACE_BLOCKS = (1_000, 10_000, 200_000)


@dataclass
class Rounds:
    """One operation on one side: before() prepares a round, timed() is what is measured. Token ids
    are taken from a common counter, so that a prompt is like no other."""

    before: Callable[[], object]
    timed: Callable[[], object]


@dataclass(frozen=True)
class Operation:
    """name, what is measured, how a side is prepared for it, and how often timed() does it."""

    name: str
    what: str
    make: Callable[[Side, Iterator[int]], Rounds]
    cache: bool = True
    events: bool = False
    times: int = 1

    def __str__(self) -> str:
        return self.name  # of a group of benchmarks

    def side(self, kind: type[Side]) -> Side:
        """A side as it is measured."""
        return kind(num_blocks=POOL, block_size=BLOCK_SIZE, cache=self.cache, events=self.events)


def _fresh(ids: Iterator[int], blocks: int, more: int = 0) -> list[int]:
    return [next(ids) for _ in range(blocks * BLOCK_SIZE + more)]


def fill(side: Side, ids: Iterator[int]) -> None:
    """Leave a cached block everywhere, as after hours of serving: who wants one must evict."""
    for _ in range(POOL // 64 + 1):
        side.admit(-1, side.prepare(-1, _fresh(ids, 64)))
        side.finish(-1)


def _decode(side: Side, ids: Iterator[int]) -> Rounds:
    running = range(RUNNING)
    for seq in running:
        side.admit(seq, side.prepare(seq, _fresh(ids, 1, seq % BLOCK_SIZE)))

    def steps() -> None:
        for _ in range(BLOCK_SIZE):
            side.decode(running, next(ids))

    return Rounds(lambda: None, steps)


def _prefill(side: Side, ids: Iterator[int]) -> Rounds:
    tokens: list[int] = []

    def before() -> None:
        if tokens:
            side.finish(0)
        tokens[:] = _fresh(ids, 1000)

    return Rounds(before, lambda: side.admit(0, side.prepare(0, list(tokens))))


def _told(side: Side, ids: Iterator[int]) -> Rounds:
    new, stored = _prefill(side, ids), list[int]()

    def before() -> None:
        assert stored in ([], [1000])
        new.before()
        side.drain()

    def timed() -> None:
        new.timed()
        stored[:] = [side.drain()]

    return Rounds(before, timed)


def _close(side: Side, ids: Iterator[int]) -> Rounds:
    def before() -> None:
        side.admit(0, side.prepare(0, _fresh(ids, 1000)))

    return Rounds(before, lambda: side.finish(0))


def _hit(blocks: int, *, prepared: bool) -> Callable[[Side, Iterator[int]], Rounds]:
    def make(side: Side, ids: Iterator[int]) -> Rounds:
        tokens = _fresh(ids, blocks, 1)
        side.admit(0, side.prepare(0, tokens))
        prompts = [side.prepare(1, tokens)]
        hits: list[int] = []

        def before() -> None:
            if hits:
                side.finish(1)
                assert hits[-1] == blocks * BLOCK_SIZE
            prompts[0] = side.prepare(1, tokens)

        def timed() -> None:
            hits.append(side.admit(1, prompts[0] if prepared else side.prepare(1, tokens)))

        return Rounds(before, timed)

    return make


def _branch(side: Side, ids: Iterator[int]) -> Rounds:
    side.admit(0, side.prepare(0, _fresh(ids, 100, 8)))
    children: list[int] = []

    def before() -> None:
        if children:
            side.finish(children.pop())
        children.append(1)

    return Rounds(before, lambda: side.branch(0, 1))


def _life(side: Side, ids: Iterator[int]) -> Rounds:
    prompt: list[int] = []

    def before() -> None:
        prompt[:] = _fresh(ids, 64)

    def timed() -> None:
        side.admit(0, side.prepare(0, list(prompt)))
        for token in range(256):
            side.decode((0,), token)
        side.finish(0)

    return Rounds(before, timed)


OPERATIONS = (
    Operation("decode", "a step of 256 sequences, mean of 16 steps", _decode, times=BLOCK_SIZE),
    Operation("decode-nc", "the same, no prefix cache", _decode, cache=False, times=BLOCK_SIZE),
    Operation("prefill", "a new prompt of 1,000 blocks, published", _prefill),
    Operation("prefill-events", "the same, its events drained", _told, events=True),
    Operation("prefill-nc", "a new prompt, no prefix cache", _prefill, cache=False),
    Operation("hit-100", "a prompt of 100 cached blocks", _hit(100, prepared=False)),
    Operation("hit-1000", "a prompt of 1,000 cached blocks", _hit(1000, prepared=False)),
    Operation(
        "hit-1000-hashed",
        "the same, the peer's hashes computed beforehand",
        _hit(1000, prepared=True),
    ),
    Operation("close", "a sequence of 1,000 cached blocks ends", _close),
    Operation("close-nc", "the same, no prefix cache", _close, cache=False),
    Operation("branch", "a second sample after 1,608 tokens", _branch),
    Operation("life", "1,024 prompt tokens, 256 decode steps, end", _life),
)


def _compare(operation: Operation, sides: list[type[Side]], *, full: bool) -> None:
    rounds: list[Rounds] = []
    for kind in sides:
        side, ids = operation.side(kind), count()
        if full:
            fill(side, ids)
        rounds.append(operation.make(side, ids))
    gc.collect()
    gc.freeze()
    times: list[list[float]] = [[] for _ in rounds]
    for _ in range(ROUNDS):
        for one, spent in zip(rounds, times, strict=True):
            one.before()
            begin = time.process_time()
            one.timed()
            spent.append((time.process_time() - begin) * 1e6 / operation.times)
    gc.unfreeze()
    _row(f"{operation.name} | {'full' if full else 'fresh'}", operation.what, times)


def _replay(path: Path, sides: list[type[Side]]) -> None:
    trace = read_trace(path)
    chains = [list(request.ids) for request in trace.requests]
    prompt_blocks = sum(map(len, chains))
    for blocks in TRACE_BLOCKS:
        times, hits = [], []
        for kind in sides:
            side = kind(num_blocks=blocks, block_size=1, cache=True)
            gc.collect()
            gc.freeze()
            begin, found = time.process_time(), 0
            for seq, chain in enumerate(chains):
                if len(chain) <= blocks:
                    found += side.admit(seq, side.prepare(seq, [*chain]))
                    side.finish(seq)
            times.append([(time.process_time() - begin) * 1e6])
            gc.unfreeze()
            hits.append(found)
        rates = ", ".join(f"{found / prompt_blocks:.2%}" for found in hits)
        _row(f"replay | {blocks:,} blocks", f"{len(chains):,} prompts; hit rates {rates}", times)


def _row(name: str, what: str, times: list[list[float]]) -> None:
    cells = [f"{statistics.median(spent):,.0f} us (min {min(spent):,.0f})" for spent in times]
    if len(times) > 1:
        ratio = statistics.median(b / a for a, b in zip(times[0], times[1], strict=True))
        cells.append(f"{ratio:.2f}")
    print(f"| {name} | {what} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """The table, as Markdown."""
    sides: list[type[Side]] = [Paged]
    print(f"Python {platform.python_version()}, {platform.machine()}")
    for name, found in peers().items():
        if isinstance(found, str):
            print(f"without {name}: {found}")
        else:
            sides.append(found)
            version = next(
                importlib.metadata.version(d)
                for d in importlib.metadata.packages_distributions()[name]
            )
            print(f"{name} {version}")
    names = [kind.name for kind in sides]
    heads = [
        "operation",
        "pool",
        "what",
        *names,
        *([f"{names[1]} / {names[0]}"] if names[1:] else []),
    ]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for operation in OPERATIONS:
        for full in (False, True) if operation.cache else (False,):
            _compare(operation, sides, full=full)
    for path in sys.argv[1:]:
        _replay(Path(path), sides)


if __name__ == "__main__":
    main()
