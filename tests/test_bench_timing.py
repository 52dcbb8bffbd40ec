"""Interleaving on a clock whose time passes as told: arguments are durations."""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pagedattn.benchmarks.timing import (
    CudaClock,
    HostClock,
    Settings,
    Task,
    clock_for,
    interleave,
)


class FakeClock:
    """Takes each argument as the seconds that its call lasts; remembers what was timed."""

    def __init__(self) -> None:
        self.time = 0.0
        self.log: list[tuple[str, int]] = []

    def seconds(self, call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
        self.log.append((str(call(None)), len(arguments)))
        self.time += sum(arguments)
        return float(sum(arguments))

    def now(self) -> float:
        return self.time


def task(name: str, seconds: Callable[[int], float]) -> Task:
    return Task(name, lambda _: name, seconds)


def test_samples_are_seconds_per_call() -> None:
    settings = Settings(samples=7, min_time=0.5, max_time=1000)
    found = interleave([task("a", lambda i: 2.0), task("b", lambda i: 0.25)], settings, FakeClock())
    assert found == {"a": [2.0] * 7, "b": [0.25] * 7}


def test_rounds_take_every_task_once_in_rotating_order() -> None:
    clock, settings = FakeClock(), Settings(samples=7, min_time=0.5, max_time=1000)
    interleave([task(n, lambda i: 1.0) for n in "abc"], settings, clock)
    rounds = [name for name, _ in clock.log][-21:]
    assert "".join(rounds) == "abcbcacababcbcacababc"


def test_fast_calls_are_repeated_until_a_sample_is_long_enough() -> None:
    clock = FakeClock()
    interleave([task("a", lambda i: 1e-3)], Settings(samples=7, min_time=0.1), clock)
    calls = [n for _, n in clock.log][-7:]
    assert len(set(calls)) == 1
    assert 100 <= calls[0] <= 150


def test_arguments_continue_from_sample_to_sample() -> None:
    seen: list[int] = []

    def argument(i: int) -> float:
        seen.append(i)
        return 1.0

    interleave([task("a", argument)], Settings(samples=8, min_time=3.0, max_time=1e9), FakeClock())
    assert seen == list(range(len(seen)))


def test_max_time_ends_sampling_but_leaves_enough_for_an_interval() -> None:
    settings = Settings(samples=100, min_time=0.5, max_time=10.0)
    assert len(interleave([task("a", lambda i: 1.0)], settings, FakeClock())["a"]) == 10
    assert len(interleave([task("a", lambda i: 60.0)], settings, FakeClock())["a"]) == 7


def test_progress_counts_rounds() -> None:
    seen: list[tuple[int, int]] = []
    interleave(
        [task("a", lambda i: 1.0)],
        Settings(samples=7, max_time=1e9),
        FakeClock(),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(i, 7) for i in range(1, 8)]


def test_no_garbage_collection_inside_samples_and_it_comes_back_on() -> None:
    states: list[bool] = []

    class Probe(FakeClock):
        def seconds(self, call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
            states.append(gc.isenabled())
            return super().seconds(call, arguments)

    interleave([task("a", lambda i: 1.0)], Settings(samples=7), Probe())
    assert states[-7:] == [False] * 7
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("field", "value"), [("samples", 6), ("min_time", 0.0), ("max_time", -1.0), ("warmup", 0)]
)
def test_settings_refuse_nonsense(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Settings(**{field: value})


def test_host_clock_calls_with_every_argument() -> None:
    seen: list[int] = []
    assert HostClock().seconds(seen.append, [1, 2, 3]) > 0
    assert seen == [1, 2, 3]


def test_cuda_clock_reads_milliseconds_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def elapsed_time(self, end: "Event") -> float:
            return 12.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    assert CudaClock().seconds(lambda _: log.append("call"), [0, 0]) == 0.0125
    assert log == ["wait", "event", "call", "call", "event", "wait"]


def test_clock_of_a_device() -> None:
    assert type(clock_for("cpu")) is HostClock
    assert type(clock_for("cuda")) is CudaClock
    with pytest.raises(ValueError, match="'mps'; known: cpu, cuda"):
        clock_for("mps")
