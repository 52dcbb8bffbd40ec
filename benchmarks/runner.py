"""Runs backends over workloads: admit, check, time side by side, check again.

A backend comes to be timed only after it accepted the spec, opened, and computed the right thing on
two replicas; afterwards it is checked once more. Whatever it does wrong becomes its row, and the
others go on.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedattn import registry
from pagedattn.attention import AttentionBackend, AttentionOp, Plan
from pagedattn.benchmarks.environment import environment
from pagedattn.benchmarks.gate import Check, Truth, check_write, make_truth, run_and_check
from pagedattn.benchmarks.inputs import Inputs, make_inputs
from pagedattn.benchmarks.results import Group, Probe, Report, Row, State
from pagedattn.benchmarks.roofline import Roof, matmul_roof, read_roof
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
from pagedattn.capabilities import check
from pagedattn.device import DeviceInfo
from pagedattn.errors import NotReady, Refusal, Unsupported
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
    entrants = _entrants(backends)
    names = [name for name, _ in entrants]
    baseline = baseline or names[0]
    if baseline not in names:
        raise ValueError(f"baseline {baseline!r} does not take part; taking part: {names}")
    for kind, given in (("backend", names), ("workload", [w.name for w in workloads])):
        if twice := sorted({name for name in given if given.count(name) > 1}):
            raise ValueError(f"{kind} {', '.join(twice)} is given twice")
    read = read_roof(device, clock, buffer_bytes=probe_bytes)
    groups = tuple(
        _Session(w, entrants, device, baseline, settings, pool_bytes, clock, progress).group(read)
        for w in workloads
    )
    return Report(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=environment(device),
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
            seconds=sorted(row.run)[len(row.run) // 2],
        )
        for group, row in report.rows(State.TIMED)
    ]


Entrant = tuple[str, AttentionBackend | NotReady]


def _entrants(backends: Sequence[str | AttentionBackend]) -> list[Entrant]:
    if not backends:
        raise ValueError("no backend to measure")
    found: list[Entrant] = []
    for given in backends:
        if not isinstance(given, str):
            found.append((given.name, given))
            continue
        try:
            found.append((given, registry.backend(given)))
        except NotReady as error:
            found.append((given, error))
    return found


@dataclass(frozen=True, eq=False)
class _Contender:
    """A backend that was admitted: its op, one plan per replica, its own output."""

    backend: AttentionBackend
    op: AttentionOp
    plans: tuple[Plan, ...]
    out: Tensor
    lse: Tensor | None
    facts: dict[str, Any]
    check: Check


class _Crashed(Exception):
    """A contender raised while it was timed."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name, self.error = name, error
        super().__init__(name)


class _Session:
    """One workload."""

    def __init__(
        self,
        workload: Workload,
        entrants: Sequence[Entrant],
        device: torch.device,
        baseline: str,
        settings: Settings,
        pool_bytes: int | None,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self.workload, self.entrants, self.baseline = workload, entrants, baseline
        self.settings, self.clock = settings, clock
        self.progress: Progress = lambda what, done, total: progress(
            f"{workload.name}: {what}", done, total
        )
        self.inputs: Inputs = make_inputs(workload, device, pool_bytes=pool_bytes)
        last = len(self.inputs.batches) - 1
        self.truths: dict[int, Truth] = {r: make_truth(self.inputs, r) for r in {0, last}}
        self.rows: dict[str, Row] = {}
        self.contenders: dict[str, _Contender] = {}

    def group(self, read: Roof) -> Group:
        """Everything about this workload."""
        for done, (name, backend) in enumerate(self.entrants):
            self.progress(f"checking {name}", done, len(self.entrants))
            self._admit(name, backend)
        roofs = {"read": read}
        if self.workload.phase is not Phase.DECODE:
            roofs["matmul"] = matmul_roof(self.inputs.device, self.workload.spec.dtype)
        probes: dict[str, Probe] = {}
        if self.contenders:
            probes = self._time(roofs)
        workload, inputs = self.workload, self.inputs
        return Group(
            workload=workload.name,
            phase=workload.phase.value,
            spec=spec_fields(workload.spec),
            query_lens=workload.query_lens,
            seq_lens=workload.seq_lens,
            placement=workload.placement.value,
            kv_bytes=workload.kv_bytes,
            flops=workload.flops,
            replicas=len(inputs.batches),
            cold=inputs.cold,
            baseline=self.baseline,
            read=probes.get("read"),
            matmul=probes.get("matmul"),
            rows=tuple(self.rows[name] for name, _ in self.entrants),
        )

    # -- before ----------------------------------------------------------------------------------

    def _admit(self, name: str, backend: AttentionBackend | NotReady) -> None:
        """Make a contender of the backend, or a row that says why not."""
        if isinstance(backend, NotReady):
            self._refuse(
                name, [Refusal(name, "unavailable", backend.state, "ready", backend.detail)]
            )
            return
        spec, device = self.workload.spec, self.inputs.device
        try:
            info = DeviceInfo.of(device)
            if refusals := check(backend, spec, info):
                self._refuse(name, refusals)
                return
            facts = dict(backend.describe(spec, info))
            if facts.get("emulated"):
                hint = "its times would say nothing; bench it on the device it is written for"
                self._refuse(name, [Refusal(name, "emulated", "a time", "correctness only", hint)])
                return
            op = backend.open(spec, self.inputs.limits, device=device)
            plans = tuple(op.plan(batch) for batch in self.inputs.batches)
            checks = [check_write(op, self.inputs)]
            checks += [run_and_check(op, plans[r], self.inputs, t) for r, t in self.truths.items()]
        except Unsupported as error:
            self._refuse(name, error.refusals)
            return
        except Exception as error:  # the plugin border: anything becomes a row
            self._fail(name, error)
            return
        wrong = next((c for c in checks if c.wrong), None)
        if wrong:
            self._wrong(name, wrong)
            return
        out, lse = self.inputs.empty_out()
        self.contenders[name] = _Contender(backend, op, plans, out, lse, facts, checks[-1])

    def _refuse(self, name: str, refusals: Sequence[Refusal]) -> None:
        detail = "; ".join(str(refusal).removeprefix(f"{name}: ") for refusal in refusals)
        self.rows[name] = Row(backend=name, state=State.REFUSED, detail=detail)

    def _fail(self, name: str, error: Exception) -> None:
        detail = f"{type(error).__name__}: {error}"
        self.rows[name] = Row(backend=name, state=State.FAILED, detail=detail)
        self.inputs.restore()

    def _wrong(self, name: str, check: Check) -> None:
        self.rows[name] = Row(
            backend=name,
            state=State.WRONG,
            detail=check.wrong,
            error=check.error,
            budget=check.budget,
        )
        self.inputs.restore()

    # -- measuring -------------------------------------------------------------------------------

    def _time(self, roofs: dict[str, Roof]) -> dict[str, Probe]:
        """Fill self.rows for all contenders; returns the probes sampled with them."""
        while True:
            try:
                extra = [roof.task for roof in roofs.values()]
                run = self._sample("run", self._run_task, self.clock, extra)
                plan = self._sample("plan", self._plan_task, HostClock())
                write = self._sample("write", self._write_task, self.clock)
                break
            except _Crashed as crash:
                del self.contenders[crash.name]
                self._fail(crash.name, crash.error)
        last = max(self.truths)
        for name, c in self.contenders.items():
            try:
                again = run_and_check(c.op, c.plans[last], self.inputs, self.truths[last])
            except Exception as error:  # the plugin border
                self._fail(name, error)
                continue
            if again.wrong:
                detail = f"right at first, wrong after timing: {again.wrong}"
                self._wrong(name, dataclasses.replace(again, wrong=detail))
                continue
            self.rows[name] = Row(
                backend=name,
                state=State.TIMED,
                error=max(c.check.error, again.error),
                budget=again.budget,
                run=tuple(run[name]),
                plan=tuple(plan[name]),
                write=tuple(write[name]),
                facts=c.facts,
            )
        return {
            key: Probe(roof.method, roof.amount, tuple(run[roof.task.name]))
            for key, roof in roofs.items()
        }

    def _sample(
        self,
        what: str,
        make: Callable[[_Contender], Task],
        clock: Clock,
        extra: Sequence[Task] = (),
    ) -> dict[str, list[float]]:
        tasks = [_guarded(make(contender)) for contender in self.contenders.values()]
        settings = self.settings
        if what != "run":  # host work of microseconds: a small part of the budget is plenty
            settings = dataclasses.replace(settings, max_time=settings.max_time / 4)
        return dict(
            interleave(
                [*tasks, *extra],
                settings,
                clock,
                progress=lambda _, done, total: self.progress(what, done, total),
            )
        )

    def _run_task(self, c: _Contender) -> Task:
        inputs = self.inputs

        def call(plan: Plan) -> None:
            c.op.run(
                inputs.q,
                inputs.cache,
                plan,
                out=c.out,
                lse=c.lse,
                sinks=inputs.sinks,
                alibi_slopes=inputs.alibi_slopes,
            )

        return Task(c.backend.name, call, lambda i: c.plans[i % len(c.plans)])

    def _plan_task(self, c: _Contender) -> Task:
        """Each plan is of a batch never seen before, as in a running engine."""
        batches = self.inputs.batches
        return Task(
            c.backend.name, c.op.plan, lambda i: dataclasses.replace(batches[i % len(batches)])
        )

    def _write_task(self, c: _Contender) -> Task:
        """Writes what the slots hold already, so that the cache stays what the checks expect."""
        inputs = self.inputs
        return Task(
            c.backend.name,
            lambda slots: c.op.write(inputs.k, inputs.v, inputs.cache, slots),
            lambda i: inputs.batches[i % len(inputs.batches)].slot_mapping,
        )


def _guarded(task: Task) -> Task:
    """The task, its errors carrying its name."""

    def call(argument: Any) -> None:
        try:
            task.call(argument)
        except Exception as error:  # the plugin border: becomes a row
            raise _Crashed(task.name, error) from error

    return Task(task.name, call, task.argument)
