"""A Report for people: tables for the terminal, Markdown and CSV. Every number stands beside its
check, its device and its baseline."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pagedattn.benchmarks.results import BenchRow, BenchState, Group, Report
from pagedattn.benchmarks.stats import Estimate, Verdict, estimate

__all__ = ["markdown", "print_report", "summary", "to_csv"]

_STYLE = {Verdict.FASTER: "green", Verdict.SLOWER: "red", Verdict.SAME: "", Verdict.UNCLEAR: "dim"}
_STATE_STYLE = {
    BenchState.WRONG: "bold red",
    BenchState.FAILED: "red",
    BenchState.REFUSED: "yellow",
}


def print_report(report: Report, console: Console) -> None:
    """One table per workload, the rows without a time explained below it."""
    env = report.environment
    console.print(
        f"{env['device']} · torch {env['torch']} · pagedattn {env['pagedattn']}", highlight=False
    )
    console.print(
        "[dim]medians with 95% intervals (±) of interleaved samples; err/tol: largest error over "
        "what is allowed[/]",
        highlight=False,
    )
    if warning := _busy(report):
        console.print(f"[yellow]{warning}[/]", highlight=False)
    for group in report.groups:
        console.print()
        console.print(
            f"[bold]{escape(group.workload)}[/]  {escape(_about(group))}", highlight=False
        )
        if limits := _limits(group):
            console.print(f"[dim]{escape(limits)}[/]", highlight=False)
        timed = [row for row in group.rows if row.state is BenchState.TIMED]
        if timed:
            console.print(_table(group, timed, console.width))
        for row in group.rows:
            if row.state is not BenchState.TIMED:
                word = f"[{_STATE_STYLE[row.state]}]{row.state.upper()}[/]"
                console.print(
                    f"  {escape(row.backend)}: {word} {escape(row.detail)}", soft_wrap=True
                )


def summary(report: Report) -> str:
    """The result in a sentence or two."""
    counts = {state: len(report.rows(state)) for state in BenchState}
    text = f"{counts[BenchState.TIMED]} rows timed, each checked before and after"
    for state in (BenchState.WRONG, BenchState.FAILED, BenchState.REFUSED):
        if counts[state]:
            text += f"; {counts[state]} {state}, not timed"
    verdicts = [group.verdict(row) for group, row in report.rows(BenchState.TIMED)]
    compared = [f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts]
    if compared:
        text += f". Against {report.groups[0].baseline}: {', '.join(compared)}"
    return text + "."


def markdown(report: Report) -> str:
    """The same tables in Markdown."""
    env = report.environment
    lines = [
        "# Paged attention benchmark",
        "",
        f"{env['device']}, torch {env['torch']}, pagedattn {env['pagedattn']}, "
        f"{report.created}. Medians with 95% intervals of interleaved samples; every timed row was "
        "checked against float64 before and after.",
    ]
    for group in report.groups:
        lines += ["", f"## {group.workload}", "", f"{_about(group)}. {_limits(group)}".strip(), ""]
        columns = _columns(group)
        lines += [_line(columns), _line(["---"] + ["---:"] * (len(columns) - 2) + ["---"])]
        for row in group.rows:
            if row.state is BenchState.TIMED:
                lines.append(_line(_cells(group, row)))
            else:
                blank = ["-"] * (len(columns) - 2)
                detail = f"{row.state.upper()}: {row.detail}".replace("|", r"\|")
                lines.append(_line([row.backend, *blank, detail.replace("\n", " ")]))
    return "\n".join(lines) + "\n"


def to_csv(report: Report) -> str:
    """One line per row, in base units; empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    estimates = ("run_seconds", "read_fraction", "peak_fraction", "speedup")
    writer.writerow(
        [
            *("device", "workload", "phase", "backend", "state", "detail", "error", "budget"),
            *("kv_bytes", "flops", "cold", "baseline", "verdict"),
            *(name + end for name in estimates for end in ("", "_low", "_high")),
            *("plan_seconds", "write_seconds"),
        ]
    )
    for group, row in report.rows():
        timed = row.state is BenchState.TIMED
        figures: list[Estimate | None] = [None] * 4
        if timed:
            figures = [
                estimate(row.run),
                group.read_fraction(row),
                group.peak_fraction(row),
                group.speedup(row),
            ]
        writer.writerow(
            [
                *(report.environment["device"], group.workload, group.phase, row.backend),
                *(row.state, row.detail, row.error, row.budget),
                *(group.kv_bytes, group.flops, group.cold, group.baseline, group.verdict(row)),
                *(x for f in figures for x in ((f.value, f.low, f.high) if f else (None,) * 3)),
                *(estimate(s).value if timed else None for s in (row.plan, row.write)),
            ]
        )
    return text.getvalue()


def _busy(report: Report) -> str:
    """A warning when others used the processors already before we did."""
    load, cpus = report.environment.get("load_average"), report.environment.get("cpus")
    if not load or not cpus or load < cpus / 2:
        return ""
    return (
        f"The machine was busy before (load {load:.1f} on {cpus} CPUs): intervals are wide, and "
        "the limits are what its neighbours leave."
    )


def _table(group: Group, timed: Sequence[BenchRow], width: int) -> Table:
    """The timed rows, without the columns that matter least when `width` is too small for all."""
    columns = _columns(group)
    lines = [_cells(group, row) for row in timed]
    longest = [max(map(len, column)) for column in zip(columns, *lines, strict=True)]
    kept = list(range(len(columns)))
    least = ["plan", "write"] + (["KV read", "of limit"] if group.phase == "mixed" else [])
    for dropped in least:
        if sum(longest[i] + 1 for i in kept) > width:
            kept = [i for i in kept if columns[i] != dropped]
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for i in kept:
        left = i in (0, len(columns) - 1)
        table.add_column(columns[i], justify="left" if left else "right", no_wrap=True)
    for row, (name, *line) in zip(timed, lines, strict=True):
        style = _STYLE.get(group.verdict(row) or Verdict.SAME, "")
        line[-1] = f"[{style}]{line[-1]}[/]" if style else line[-1]
        table.add_row(*([escape(name), *line][i] for i in kept))
    return table


def _about(group: Group) -> str:
    spec = group.spec
    parts = [
        f"{spec['num_heads']}/{spec['num_kv_heads']}/{spec['head_dim']} {spec['dtype']}",
        f"block {spec['block_size']} {spec['layout']} {group.placement} ids",
    ]
    if spec["kv_quant"] != "NONE":
        parts[0] += f", cache {spec['kv_dtype']} {spec['kv_quant'].lower()}"
    parts.append(f"{_engineering(group.kv_bytes, 'B')} of KV")
    if group.phase != "decode":
        parts.append(_engineering(group.flops, "FLOP"))
    parts.append("cold" if group.cold else "WARM: the pool fits the last-level cache")
    return ", ".join(parts)


def _limits(group: Group) -> str:
    limits = []
    if group.read:
        rate = _engineering(group.read.rate.value, "B/s")
        limits.append(f"This machine reads {rate} ({group.read.method})")
    if group.matmul:
        rate = _engineering(group.matmul.rate.value, "FLOP/s")
        limits.append(f"multiplies {rate} ({group.matmul.method})")
    return ", ".join(limits)


def _columns(group: Group) -> list[str]:
    rates = []
    if group.phase != "prefill":
        rates += ["KV read", "of limit"]
    if group.phase != "decode":
        rates += ["computed", "of peak"]
    return ["backend", "err/tol", "run", "", *rates, "plan", "write", "speedup", "", "verdict"]


def _cells(group: Group, row: BenchRow) -> list[str]:
    """Cells of a timed row, one per column."""
    run = estimate(row.run)
    assert row.error is not None
    assert row.budget is not None
    cells = [row.backend, f"{100 * row.error / row.budget:.0f}%", _time(run.value), _spread(run)]
    if group.phase != "prefill":
        cells += [
            _engineering(group.read_rate(row).value, "B/s"),
            _percent(group.read_fraction(row)),
        ]
    if group.phase != "decode":
        cells += [
            _engineering(group.flop_rate(row).value, "F/s"),
            _percent(group.peak_fraction(row)),
        ]
    cells += [_time(estimate(row.plan).value), _time(estimate(row.write).value)]
    speedup, verdict = group.speedup(row), group.verdict(row)
    if speedup and verdict:
        return [*cells, f"{speedup.value:.2f}x", _spread(speedup), verdict]
    return [*cells, "", "", "baseline" if row.backend == group.baseline else "no baseline"]


def _spread(figure: Estimate) -> str:
    """Half the interval's width, in percent of the median."""
    percent = 50 * (figure.high - figure.low) / figure.value
    return f"±{percent:.0f}%" if percent >= 1 else f"±{percent:.1f}%"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds:.0f} s"
    return f"{seconds * 1e9:.3g} ns"


def _percent(fraction: Estimate | None) -> str:
    if fraction is None:
        return "-"
    digits = 0 if fraction.value >= 0.1 else 1
    return f"{100 * fraction.value:.{digits}f}%"


def _engineering(value: float, unit: str) -> str:
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
