"""The report as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from pagedattn.conformance.html_style import STYLE
from pagedattn.conformance.plot import headroom_plot
from pagedattn.conformance.summary import (
    Area,
    areas,
    capability_words,
    declined_reasons,
    headroom,
    sample,
)
from pagedattn.emulation import Judged

__all__ = ["to_html"]

CLASS = {
    "passed": "passed",
    "declined": "declined",
    "failed": "failed",
    "known failure": "known",
    "not run": "notrun",
}
STATE_CLASS = {
    "conforms": "passed",
    "declined": "declined",
    "fails": "failed",
    "known failure": "known",
    "not run": "notrun",
}
WORD_CLASS = {"DOES NOT CONFORM": "failed", "NOT JUDGED": "notrun"}
OPEN_FAILURES = 5
WHOLE_FAILURES = 60


def to_html(document: dict[str, Any]) -> str:
    """The page of a report document (docs/conformance.md)."""
    runs = document["runs"]
    names = ", ".join(run["subject"]["name"] for run in runs)
    body = "".join(f'<section class="run">{_run(run)}</section>' for run in runs)
    facts = " · ".join(
        f"{name} {value}" for name, value in document["environment"].items() if value is not None
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(names)}: pagedattn conformance</title>"
        f"<style>\n{STYLE}\n</style></head>\n<body><main><h1>pagedattn conformance</h1>\n"
        f"{body}\n<footer>{_text(facts)}</footer></main></body></html>\n"
    )


def _run(run: dict[str, Any]) -> str:
    cases = run["cases"]
    parts = [
        _verdict(run),
        _failures(cases),
        _areas(areas(cases, emulated=run["subject"]["emulated"])),
        _headroom(cases),
        _declined(cases),
        _capabilities(run["capabilities"]),
        _every_case(cases),
    ]
    return "\n".join(filter(None, parts))


def _verdict(run: dict[str, Any]) -> str:
    verdict, counts = run["verdict"], run["verdict"]["counts"]
    # What went well is always counted, what did not only when there is some.
    told = [name for name in CLASS if counts[name] or name in ("passed", "declined", "failed")]
    tiles = "".join(f"<div><dt>{name}</dt><dd>{counts[name]}</dd></div>" for name in told)
    if verdict["headroom"]:
        dtype, room = min(verdict["headroom"].items(), key=lambda pair: pair[1])
        tiles += f"<div><dt>least head-room ({_text(dtype)})</dt><dd>{room:.1f}x</dd></div>"
    bar = "".join(
        f'<span class="{CLASS[name]}" style="flex:{counts[name]}"></span>'
        for name in CLASS
        if counts[name]
    )
    notes = [run["selection"]] if run["selection"] else []
    if run["subject"]["emulated"]:
        notes.append(Judged(run["subject"]["emulated"]).limit)
    if run["seed"]:
        notes.append(f"contents of seed {run['seed']}")
    notes += [f"stale known failure: {text}" for text in verdict["stale_known_failures"]]
    noted = "".join(f'<p class="soft">{_text(note)}</p>' for note in notes)
    passed = "known" if counts["known failure"] else "passed"
    return (
        f'<div class="card verdict {WORD_CLASS.get(verdict["word"], passed)}">'
        f"<h2>{_text(run['subject']['label'])}</h2>"
        f'<p class="word">{verdict["word"]}</p>{noted}'
        f'<dl class="counts">{tiles}</dl><div class="bar">{bar}</div></div>'
    )


def _failures(cases: Sequence[dict[str, Any]]) -> str:
    failed = sample([case for case in cases if case["outcome"] == "failed"])
    known = [case for case in cases if case["outcome"] == "known failure"]
    parts = []
    for title, some in (("Failures", failed), ("Known failures", known)):
        if some:
            listed = [_failure(case, n < OPEN_FAILURES) for n, case in enumerate(some)]
            parts.append(f"<h3>{title}</h3>" + "".join(listed[:WHOLE_FAILURES]))
        if more := some[WHOLE_FAILURES:]:
            ids = ", ".join(f"<code>{_text(case['id'])}</code>" for case in more)
            parts.append(f"<p>and {len(more)} more: {ids}</p>")
    if reasons := {case["detail"] for case in cases if case["outcome"] == "not run"}:
        items = "".join(f"<li>{_text(reason)}</li>" for reason in sorted(reasons)[:5])
        parts.append(f"<h3>Not run</h3><ul>{items}</ul>")
    return "".join(parts)


def _failure(case: dict[str, Any], opened: bool) -> str:
    return (
        f'<details class="card failure {CLASS[case["outcome"]]}"{" open" if opened else ""}>'
        f"<summary><b>{_text(case['id'])}</b> "
        f'<span class="soft">breaks <code>{_text(case["rule"])}</code></span></summary>'
        f"<pre>{_text(case['detail'])}</pre>"
        f'<p class="label">reproduce</p><pre>{_text(case["command"])}</pre></details>'
    )


def _areas(found: Sequence[Area]) -> str:
    used = {case["outcome"] for area in found for case in area.cases}
    legend = "".join(
        f'<span><span class="dots"><i class="{CLASS[name]}"></i></span>{name}</span>'
        for name in CLASS
        if name in used
    )
    cards = "".join(map(_area, found))
    return f'<h3>Areas</h3><div class="legend">{legend}</div><div class="grid">{cards}</div>'


def _area(area: Area) -> str:
    dots = "".join(
        f'<i class="{CLASS[case["outcome"]]}" title="{_text(case["id"])}: {case["outcome"]}"></i>'
        for case in area.cases
    )
    return (
        f'<div class="card area {STATE_CLASS[area.state]}"><header><b>{_text(area.name)}</b>'
        f'<span>{area.text}</span></header><div class="dots">{dots}</div></div>'
    )


def _headroom(cases: Sequence[dict[str, Any]]) -> str:
    plot = headroom_plot(headroom(cases))
    if not plot:
        return ""
    return (
        "<h3>Head-room</h3>"
        '<p class="soft">Allowed error divided by measured error, one dot a case. '
        "At 1x a case fails; below 2x (tinted) another machine may be less lucky.</p>"
        f'<div class="card">{plot}</div>'
    )


def _declined(cases: Sequence[dict[str, Any]]) -> str:
    rows = [
        (f"<code>{_text(reason.code)}</code>", str(reason.cases), _text(reason.text))
        for reason in declined_reasons(cases)
    ]
    if not rows:
        return ""
    return f"<h3>Declined, with reasons</h3>{_table(('code', 'cases', 'for example'), rows)}"


def _capabilities(capabilities: dict[str, str]) -> str:
    if not capabilities:
        return ""
    pairs = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_value(text)}</dd></div>"
        for name, text in capabilities.items()
    )
    return f'<h3>Declared capabilities</h3><div class="card"><dl class="pairs">{pairs}</dl></div>'


def _value(text: str) -> str:
    shown = capability_words(text)
    kind = ' class="off"' if shown in ("no", "none") else ""
    return f"<span{kind}>{_text(shown)}</span>"


def _every_case(cases: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            _text(case["id"]),
            _text(case["outcome"]),
            f"<code>{_text(case['rule'].rpartition('#')[2])}</code>",
            f"{case['seconds']:.2f}",
        )
        for case in cases
    ]
    table = _table(("case", "outcome", "rule", "seconds"), rows, "cases")
    return f"<h3>Every case</h3><details><summary>{len(rows)} cases</summary>{table}</details>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="card"><table class="{kind}"><tr>{head}</tr>{body}</table></div>'


def _text(text: str) -> str:
    return escape(text)
