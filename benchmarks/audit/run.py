"""One audit: every part that was asked for, every contender in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pagedattn.benchmarks.audit.clocked import Clocked
from pagedattn.benchmarks.audit.contender import Contender
from pagedattn.benchmarks.audit.counts import Counts
from pagedattn.benchmarks.audit.fixed import paging, reservation
from pagedattn.benchmarks.audit.prefix import study
from pagedattn.benchmarks.audit.results import Audit, Replay
from pagedattn.benchmarks.audit.server import Server
from pagedattn.benchmarks.audit.simulate import Simulation
from pagedattn.benchmarks.audit.timeline import Timeline
from pagedattn.benchmarks.audit.trace import Trace

__all__ = ["audit", "replay"]

Progress = Callable[[str, int, int], None]
"""Called with (what, steps done, steps in all; 0: unknown)."""


def audit(
    trace: Trace,
    server: Server,
    *,
    replayed: Sequence[Contender] = (),
    cached: Sequence[Contender] = (),
    reserve: Sequence[int] = (),
    page: Sequence[int] = (),
    cache_blocks: Sequence[int] = (),
    progress: Progress = lambda what, done, total: None,
) -> Audit:
    """Replay `trace` with each of `replayed`; measure prefix hits of `cached` at each size of
    `cache_blocks` (nothing when the trace has no hash ids); fixed figures for `reserve` and `page`
    tokens."""
    fixed = reservation(trace.requests, reserve) + paging(trace.requests, page)
    replays = tuple(replay(trace, contender, server, progress) for contender in replayed)
    rows = []
    if cached and trace.hash_block:
        rows = study(trace, cached, cache_blocks, lambda what: progress(what, 0, 0))
    return Audit(trace, server, tuple(fixed), replays, tuple(rows))


def replay(
    trace: Trace, contender: Contender, server: Server, progress: Progress = lambda *_: None
) -> Replay:
    """One contender's replay; what goes wrong in an allocator becomes a Replay that says so."""
    begin = time.perf_counter()
    unit, total = server.unit, len(trace.requests)
    try:
        clocked = Clocked(
            contender.make(
                num_blocks=server.num_blocks,
                block_size=server.allocator_block_size,
                max_seq_len=-(-server.max_len // unit),
                lengths=lambda seq: -(-trace.requests[seq].total // unit),
            )
        )
        simulation = Simulation(
            trace, clocked, server, lambda done: progress(contender.label, done, total)
        )
        simulation.run()
    except Exception as error:  # the plugin border: a stranger's allocator may do anything
        return Replay(
            contender.label,
            Counts(),
            Timeline().mean(),
            (),
            0,
            0,
            0,
            {},
            time.perf_counter() - begin,
            f"{type(error).__name__}: {error}",
        )
    timeline = simulation.timeline
    return Replay(
        contender.label,
        simulation.counts,
        timeline.mean(),
        tuple(timeline.points()),
        simulation.peak_running,
        simulation.peak_tokens,
        clocked.blocks_copied,
        clocked.operations,
        time.perf_counter() - begin,
    )
