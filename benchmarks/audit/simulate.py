"""A server in simulated time: requests come, are admitted, grow by a token a step, leave.

Every step gives each running request one token; those admitted in the step have their prompt
computed first, which makes the step longer. Requests are admitted in order (first come, first
served). When a running request cannot grow, the one admitted last gives its memory back and is
computed again later, before those that have not run yet.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from pagedattn.allocator import Addressing
from pagedattn.benchmarks.audit.clocked import Clocked
from pagedattn.benchmarks.audit.content import Contents
from pagedattn.benchmarks.audit.counts import Counts
from pagedattn.benchmarks.audit.server import Server
from pagedattn.benchmarks.audit.timeline import Timeline
from pagedattn.benchmarks.audit.trace import Trace
from pagedattn.errors import OutOfBlocks

__all__ = ["Simulation"]


@dataclass(slots=True)
class _Job:
    """A request that waits: `length` tokens of it were computed before, of prompt and output.
    `stuck` is the length at which it last failed to grow although it was alone; -1: never."""

    index: int
    length: int
    preempted: bool = False
    stuck: int = -1


@dataclass(slots=True)
class _Run:
    """A request that runs: it had `length` tokens in step `since` and has one more in each later
    step; `units` have slots, the first `committed` are committed."""

    job: _Job
    length: int
    since: int
    units: int
    committed: int
    alive: bool = True


class Simulation:
    """One replay. `clocked` holds a fresh allocator whose tokens are units of server.unit tokens;
    progress is called with the number of requests that are done."""

    def __init__(
        self,
        trace: Trace,
        clocked: Clocked,
        server: Server,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.trace, self.server = trace, server
        self.counts, self.timeline = Counts(), Timeline()
        self.peak_running = self.peak_tokens = 0
        self.now = 0.0
        self._alloc, self._progress = clocked, progress
        self._contents = Contents(trace, server.unit)
        # An allocator that reserves for a sequence's growth needs no further reserve.
        paged = clocked.allocator.capabilities().addressing is Addressing.PAGED
        self._watermark = int(server.watermark * server.num_blocks) if paged else None
        self._step = 0
        self._next = 0  # index of the first request that has not arrived
        self._waiting: deque[_Job] = deque()
        self._running: dict[int, _Run] = {}  # in order of admission
        self._growing: defaultdict[int, list[_Run]] = defaultdict(list)  # step -> runs
        self._ending: defaultdict[int, list[_Run]] = defaultdict(list)
        self._events: list[int] = []  # heap of the steps of both
        # The head of the queue was turned away and nothing was given back since; was it for want
        # of adjacent blocks alone?
        self._blocked = self._scattered = False
        self._slack = 0  # tokens behind the ends of all running sequences, in their last blocks

    def run(self) -> None:
        """Replay everything. Raises RuntimeError when the allocator breaks an invariant."""
        requests = self.trace.requests
        while self._next < len(requests) or self._waiting or self._running:
            self._arrive()
            if not self._running and not self._waiting:
                if self._next < len(requests):
                    self._pass_time(self._arrival(self._next) - self.now)
                continue
            preempted = self._grow()
            computed = 0 if preempted else self._admit()
            if not self._running:
                continue
            self._pass_time(self.server.step_seconds + computed / self.server.prefill_rate)
            self._end()
            self._step += 1
            self._skip()
        self._audit()

    # -- arrivals ------------------------------------------------------------------------------

    def _arrival(self, index: int) -> float:
        return self.trace.requests[index].arrival / self.server.speed

    def _arrive(self) -> None:
        server, requests = self.server, self.trace.requests
        while self._next < len(requests):
            if server.timed:
                if self._arrival(self._next) > self.now:
                    return
            elif server.clients and len(self._waiting) + len(self._running) >= server.clients:
                return
            index, total = self._next, requests[self._next].total
            self._next += 1
            if total > server.num_blocks * server.block_size:
                self.counts.too_large += 1
            elif total > server.max_len:
                self.counts.too_long += 1
            else:
                self._waiting.append(_Job(index, requests[index].prompt))

    # -- admission -----------------------------------------------------------------------------

    def _admit(self) -> int:
        """Admit from the head of the queue while there is room; returns tokens to compute."""
        computed = 0
        limit = self.server.max_running
        while self._waiting and not self._blocked and not (limit and len(self._running) >= limit):
            job = self._waiting[0]
            tokens = self._try(job)
            if tokens is not None:
                computed += tokens
            elif self._running:
                self._blocked = True
                break
            else:
                self.counts.no_room += 1
            self._waiting.popleft()
        return computed

    def _try(self, job: _Job) -> int | None:
        """Open and fill the sequence; returns tokens to compute, None when there is no room."""
        server, alloc = self.server, self._alloc
        unit, size = server.unit, server.block_size
        units = -(-job.length // unit)
        tokens = self._contents.units(job.index, 0, units)
        try:
            hit = alloc.open(job.index, tokens).tokens
        except OutOfBlocks as error:
            self._scattered = error.needed <= error.available
            return None
        try:
            if self._running and self._watermark is not None:
                new, stats = -(-job.length // size) - hit * unit // size, alloc.allocator.stats()
                if stats.free + stats.reclaimable < new + self._watermark:
                    raise OutOfBlocks(new + self._watermark, stats.free + stats.reclaimable)
            alloc.append_many({job.index: units - hit})
        except OutOfBlocks as error:
            alloc.close(job.index)
            self._scattered = error.needed <= error.available
            return None
        full = job.length // unit
        if full > hit:
            alloc.commit(job.index, tokens[hit:full])
        run = _Run(job, job.length, self._step, units, max(full, hit))
        self._running[job.index] = run
        self._schedule(run)
        end = self._step + self.trace.requests[job.index].total - job.length
        self._ending[end].append(run)
        heappush(self._events, end)
        self._slack += -job.length % size
        self._count(job, hit * unit)
        return job.length - hit * unit

    def _count(self, job: _Job, hit: int) -> None:
        counts, size = self.counts, self.server.block_size
        if job.preempted:
            counts.recomputed += job.length - hit
            return
        counts.admitted += 1
        counts.prompt_blocks += -(-job.length // size)
        counts.hit_blocks += hit // size

    def _schedule(self, run: _Run) -> None:
        """Note when the run needs its next unit."""
        step = run.since + run.units * self.server.unit + 1 - run.length
        self._growing[step].append(run)
        heappush(self._events, step)

    # -- growth --------------------------------------------------------------------------------

    def _grow(self) -> bool:
        """One more token for every running request; whether one had to be preempted."""
        wants = [run for run in self._growing.pop(self._step, ()) if run.alive]
        preempted = False
        while wants:
            try:
                self._alloc.append_many({run.job.index: 1 for run in wants})
                break
            except OutOfBlocks as error:
                self._scattered = error.needed <= error.available
                self._preempt(next(reversed(self._running.values())))
                wants = [run for run in wants if run.alive]
                preempted = True
        size, unit = self.server.block_size, self.server.unit
        self._slack -= len(self._running)
        for run in wants:
            length = run.length + self._step - run.since
            if (length - 1) % size == 0:
                self._slack += size
            run.units += 1
            self._commit(run, length // unit)
            self._schedule(run)
        return preempted

    def _commit(self, run: _Run, full: int) -> None:
        if full > run.committed:
            tokens = self._contents.units(run.job.index, run.committed, full)
            self._alloc.commit(run.job.index, tokens)
            run.committed = full

    def _preempt(self, run: _Run) -> None:
        """Take the memory of a run that has not got this step's token yet."""
        job, length = run.job, run.length + self._step - run.since - 1
        alone = len(self._running) == 1
        self._commit(run, length // self.server.unit)
        self._leave(run, length)
        self.counts.preemptions += 1
        self.counts.preempted += not job.preempted
        if alone and job.stuck == length:  # it had the whole pool twice and got no further
            self.counts.no_room += 1
            return
        self._waiting.appendleft(_Job(job.index, length, True, length if alone else job.stuck))

    # -- the end -------------------------------------------------------------------------------

    def _end(self) -> None:
        for run in self._ending.pop(self._step, ()):
            if run.alive:
                total = self.trace.requests[run.job.index].total
                self._commit(run, total // self.server.unit)
                table = self._alloc.allocator.table(run.job.index)
                self.counts.table_blocks += len(table)
                self.counts.table_runs += 1 + sum(b != a + 1 for a, b in pairwise(table))
                self._leave(run, total)
                self.counts.completed += 1
                self._progress(self.counts.completed + self.counts.refused)

    def _leave(self, run: _Run, length: int) -> None:
        run.alive = False
        del self._running[run.job.index]
        self._alloc.close(run.job.index)
        self._slack -= -length % self.server.block_size
        self._blocked = False

    # -- time ----------------------------------------------------------------------------------

    def _skip(self) -> None:
        """Pass over the steps in which nothing but the lengths of running requests changes."""
        server, events = self.server, self._events
        while events and events[0] < self._step:
            heappop(events)
        admitting = self._waiting and not self._blocked
        full = server.max_running and len(self._running) >= server.max_running
        if not self._running or (admitting and not full):
            return
        steps = events[0] - self._step
        if server.timed and self._next < len(self.trace.requests):
            ahead = (self._arrival(self._next) - self.now) / server.step_seconds
            steps = min(steps, math.ceil(ahead))
        elif server.clients and len(self._waiting) + len(self._running) < server.clients:
            steps = 0 if self._next < len(self.trace.requests) else steps
        if steps > 0:
            self._pass_time(steps * server.step_seconds, steps)
            self._step += steps

    def _pass_time(self, seconds: float, growing: int = 0) -> None:
        """Let time pass with the blocks as they are, while every running request gets `growing`
        more tokens, evenly."""
        if seconds <= 0:
            return
        size, stats, running = self.server.block_size, self._alloc.allocator.stats(), self._running
        slack = self._slack - len(running) * (growing + 1) / 2 if growing else self._slack
        self._slack -= len(running) * growing
        waits = self._blocked and self._scattered
        slots = (
            stats.live * size - slack,
            slack,
            stats.reserved * size,
            stats.reclaimable * size,
            stats.free * size if waits else 0,
            0 if waits else stats.free * size,
        )
        whole = stats.total * size
        uses = [n / whole for n in slots]
        self.timeline.add(seconds, uses, len(running), len(self._waiting), max(1, growing))
        self.peak_running = max(self.peak_running, len(running))
        self.peak_tokens = max(self.peak_tokens, stats.live * size - self._slack)
        self.now += seconds

    def _audit(self) -> None:
        stats = self._alloc.allocator.stats()
        broken = [f"{v.rule}: {v.detail}" for v in self._alloc.allocator.check()]
        if stats.live or stats.reserved:
            broken.append(f"{stats.live} live and {stats.reserved} reserved blocks after the end")
        if broken:
            name = self._alloc.allocator.name
            raise RuntimeError(f"allocator {name!r} is broken: {'; '.join(broken[:5])}")
