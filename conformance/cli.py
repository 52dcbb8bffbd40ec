"""`pagedattn check`: judge backends and allocators."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pagedattn.conformance.badge import to_badge
from pagedattn.conformance.case import Case, NotRun, Outcome, Result
from pagedattn.conformance.expression import compile_expression
from pagedattn.conformance.html import to_html
from pagedattn.conformance.junit import to_junit
from pagedattn.conformance.known import Known, apply_known, read_known
from pagedattn.conformance.markdown import to_markdown
from pagedattn.conformance.quick import quick
from pagedattn.conformance.report import Run, print_run, shown_failures, to_json
from pagedattn.conformance.runner import run_cases, shrunk
from pagedattn.conformance.settings import using
from pagedattn.conformance.subjects import Subject, cases_of, resolve
from pagedattn.conformance.workers import Workers
from pagedattn.device import DeviceInfo
from pagedattn.errors import NotReady, PagedAttnError

__all__ = ["check"]


def check(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Backends or allocators to judge.")
    ],
    device: Annotated[str, typer.Option(help="Device to judge backends on.")] = "cpu",
    keyword: Annotated[
        str,
        typer.Option("-k", metavar="EXPR", help="Only cases that match, e.g. 'gqa and not mixed'."),
    ] = "",
    quick_part: Annotated[
        bool,
        typer.Option("--quick", help="The required core and one case of each other kind."),
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Other contents under the same case ids; 0: the usual ones.")
    ] = 0,
    max_time: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop then; the rest counts as not run.")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            "-j",
            min=0,
            metavar="N",
            help="N processes, so that a crash or a hang fails one case alone; 0: this process.",
        ),
    ] = 0,
    case_time: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="With --jobs: a case that takes longer has failed."),
    ] = None,
    known_failures: Annotated[
        Path | None,
        typer.Option(metavar="TOML", help="Known failures (format: docs/conformance.md)."),
    ] = None,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write every outcome ('-': to stdout).")
    ] = "",
    html_file: Annotated[
        str, typer.Option("--html", metavar="FILE", help="Write a page for a browser.")
    ] = "",
    junit_file: Annotated[
        str, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")
    ] = "",
    md_file: Annotated[
        str, typer.Option("--md", metavar="FILE", help="Write a Markdown summary.")
    ] = "",
    badge: Annotated[
        bool,
        typer.Option("--badge", help="Print the JSON of a shields.io badge, one line per subject."),
    ] = False,
    list_only: Annotated[bool, typer.Option("--list", help="List the cases, run none.")] = False,
) -> None:
    """Judge backends and allocators by the conformance suite; the last line is the verdict.

    Exit code 0: all conform. 1: one does not. 2: wrong usage, or nothing could be executed.
    """
    console = Console(stderr=json_file == "-" or badge)
    try:
        files = [file for file in (json_file, html_file, junit_file, md_file) if file]
        if len(set(files)) < len(files):
            raise ValueError("two reports would be written to one file")
        if "-" in (html_file, junit_file, md_file):
            raise ValueError("'-' (stdout) is for --json alone; give the others a file")
        if json_file == "-" and badge:
            raise ValueError("--json - and --badge both print to stdout; give --json a file")
        for option, seconds in (("--max-time", max_time), ("--case-time", case_time)):
            if seconds is not None and not 0 <= seconds < math.inf:
                raise ValueError(f"{option} {seconds:g} is no number of seconds")
        DeviceInfo.of(device)
        if case_time is not None and not jobs:
            raise ValueError("--case-time needs --jobs: this process cannot end its own case")
        _writable([file for file in files if file != "-"])
        known = read_known(known_failures) if known_failures else ()
        subjects = [subject for name in names for subject in resolve(name, device)]
        chosen = [(subject, _selected(subject, keyword, quick_part)) for subject in subjects]
    except (PagedAttnError, ValueError, OSError) as error:
        Console(stderr=True).print(
            f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True
        )
        raise typer.Exit(2) from error
    if list_only:
        for _, selection in chosen:
            for case in selection.cases:
                core = "  core" if case.core else ""
                print(f"{case.id:<44} docs/SPEC.md#{case.rule}{core}")
        return
    runs = []
    for subject, selection in chosen:
        run = _judge(console, subject, selection, seed, max_time, known, jobs, case_time)
        print_run(console, run)
        runs.append(run)
    document = to_json(runs)
    if json_file == "-":
        print(_dumped(document), end="")
    if badge:
        for one in document["runs"]:
            print(json.dumps(to_badge(one)))
    reports = {html_file: to_html, junit_file: to_junit, md_file: to_markdown, json_file: _dumped}
    for file, render in reports.items():
        if file not in ("", "-"):
            Path(file).write_text(render(document), encoding="utf-8")
    codes = [run.verdict.exit_code for run in runs]
    raise typer.Exit(1 if 1 in codes else max(codes))


@dataclass(frozen=True)
class Selection:
    """The cases that were chosen, and which part of the suite that is, "" for all of it."""

    cases: Sequence[Case]
    text: str


def _selected(subject: Subject, keyword: str, quick_part: bool) -> Selection:
    every = cases_of(subject.kind)
    cases = quick(every) if quick_part else list(every)
    if keyword:
        matches = compile_expression(keyword, [case.id for case in every])
        cases = [case for case in cases if matches(case.id)]
    how = ["of --quick"] if quick_part else []
    how += [f"that match {keyword!r}"] if keyword else []
    text = f"only the {len(cases)} of {len(every)} cases {' '.join(how)}" if how else ""
    return Selection(cases, text)


def _judge(
    console: Console,
    subject: Subject,
    selection: Selection,
    seed: int,
    max_time: float | None,
    known: Sequence[Known],
    jobs: int,
    case_time: float | None,
) -> Run:
    cases = selection.cases
    try:
        made = subject.make()
    except (NotRun, NotReady) as error:
        results = [Result(c.id, c.rule, Outcome.NOT_RUN, 0.0, str(error)) for c in cases]
        return Run(subject, results, selection.text, seed=seed)
    by_id = {case.id: case for case in cases}

    def known_apart(results: Sequence[Result]) -> tuple[list[Result], Sequence[str]]:
        return apply_known(results, known, name=subject.name, device=subject.device)

    # The failures that will be shown are run once more, looking for a smaller input.
    if jobs:
        with Workers(subject, jobs=jobs, seed=seed, case_time=case_time) as workers:
            with _progress(console, subject, len(cases)) as advance:
                results = workers.run(cases, max_time=max_time, progress=advance)
            results, stale = known_apart(results)
            shown = workers.shrink((by_id[f.case], f) for f in shown_failures(results))
    else:
        with _progress(console, subject, len(cases)) as advance, using(seed=seed):
            results = run_cases(made, cases, max_time=max_time, progress=advance)
        results, stale = known_apart(results)
        shown = [shrunk(made, by_id[f.case], f, seed=seed) for f in shown_failures(results)]
    better = {result.case: result for result in shown}
    results = [better.get(result.case, result) for result in results]
    return Run(subject, results, selection.text, stale, seed)


@contextmanager
def _progress(console: Console, subject: Subject, total: int) -> Iterator[Any]:
    """A bar on a terminal; gives the function to call after each case."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[failed]} failed, now {task.fields[case]}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(f"checking {subject.label}", total=total, failed=0, case="")
        failed = 0

        def advance(result: Result) -> None:
            nonlocal failed
            failed += result.outcome is Outcome.FAILED
            bar.update(task, advance=1, failed=failed, case=result.case)

        yield advance


def _writable(files: Sequence[str]) -> None:
    """Raises ValueError before a long run whose report could not be written after it."""
    for file in files:
        if Path(file).is_dir():
            raise ValueError(f"cannot write {file}: it is a folder")
        folder = Path(file).parent
        if not folder.is_dir():
            raise ValueError(f"cannot write {file}: there is no folder {folder}")


def _dumped(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
