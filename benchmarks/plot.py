"""A Report as an SVG: one bar per row, the share of the machine's limit that it reaches, with its
interval. Written by hand, so that it needs no plotting library and differs only when results do."""

from __future__ import annotations

from html import escape

from pagedattn.benchmarks.results import BenchRow, BenchState, Group, Report
from pagedattn.benchmarks.stats import Verdict

__all__ = ["to_svg"]

WIDTH, LABEL, BAR = 860, 170, 460  # of the picture, of the names, of 100%
LINE = 22
COLOURS = {
    Verdict.FASTER: "#2e8b57",
    Verdict.SLOWER: "#c0504d",
    Verdict.SAME: "#4f81bd",
    Verdict.UNCLEAR: "#9aa5b1",
    None: "#4f81bd",
}


def to_svg(report: Report) -> str:
    """Bars by workload: decode against the read bandwidth, prefill and mixed against the matrix
    peak. Green is faster than the baseline, red slower, blue the same, grey unclear; a row without
    a time has its reason instead of a bar."""
    env, y = report.environment, LINE
    parts = [_text(8, y, f"{env['device']}, torch {env['torch']}, {report.created}", bold=True)]
    fractions = [
        fraction.high
        for group, row in report.rows(BenchState.TIMED)
        if (fraction := group.limit_fraction(row))
    ]
    scale = BAR / max([1.0, *fractions])
    for group in report.groups:
        y += LINE + LINE // 2
        limit = "read bandwidth" if group.phase == "decode" else "matrix peak"
        title = f"{group.workload}: % of this machine's {limit}"
        parts.append(_text(8, y, title, bold=True))
        top = y + 6
        for row in group.rows:
            y += LINE
            parts += _bar(group, row, y, scale)
        mark = LABEL + scale  # 100%
        parts.append(f'<path d="M{mark:.1f} {top}V{y + 4}" stroke="#555" stroke-dasharray="3 3"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + LINE}" '
        'font-family="sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{y + LINE}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _bar(group: Group, row: BenchRow, y: int, scale: float) -> list[str]:
    """The elements of one row whose text stands at height y."""
    name = _text(LABEL - 8, y, row.backend, anchor="end")
    fraction = group.limit_fraction(row)
    if fraction is None:
        detail = row.detail if len(row.detail) <= 80 else f"{row.detail[:79]}…"
        return [name, _text(LABEL, y, f"{row.state.upper()} {detail}".strip(), colour="#c0504d")]
    speedup, verdict = group.speedup(row), group.verdict(row)
    note = f"{100 * fraction.value:.3g}%"
    note += f", {speedup.value:.2f}x {verdict}" if speedup and verdict else ""
    note += ", baseline" if row.backend == group.baseline else ""
    low, high = LABEL + fraction.low * scale, LABEL + fraction.high * scale
    return [
        name,
        f'<rect x="{LABEL}" y="{y - 12}" width="{fraction.value * scale:.1f}" height="15" '
        f'fill="{COLOURS[verdict]}"/>',
        f'<path d="M{low:.1f} {y - 5}H{high:.1f}" stroke="black"/>',
        _text(int(high) + 6, y, note),
    ]


def _text(
    x: int, y: int, text: str, *, anchor: str = "start", bold: bool = False, colour: str = "black"
) -> str:
    style = f'text-anchor="{anchor}" fill="{colour}"' + (' font-weight="bold"' if bold else "")
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'
