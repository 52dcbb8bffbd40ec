"""The report as Markdown: for a pull request, an issue, a job summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pagedattn.conformance.summary import areas, declined_reasons, headroom, sample

__all__ = ["MARK", "table", "to_markdown"]

MOST_FAILURES = 20
MARK = {
    "conforms": "✅",
    "kernels emulated": "☑️",
    "adapter verified": "☑️",
    "declined": "🔹",
    "known failure": "🟡",
    "fails": "❌",
    "not run": "⬜",
}
"""Of an area's state; the word stands beside it."""


def to_markdown(document: dict[str, Any]) -> str:
    """Per run: the verdict, the areas, the failures with their commands, what was declined."""
    parts = [part for run in document["runs"] for part in _run(run)]
    facts = ", ".join(f"{name} {value}" for name, value in document["environment"].items() if value)
    return "\n\n".join([*parts, f"<sub>{facts}</sub>"]) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; pipes in cells are escaped."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    return "\n".join([line(header), f"|{'---|' * len(header)}", *map(line, rows)])


def _run(run: dict[str, Any]) -> list[str]:
    verdict = run["verdict"]
    parts = [f"### {run['subject']['label']}: {verdict['word']}", verdict["line"]]
    parts += [f"Stale known failure: {text}" for text in verdict["stale_known_failures"]]
    rows = [
        [area.name, f"{MARK[area.text.partition(' (')[0]]} {area.text}", str(len(area.cases))]
        for area in areas(run["cases"], emulated=run["subject"]["emulated"])
    ]
    parts.append(table(["area", "state", "cases"], rows))
    failed = sample([case for case in run["cases"] if case["outcome"] == "failed"])
    for case in failed[:MOST_FAILURES]:
        parts.append(_failure(case))
    if more := failed[MOST_FAILURES:]:
        parts.append(f"and {len(more)} more: " + ", ".join(f"`{case['id']}`" for case in more))
    if reasons := declined_reasons(run["cases"]):
        rows = [[f"`{reason.code}`", str(reason.cases), reason.text] for reason in reasons]
        parts += ["Declined, with reasons:", table(["code", "cases", "for example"], rows)]
    if rooms := headroom(run["cases"]):
        rows = [[room.dtype, f"{room.smallest:.1f}x", f"`{room.case}`"] for room in rooms]
        parts += [
            "Head-room (allowed / measured error, the smallest of a dtype):",
            table(["dtype", "head-room", "case"], rows),
        ]
    return parts


def _failure(case: dict[str, Any]) -> str:
    return (
        f"**`{case['id']}`** breaks {case['rule']}\n\n"
        f"```text\n{case['detail']}\nreproduce: {case['command']}\n```"
    )
