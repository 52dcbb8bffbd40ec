"""`pagedattn check`: judge backends and allocators."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pagedattn.conformance.case import Case, NotRun, Outcome, Result
from pagedattn.conformance.expression import compile_expression
from pagedattn.conformance.known import Known, apply_known, read_known
from pagedattn.conformance.report import Run, print_run, to_json
from pagedattn.conformance.runner import run_cases
from pagedattn.conformance.subjects import Subject, cases_of, resolve
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
    max_time: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop then; the rest counts as not run.")
    ] = None,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write every outcome ('-': to stdout).")
    ] = "",
    list_only: Annotated[bool, typer.Option("--list", help="List the cases, run none.")] = False,
    known_failures: Annotated[
        Path | None,
        typer.Option(
            metavar="TOML",
            help="Known failures (format: pagedattn.conformance.known).",
        ),
    ] = None,
) -> None:
    """Judge backends and allocators by the conformance suite; the last line is the verdict.

    Exit code 0: all conform. 1: one does not. 2: wrong usage, or nothing could be executed.
    """
    console = Console(stderr=json_file == "-")
    try:
        known = read_known(known_failures) if known_failures else ()
        subjects = [subject for name in names for subject in resolve(name, device)]
        chosen = [(subject, _selected(subject, keyword)) for subject in subjects]
    except (PagedAttnError, ValueError, OSError) as error:
        Console(stderr=True).print(
            f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True
        )
        raise typer.Exit(2) from error
    if list_only:
        for _, cases in chosen:
            for case in cases:
                core = "  core" if case.core else ""
                print(f"{case.id:<44} docs/SPEC.md#{case.rule}{core}")
        return
    runs = []
    for subject, cases in chosen:
        run = _judge(console, subject, cases, keyword, max_time, known)
        print_run(console, run)
        runs.append(run)
    if json_file:
        text = json.dumps(to_json(runs), indent=1, allow_nan=False)
        if json_file == "-":
            print(text)
        else:
            Path(json_file).write_text(text + "\n", encoding="utf-8")
    raise typer.Exit(max(run.verdict.exit_code for run in runs))


def _selected(subject: Subject, keyword: str) -> list[Case]:
    cases = cases_of(subject.kind)
    if not keyword:
        return list(cases)
    matches = compile_expression(keyword, [case.id for case in cases])
    return [case for case in cases if matches(case.id)]


def _judge(
    console: Console,
    subject: Subject,
    cases: Sequence[Case],
    keyword: str,
    max_time: float | None,
    known: Sequence[Known],
) -> Run:
    everything = len(cases_of(subject.kind))
    selection = ""
    if keyword:
        selection = f"only the {len(cases)} of {everything} cases that match {keyword!r}"
    try:
        made = subject.make()
    except (NotRun, NotReady) as error:
        results = [Result(c.id, c.rule, Outcome.NOT_RUN, 0.0, str(error)) for c in cases]
        return Run(subject, results, selection)
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
        task = bar.add_task(f"checking {subject.label}", total=len(cases), failed=0, case="")
        failed = 0

        def advance(result: Result) -> None:
            nonlocal failed
            failed += result.outcome is Outcome.FAILED
            bar.update(task, advance=1, failed=failed, case=result.case)

        results = run_cases(made, cases, max_time=max_time, progress=advance)
    results, stale = apply_known(results, known, name=subject.name, device=subject.device)
    return Run(subject, results, selection, stale)
