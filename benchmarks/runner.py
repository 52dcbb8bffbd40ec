"""Runs backends over workloads: admit them, time them side by side, check them again."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from pagedattn.attention import AttentionBackend
from pagedattn.benchmarks.contender import Contender, Entrant, Stage, failed, find
from pagedattn.benchmarks.environment import environment
from pagedattn.benchmarks.gate import Check
from pagedattn.benchmarks.results import BenchRow, BenchState, Group, Probe, Report
from pagedattn.benchmarks.roofline import Roof, matmul_roof, read_roof
from pagedattn.benchmarks.stats import estimate
from pagedattn.benchmarks.timing import (
    Clock,
    HostClock,
    Progress,
    Settings,
    Task,
    clock_for,
    interleave,
)
from pagedattn.benchmarks.workload import Phase, Workload
from pagedattn.measured import Record, spec_fields

__all__ = ["bench", "records"]


def bench(
    workloads: Sequence[Workload],
    backends: Sequence[str | AttentionBackend],
    *,
    device: torch.device | str = "cpu",
    baseline: str | None = None,
    settings: Settings | None = None,
    pool_bytes: int | None = None,
    probe_bytes: int | None = None,
    clock: Clock | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Compare `backends` on `workloads`.

    backends     names, or backends that no plugin offers
    baseline     name of the one that speed-ups refer to; default: the first
    pool_bytes   size of the block pool, probe_bytes of the read probe's buffer; the defaults exceed
                 the last-level cache, smaller ones measure the cache instead
    progress     called with (what, rounds done, rounds wanted)

    Raises UnknownName for a name that no plugin offers, ValueError for a baseline that does not
    take part, a workload name used twice, or a device without a clock."""
    device = torch.device(device)
    settings = settings or Settings()
    clock = clock or clock_for(device.type)
    entrants = [find(given) for given in backends]
    names = [name for name, _ in entrants]
    if not names:
        raise ValueError("no backend to measure")
    baseline = baseline or names[0]
    if baseline not in names:
        raise ValueError(f"baseline {baseline!r} does not take part; taking part: {names}")
    for kind, given in (("backend", names), ("workload", [w.name for w in workloads])):
        if twice := sorted({name for name in given if given.count(name) > 1}):
            raise ValueError(f"{kind} {', '.join(twice)} is given twice")
    where = environment(device)  # before we put load on the machine ourselves
    read = read_roof(device, clock, buffer_bytes=probe_bytes)
    groups = tuple(
        _group(
            Stage(workload, device, pool_bytes=pool_bytes),
            entrants,
            baseline,
            _roofs(workload, read, device),
            settings,
            clock,
            partial(_prefixed, progress, workload.name),
        )
        for workload in workloads
    )
    return Report(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=where,
        settings=dataclasses.asdict(settings),
        groups=groups,
    )


def records(report: Report) -> list[Record]:
    """Timed rows in the form of the measured table."""
    return [
        Record(
            device=report.environment["device"],
            spec=group.spec,
            workload=group.workload,
            phase=group.phase,
            backend=row.backend,
            seconds=estimate(row.run).value,
        )
        for group, row in report.rows(BenchState.TIMED)
    ]


class _Crashed(Exception):
    """A contender raised while it was timed."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name, self.error = name, error
        super().__init__(name)


def _prefixed(progress: Progress, name: str, what: str, done: int, total: int) -> None:
    progress(f"{name}: {what}", done, total)


def _roofs(workload: Workload, read: Roof, device: torch.device) -> dict[str, Roof]:
    """The limits that matter for a workload; no decode step is limited by arithmetic."""
    if workload.phase is Phase.DECODE:
        return {"read": read}
    return {"read": read, "matmul": matmul_roof(device, workload.spec.dtype)}


def _group(
    stage: Stage,
    entrants: Sequence[tuple[str, Entrant]],
    baseline: str,
    roofs: dict[str, Roof],
    settings: Settings,
    clock: Clock,
    progress: Progress,
) -> Group:
    """Everything about one workload."""
    rows: dict[str, BenchRow] = {}
    contenders: dict[str, Contender] = {}
    for done, (name, backend) in enumerate(entrants):
        progress(f"checking {name}", done, len(entrants))
        admitted = stage.admit(name, backend)
        if isinstance(admitted, BenchRow):
            rows[name] = admitted
        else:
            contenders[name] = admitted
    probes = _time(stage, contenders, rows, roofs, settings, clock, progress)
    workload = stage.workload
    return Group(
        workload=workload.name,
        phase=workload.phase.value,
        spec=spec_fields(workload.spec),
        query_lens=workload.query_lens,
        seq_lens=workload.seq_lens,
        placement=workload.placement.value,
        kv_bytes=workload.kv_bytes,
        flops=workload.flops,
        replicas=len(stage.inputs.batches),
        cold=stage.inputs.cold,
        baseline=baseline,
        read=probes.get("read"),
        matmul=probes.get("matmul"),
        rows=tuple(rows[name] for name, _ in entrants),
    )


def _time(
    stage: Stage,
    contenders: dict[str, Contender],
    rows: dict[str, BenchRow],
    roofs: dict[str, Roof],
    settings: Settings,
    clock: Clock,
    progress: Progress,
) -> dict[str, Probe]:
    """Add a row for every contender; returns the probes that were sampled with them."""
    probe_tasks = [roof.task for roof in roofs.values()]
    host = dataclasses.replace(settings, max_time=settings.max_time / 4)  # microseconds a call

    def sample(
        what: str, tasks: Sequence[Task], settings: Settings, clock: Clock
    ) -> dict[str, list[float]]:
        return interleave(tasks, settings, clock, progress=partial(progress, what))

    while contenders:
        active = list(contenders.values())
        try:
            run = sample(
                "run", [*(_guarded(c.run_task()) for c in active), *probe_tasks], settings, clock
            )
            plan = sample("plan", [_guarded(c.plan_task()) for c in active], host, HostClock())
            write = sample("write", [_guarded(c.write_task()) for c in active], host, clock)
            break
        except _Crashed as crash:  # the others are measured again, without it
            del contenders[crash.name]
            rows[crash.name] = failed(crash.name, crash.error)
            stage.restore()
    else:
        return {}
    for name, contender in contenders.items():
        again = stage.check_again(contender)
        rows[name] = (
            again
            if isinstance(again, BenchRow)
            else _timed_row(contender, again, run[name], plan[name], write[name])
        )
    return {
        key: Probe(roof.method, roof.amount, tuple(run[roof.task.name]))
        for key, roof in roofs.items()
    }


def _timed_row(
    contender: Contender, again: Check, run: list[float], plan: list[float], write: list[float]
) -> BenchRow:
    return BenchRow(
        backend=contender.backend.name,
        state=BenchState.TIMED,
        error=max(contender.check.error, again.error),
        budget=again.budget,
        run=tuple(run),
        plan=tuple(plan),
        write=tuple(write),
        facts=contender.facts,
    )


def _guarded(task: Task) -> Task:
    """The task, its errors carrying its name."""

    def call(argument: Any) -> None:
        try:
            task.call(argument)
        except Exception as error:  # the plugin border: becomes a row
            raise _Crashed(task.name, error) from error

    return Task(task.name, call, task.argument)
