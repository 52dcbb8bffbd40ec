"""What comes before and after timing: the inputs, the admission of a backend, and its checks.

A backend becomes a Contender only after it accepted the spec, opened, and computed the right thing:
on a short step with lengths around the block boundaries and NaN behind them, and on two replicas
of the step to be timed. Whatever it does wrong becomes a BenchRow instead, and the others go on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedattn import registry
from pagedattn.attention import AttentionBackend, AttentionOp, Plan
from pagedattn.benchmarks.gate import Check, Truth, check_write, make_truth, run_and_check
from pagedattn.benchmarks.inputs import Inputs, make_inputs
from pagedattn.benchmarks.results import BenchRow, BenchState
from pagedattn.benchmarks.timing import Task
from pagedattn.benchmarks.workload import Workload, short_twin
from pagedattn.capabilities import check
from pagedattn.errors import NotReady, Refusal, Unsupported

__all__ = ["Contender", "Entrant", "Stage", "failed", "find"]

Entrant = AttentionBackend | NotReady
"""A backend, or why the one of that name cannot be used."""


def find(given: str | AttentionBackend) -> tuple[str, Entrant]:
    """(name, backend). Raises UnknownName when no plugin offers the name."""
    if not isinstance(given, str):
        return given.name, given
    try:
        return given, registry.backend(given)
    except NotReady as error:
        return given, error


def failed(name: str, error: Exception) -> BenchRow:
    """The row of a backend that raised."""
    return BenchRow(
        backend=name, state=BenchState.FAILED, detail=f"{type(error).__name__}: {error}"
    )


class Stage:
    """One workload on a device: inputs, their short twin, and the true answers to both."""

    def __init__(
        self, workload: Workload, device: torch.device, *, pool_bytes: int | None = None
    ) -> None:
        self.workload, self.device = workload, device
        self.inputs: Inputs = make_inputs(workload, device, pool_bytes=pool_bytes)
        self.last = len(self.inputs.batches) - 1
        self.truths: dict[int, Truth] = {r: make_truth(self.inputs, r) for r in {0, self.last}}
        twin = short_twin(workload)
        self.twin: Inputs = make_inputs(twin, device, pool_bytes=1)
        self.twin.poison_unowned()
        self.twin_truth: Truth = make_truth(self.twin, 0, most=twin.num_requests)

    def admit(self, name: str, backend: Entrant) -> Contender | BenchRow:
        """A contender that may be timed, or the row that says why not."""
        if isinstance(backend, NotReady):
            refusal = Refusal(name, "unavailable", backend.state, "ready", backend.detail)
            return _refused(name, [refusal])
        try:
            info = backend.device_info(self.device)
            if refusals := check(backend, self.workload.spec, info):
                return _refused(name, refusals)
            if backend.emulated:
                hint = "its times would say nothing; bench it on the device it is written for"
                return _refused(
                    name, [Refusal(name, "emulated", "a time", "correctness only", hint)]
                )
            facts = dict(backend.describe(self.workload.spec, info))
            contender, checks = self._open(backend, facts)
        except Unsupported as error:
            return _refused(name, error.refusals)
        except Exception as error:  # the plugin border: anything becomes a row
            self.restore()
            return failed(name, error)
        wrong = next((c for c in checks if c.wrong), None)
        return self._wrong(name, wrong) if wrong else contender

    def check_again(self, contender: Contender) -> Check | BenchRow:
        """After timing: still right, or the row that says what is wrong."""
        name, plan = contender.backend.name, contender.plans[self.last]
        try:
            again = run_and_check(contender.op, plan, self.inputs, self.truths[self.last])
        except Exception as error:  # the plugin border
            return failed(name, error)
        if again.wrong:
            detail = f"right at first, wrong after timing: {again.wrong}"
            return self._wrong(name, dataclasses.replace(again, wrong=detail))
        return again

    def restore(self) -> None:
        """Others must not suffer from what a faulty backend did to the caches."""
        self.inputs.restore()
        self.twin.restore()
        self.twin.poison_unowned()

    def _open(
        self, backend: AttentionBackend, facts: dict[str, Any]
    ) -> tuple[Contender, list[Check]]:
        spec, twin, inputs = self.workload.spec, self.twin, self.inputs
        small = backend.open(spec, twin.limits, device=self.device)
        small_plan = small.plan(twin.batches[0])
        op = backend.open(spec, inputs.limits, device=self.device)
        plans = tuple(op.plan(batch) for batch in inputs.batches)
        checks = [check_write(small, twin), check_write(op, inputs)]
        checks += [run_and_check(small, small_plan, twin, self.twin_truth)]
        checks += [run_and_check(op, plans[r], inputs, t) for r, t in self.truths.items()]
        out, lse = inputs.empty_out()
        return Contender(backend, op, plans, inputs, out, lse, facts, checks[-1]), checks

    def _wrong(self, name: str, wrong: Check) -> BenchRow:
        self.restore()
        return BenchRow(
            backend=name,
            state=BenchState.WRONG,
            detail=wrong.wrong,
            error=wrong.error,
            budget=wrong.budget,
        )


@dataclass(frozen=True, eq=False)
class Contender:
    """A backend that was admitted: its op, one plan per replica, an output of its own."""

    backend: AttentionBackend
    op: AttentionOp
    plans: tuple[Plan, ...]
    inputs: Inputs
    out: Tensor
    lse: Tensor | None
    facts: dict[str, Any]
    check: Check

    def run_task(self) -> Task:
        """run(), every call on the next replica."""
        inputs = self.inputs

        def call(plan: Plan) -> None:
            self.op.run(
                inputs.q,
                inputs.cache,
                plan,
                out=self.out,
                lse=self.lse,
                sinks=inputs.sinks,
                alibi_slopes=inputs.alibi_slopes,
            )

        return Task(self.backend.name, call, lambda i: self.plans[i % len(self.plans)])

    def plan_task(self) -> Task:
        """plan() of a batch that was never seen before, as in a running engine."""
        batches = self.inputs.batches
        return Task(
            self.backend.name,
            self.op.plan,
            lambda i: dataclasses.replace(batches[i % len(batches)]),
        )

    def write_task(self) -> Task:
        """write() of what the slots hold already, so that the cache stays what checks expect."""
        inputs = self.inputs
        return Task(
            self.backend.name,
            lambda slots: self.op.write(inputs.k, inputs.v, inputs.cache, slots),
            lambda i: inputs.batches[i % len(inputs.batches)].slot_mapping,
        )


def _refused(name: str, refusals: Sequence[Refusal]) -> BenchRow:
    detail = "; ".join(str(refusal).removeprefix(f"{name}: ") for refusal in refusals)
    return BenchRow(backend=name, state=BenchState.REFUSED, detail=detail)
