"""What people and programs read after a run: tables, failures, the verdict line, JSON."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagedattn.conformance.areas import area_of
from pagedattn.conformance.case import Outcome, Result
from pagedattn.conformance.runner import Verdict, verdict
from pagedattn.conformance.subjects import Subject

__all__ = ["SCHEMA", "Run", "environment", "print_run", "shown_failures", "to_json"]

SCHEMA = 1
SHOWN_FAILURES = 5
NAMED_FAILURES = 20
STYLE = {
    Outcome.PASSED: "green",
    Outcome.FAILED: "bold red",
    Outcome.DECLINED: "cyan",
    Outcome.KNOWN_FAILURE: "yellow",
    Outcome.NOT_RUN: "magenta",
}


@dataclass(frozen=True)
class Run:
    """One subject's results.

    selection  which part of the suite was run, "" for all of it
    stale      known-failure entries that did not fail
    seed       of the cases' contents
    """

    subject: Subject
    results: Sequence[Result]
    selection: str = ""
    stale: Sequence[str] = field(default=())
    seed: int = 0

    @property
    def verdict(self) -> Verdict:
        return verdict(self.results, stale=self.stale)

    @property
    def line(self) -> str:
        return self.verdict.line(self.subject.label, self.selection, emulated=self.emulated)

    @cached_property
    def emulated(self) -> str:
        """What an emulation judged, "" without one."""
        return self.subject.emulated()

    def command(self, case_id: str) -> str:
        """One line that reproduces a case of this run."""
        return self.subject.command(case_id, seed=self.seed)


def print_run(console: Console, run: Run) -> None:
    """A table per area, the failures, why cases were declined, and the verdict as the last line."""
    seed = f", contents of seed {run.seed}" if run.seed else ""
    console.print(Text(run.subject.label + seed, style="bold"))
    mixed, whole = _areas(run.results)
    if whole:
        text = ", ".join(f"{area} {count}" for area, count in whole.items())
        console.print(f"all passed: {text}", style=STYLE[Outcome.PASSED], highlight=False)
    if mixed:
        console.print(_table(mixed))
    failed = _failures(run.results)
    for result in shown_failures(run.results):
        console.print()
        console.print(Text(f"FAILED {result.case}", style="bold red"))
        console.print(f"rule: docs/SPEC.md#{result.rule}", markup=False, highlight=False)
        console.print(result.detail, markup=False, highlight=False)
        command = f"reproduce: {run.command(result.case)}"
        console.print(command, markup=False, highlight=False, soft_wrap=True)
    if more := failed[SHOWN_FAILURES:]:
        console.print()
        names = ", ".join(r.case for r in more[:NAMED_FAILURES])
        rest = ", ... (--json FILE has all)" if len(more) > NAMED_FAILURES else ""
        text = f"and {len(more)} more failures: {names}{rest}"
        console.print(text, markup=False, highlight=False)
    for stale in run.stale:
        console.print(f"stale: {stale}; remove the entry", markup=False, highlight=False)
    reasons = Counter(r.detail for r in run.results if r.outcome is Outcome.NOT_RUN)
    for reason, count in reasons.most_common(3):
        console.print(f"not run ({count}): {reason}", markup=False, highlight=False)
    if declined := _declined(run.results):
        console.print()
        console.print(f"declined, with reasons: {declined}", markup=False, highlight=False)
    style = "bold green" if run.verdict.conforms else "bold red"
    console.print()
    console.print(Text(run.line, style=style), soft_wrap=True)


def shown_failures(results: Sequence[Result]) -> list[Result]:
    """The failures that are printed whole."""
    return _failures(results)[:SHOWN_FAILURES]


def _failures(results: Sequence[Result]) -> list[Result]:
    """One of each area first: a broken basic fails hundreds of cases alike."""
    results = [r for r in results if r.outcome is Outcome.FAILED]
    first = {area_of(r.case): r for r in reversed(results)}
    telling = [r for r in results if first[area_of(r.case)] is r]
    return telling + [r for r in results if first[area_of(r.case)] is not r]


def _areas(
    results: Sequence[Result],
) -> tuple[dict[str, Counter[Outcome]], dict[str, int]]:
    """Outcomes per area where there is something to see, and the sizes of areas without."""
    counts: dict[str, Counter[Outcome]] = {}
    for result in results:
        counts.setdefault(area_of(result.case), Counter())[result.outcome] += 1
    whole = {a: c[Outcome.PASSED] for a, c in counts.items() if set(c) == {Outcome.PASSED}}
    return {a: c for a, c in counts.items() if a not in whole}, whole


def _table(counts: dict[str, Counter[Outcome]]) -> Table:
    used = [o for o in Outcome if any(c[o] for c in counts.values())]
    table = Table(header_style="bold", box=None)
    table.add_column("area")
    for outcome in used:
        table.add_column(outcome.value, justify="right")
    for area, counted in counts.items():
        row = [Text(str(counted[o] or "-"), style=STYLE[o] if counted[o] else "dim") for o in used]
        table.add_row(area, *row)
    return table


def _declined(results: Sequence[Result]) -> str:
    """ "softcap 12, sinks 9": how many cases each code declined."""
    codes = Counter(
        code
        for r in results
        if r.outcome is Outcome.DECLINED
        for code in {refusal.code for refusal in r.refusals}
    )
    return ", ".join(f"{code} {count}" for code, count in codes.most_common())


def environment(device: str) -> dict[str, Any]:
    """Where the results were obtained."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
    }
    for package in ("pagedattn", "torch", "numpy", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    torch = sys.modules.get("torch")
    if torch is not None:
        found["threads"] = torch.get_num_threads()
        if device.startswith("cuda") and torch.cuda.is_available():
            found["device_name"] = torch.cuda.get_device_name(device)
    return found


def to_json(runs: Sequence[Run]) -> dict[str, Any]:
    """One document: schema, environment, and per subject the verdict and every case."""
    device = runs[0].subject.device if runs else "cpu"
    return {
        "schema": SCHEMA,
        "environment": environment(device),
        "runs": [_run_json(run) for run in runs],
    }


def _run_json(run: Run) -> dict[str, Any]:
    from pagedattn.errors import PagedAttnError

    judged = run.verdict
    try:
        capabilities = dict(run.subject.capabilities())
    except Exception as error:  # the plugin border: a report is written of a broken subject too
        kind = "" if isinstance(error, PagedAttnError) else f"{type(error).__name__}: "
        capabilities = {"error": f"{kind}{error}"}
    return {
        "subject": {
            "name": run.subject.name,
            "kind": run.subject.kind.value,
            "version": run.subject.version,
            "device": run.subject.device,
            "label": run.subject.label,
            "emulated": run.emulated,
        },
        "capabilities": capabilities,
        "selection": run.selection,
        "seed": run.seed,
        "verdict": {
            "word": judged.word(run.selection, emulated=run.emulated),
            "conforms": judged.conforms and not run.emulated,
            "complete": not run.selection,
            "line": run.line,
            "counts": judged.counts,
            "headroom": judged.headroom,
            "stale_known_failures": list(run.stale),
        },
        "cases": [_case_json(run, result) for result in run.results],
    }


def _case_json(run: Run, result: Result) -> dict[str, Any]:
    broken = result.outcome in (Outcome.FAILED, Outcome.KNOWN_FAILURE)
    return {
        "id": result.case,
        "rule": f"docs/SPEC.md#{result.rule}",
        "outcome": result.outcome.value,
        "seconds": round(result.seconds, 4),
        "detail": result.detail,
        "command": run.command(result.case) if broken else "",
        "refusals": [
            {
                "code": r.code,
                "requested": str(getattr(r.requested, "name", r.requested)),
                "supported": r.supported,
                "hint": r.hint,
            }
            for r in result.refusals
        ],
        "measures": {
            name: value if isinstance(value, int | float | str | bool) else str(value)
            for name, value in result.measures.items()
        },
    }
