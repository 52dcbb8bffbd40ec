"""Two reports, row by row: what became faster, slower, wrong, or is gone."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pagedattn.benchmarks.results import BenchRow, BenchState, Group, Probe, Report
from pagedattn.benchmarks.stats import TOLERANCE, Estimate, Verdict, judge, unpaired_ratio

__all__ = ["Basis", "Change", "changes", "differing_environment", "exit_code", "print_changes"]

_SHOWN = ("device", "threads", "cpu_capability", "governor", "cuda", "torch", "pagedattn", "python")


class Basis(enum.StrEnum):
    """What is compared. TIME: seconds. FRACTION: the share of the machine's limit measured in the
    same run, for machines whose speed differs from run to run."""

    TIME = "time"
    FRACTION = "fraction"


@dataclass(frozen=True)
class Change:
    """One (backend, workload) of two reports on one device.

    speedup   old time over new time, or new fraction over old; None unless both were timed
    verdict   of the new row against the old one
    note      what is not a matter of speed: "timed -> wrong: ...", "only in the new report"; ""
              when the row has no time in either report
    regressed SLOWER, or the old report has a time and the new one refuses or fails the row
    """

    backend: str
    workload: str
    speedup: Estimate | None
    verdict: Verdict | None
    note: str
    regressed: bool


def changes(
    old: Report, new: Report, *, basis: Basis = Basis.TIME, tolerance: float = TOLERANCE
) -> list[Change]:
    """Rows of both reports joined by backend, workload, its spec and the device, in old order.

    tolerance   a speed-up whose interval lies within 1 +- tolerance is SAME"""
    before, after = _index(old), _index(new)
    found = []
    for key in [*before, *(k for k in after if k not in before)]:
        name, workload = key[0], key[1]
        if key not in after or key not in before:
            which = "old" if key in before else "new"
            found.append(Change(name, workload, None, None, f"only in the {which} report", False))
            continue
        (old_group, old_row), (new_group, new_row) = before[key], after[key]
        if not (old_row.state is new_row.state is BenchState.TIMED):
            note = ""
            if old_row.state is not new_row.state:
                note = f"{old_row.state} -> {new_row.state}"
                note += f": {new_row.detail}" if new_row.detail else ""
            lost = old_row.state is BenchState.TIMED
            found.append(Change(name, workload, None, None, note, lost))
            continue
        speedup = unpaired_ratio(_cost(old_group, old_row, basis), _cost(new_group, new_row, basis))
        verdict = judge(speedup, tolerance=tolerance)
        found.append(Change(name, workload, speedup, verdict, "", verdict is Verdict.SLOWER))
    return found


def exit_code(found: list[Change]) -> int:
    """1 after a regression, 2 when nothing was comparable, else 0."""
    if any(change.regressed for change in found):
        return 1
    return 0 if any(change.verdict for change in found) else 2


def differing_environment(old: Report, new: Report) -> list[str]:
    """ "torch: 2.12.0 -> 2.13.0", for what may explain a change."""
    a, b = old.environment, new.environment
    return [f"{k}: {a.get(k)} -> {b.get(k)}" for k in _SHOWN if a.get(k) != b.get(k)]


def print_changes(found: list[Change], console: Console) -> None:
    """A line for every row that is not as it was."""
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for column in ("backend", "workload", "speed new/old", "interval", "verdict"):
        table.add_column(column, no_wrap=True)
    for change in found:
        if change.speedup is None or change.verdict is Verdict.SAME:
            continue
        s = change.speedup
        cells = [f"{s.value:.3f}x", f"{s.low:.3f} .. {s.high:.3f}", str(change.verdict)]
        style = "red" if change.regressed else "green" if change.verdict is Verdict.FASTER else None
        table.add_row(escape(change.backend), escape(change.workload), *cells, style=style)
    if table.row_count:
        console.print(table)
    for change in found:
        if change.note:
            text = escape(f"{change.backend}, {change.workload}: {change.note}")
            style = "red" if change.regressed else None
            console.print(text, style=style, highlight=False, soft_wrap=True)
    verdicts = [change.verdict for change in found if change.verdict]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts)
    console.print(f"{len(verdicts)} rows timed in both reports: {counts or '-'}", highlight=False)


def _index(report: Report) -> dict[tuple[str, ...], tuple[Group, BenchRow]]:
    device = report.environment["device"]
    return {
        (row.backend, group.workload, repr(sorted(group.spec.items())), group.placement, device): (
            group,
            row,
        )
        for group, row in report.rows()
    }


def _cost(group: Group, row: BenchRow, basis: Basis) -> list[float]:
    """Seconds, or seconds in units of the probe's time in the same round."""
    if basis is Basis.TIME:
        return list(row.run)
    probe: Probe | None = group.matmul or group.read
    assert probe is not None
    return [own / limit for own, limit in zip(row.run, probe.seconds, strict=True)]
