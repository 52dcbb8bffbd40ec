"""Interleaved samples: A B A B ... in one process, so that neighbours and drift hit all alike.

A sample is the mean time of enough consecutive calls to last `min_time`. Every round takes one
sample of each task, and the order rotates from round to round. A task's call receives another
argument each time (the next replica of the batch), which is made outside the timed region.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pagedattn.benchmarks.stats import MIN_SAMPLES

__all__ = [
    "Clock",
    "CudaClock",
    "HostClock",
    "Progress",
    "Settings",
    "Task",
    "clock_for",
    "interleave",
]

Progress = Callable[[str, int, int], None]
"""Called with (what, steps done, steps in all)."""


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    samples    rounds, at least MIN_SAMPLES
    min_time   seconds that one sample lasts at least
    max_time   seconds after which no further round starts; MIN_SAMPLES are always taken
    warmup     untimed calls before the first sample
    """

    samples: int = 30
    min_time: float = 0.01
    max_time: float = 5.0
    warmup: int = 2

    def __post_init__(self) -> None:
        if self.samples < MIN_SAMPLES:
            raise ValueError(f"samples={self.samples} is below {MIN_SAMPLES}: no interval then")
        for name in ("min_time", "max_time"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} is not positive")
        if self.warmup < 1:
            raise ValueError(f"warmup={self.warmup} is below 1: the first call may compile")


@dataclass(frozen=True)
class Task:
    """Something to time: call(argument(i)) for i = 0, 1, 2, ...; making arguments is not timed."""

    name: str
    call: Callable[[Any], object]
    argument: Callable[[int], Any] = lambda i: None


class Clock(Protocol):
    """Measures calls on one kind of device."""

    def seconds(self, call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
        """Time of calling `call` with each argument in turn."""

    def now(self) -> float:
        """A monotonic reading in seconds, for max_time."""


class HostClock:
    """Wall time of work that is done when the call returns."""

    def seconds(self, call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
        start = time.perf_counter()
        for argument in arguments:
            call(argument)
        return time.perf_counter() - start

    def now(self) -> float:
        return time.perf_counter()


class CudaClock(HostClock):
    """Time on the current CUDA stream between two events around the calls.

    The queue is empty at the start, so launch gaps of work too small to hide them count."""

    def seconds(self, call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
        import torch

        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        for argument in arguments:
            call(argument)
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def clock_for(device_type: str) -> Clock:
    """The clock for work on a torch device type. Raises ValueError where there is none."""
    if device_type == "cpu":
        return HostClock()
    if device_type == "cuda":
        return CudaClock()
    raise ValueError(f"no clock for device type {device_type!r}; known: cpu, cuda")


def interleave(
    tasks: Sequence[Task],
    settings: Settings,
    clock: Clock,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[float]]:
    """Seconds per call of every task, one sample per round; the lists are aligned by round.

    progress   called with (rounds done, rounds wanted)"""
    position = dict.fromkeys((task.name for task in tasks), 0)

    def sample(task: Task, calls: int) -> float:
        begin = position[task.name]
        position[task.name] = begin + calls
        arguments = [task.argument(i) for i in range(begin, begin + calls)]
        return clock.seconds(task.call, arguments) / calls

    calls: dict[str, int] = {}
    for task in tasks:
        sample(task, settings.warmup)
        calls[task.name] = _calls_for(settings.min_time, partial(sample, task))
    samples: dict[str, list[float]] = {task.name: [] for task in tasks}
    deadline = clock.now() + settings.max_time
    collecting = gc.isenabled()
    gc.disable()  # a collection inside one sample would be charged to whoever ran then
    try:
        for done in range(settings.samples):
            if done >= MIN_SAMPLES and clock.now() >= deadline:
                break
            turn = done % len(tasks) if tasks else 0
            for task in (*tasks[turn:], *tasks[:turn]):
                samples[task.name].append(sample(task, calls[task.name]))
            progress(done + 1, settings.samples)
    finally:
        if collecting:
            gc.enable()
    return samples


def _calls_for(min_time: float, sample: Callable[[int], float]) -> int:
    """Calls that last min_time, found by growing trials: one call says little about fast work."""
    calls = 1
    while (seconds := sample(calls)) * calls < min_time:
        wanted = math.ceil(1.2 * min_time / seconds) if seconds > 0 else calls * 10
        calls = max(calls + 1, min(wanted, calls * 10))
    return calls
