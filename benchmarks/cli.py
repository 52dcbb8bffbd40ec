"""`pagedattn bench` and `pagedattn compare`.

torch is imported when a command runs, so that `pagedattn --help` stays quick.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pagedattn.cli.output import fail
from pagedattn.cli.spec_options import parse_dtype, parse_size

if TYPE_CHECKING:
    from rich.console import Console

    from pagedattn.benchmarks.results import Report
    from pagedattn.benchmarks.workload import Workload

__all__ = ["bench", "compare"]

E = TypeVar("E", bound=enum.Enum)

PHASES = ("decode", "prefill", "mixed")


def bench(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[decode|prefill|mixed]... [BACKEND]...",
            help="What to measure (default: decode). Further names after --backend NAME are "
            "backends too: --backend reference triton.",
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(help="Backend to measure; more names may follow. Default: every ready one."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Backend that speed-ups refer to (default: the first).")
    ] = None,
    batch: Annotated[str, typer.Option(help="Requests, e.g. 1,8.")] = "1,8",
    context: Annotated[str, typer.Option(help="Keys of a request, e.g. 1k,4k.")] = "1k,4k",
    query_len: Annotated[
        str | None,
        typer.Option(
            help="Prompt tokens of the step, for prefill (default: all) and mixed (default: 512)."
        ),
    ] = None,
    shape: Annotated[
        str, typer.Option(help="Model name, Hq/Hkv/D or Hq/Hkv/D/Dv: smollm2, 32/8/128.")
    ] = "llama3-8b",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "bfloat16",
    block_size: Annotated[int, typer.Option(help="Tokens of a cache block.")] = 16,
    layout: Annotated[str, typer.Option(help="NHD or HND.")] = "NHD",
    kv_quant: Annotated[
        str, typer.Option(help="none, per_tensor, per_head or per_token_head.")
    ] = "none",
    kv_dtype: Annotated[
        str | None, typer.Option(help="8-bit dtype of the cache with --kv-quant (default: fp8).")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Keys before the row's own that it sees (window left).")
    ] = None,
    softcap: Annotated[float | None, typer.Option(help="Soft cap of the scores.")] = None,
    placement: Annotated[str, typer.Option(help="random or sequential block ids.")] = "random",
    footprint: Annotated[
        str | None,
        typer.Option(
            help="Bytes that calls read before any byte is read again, and size of the read "
            "probe's buffer, e.g. 256m (default: 1.5 x the last-level cache)."
        ),
    ] = None,
    plugin_workloads: Annotated[
        bool, typer.Option(help="Also the workloads that installed plugins offer.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch (default: its own).")
    ] = None,
    samples: Annotated[int, typer.Option(help="Samples of each row, at least 7.")] = 30,
    max_time: Annotated[
        float, typer.Option(help="Seconds per workload; 7 samples are always taken.")
    ] = 5.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write raw samples and environment; - is stdout.")
    ] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write one line per row.")] = None,
    md_file: Annotated[Path | None, typer.Option("--md", help="Write Markdown tables.")] = None,
    svg_file: Annotated[Path | None, typer.Option("--svg", help="Write a plot.")] = None,
    save: Annotated[
        bool, typer.Option(help="Remember the times for select(by='measured').")
    ] = False,
) -> None:
    """Compare backends on attention steps: checked against float64, sampled in turn.

    Exit code 1 when a backend is wrong or fails, 2 when nothing could be timed."""
    from pagedattn import measured
    from pagedattn.benchmarks import runner
    from pagedattn.benchmarks.plot import to_svg
    from pagedattn.benchmarks.report import markdown, print_report, summary, to_csv
    from pagedattn.benchmarks.results import BenchState
    from pagedattn.benchmarks.timing import Settings
    from pagedattn.benchmarks.workload import offered

    phases, names = _sort_words(words or [], backend or [])
    console = _console(stderr=json_file == Path("-"))
    try:
        for path in (json_file, csv_file, md_file, svg_file):
            if path and not path.absolute().parent.is_dir():
                raise ValueError(f"cannot write {path}: {path.absolute().parent} is no directory")
        if threads is not None:
            _set_threads(threads)
        workloads = _workloads(
            phases=phases,
            batches=_sizes(batch),
            contexts=_sizes(context),
            query_lens=_sizes(query_len) if query_len else None,
            shape=shape,
            dtype=dtype,
            block_size=block_size,
            layout=layout,
            kv_quant=kv_quant,
            kv_dtype=kv_dtype,
            window=window,
            softcap=softcap,
            placement=placement,
        )
        workloads += offered() if plugin_workloads else ()
        with _progress() as progress:
            report = runner.bench(
                workloads,
                names or _ready(),
                device=device,
                baseline=baseline,
                settings=Settings(samples=samples, max_time=max_time),
                pool_bytes=parse_size(footprint) if footprint else None,
                probe_bytes=parse_size(footprint) if footprint else None,
                progress=progress,
            )
        print_report(report, console)
        console.print()
        console.print(summary(report), highlight=False)
        _write(json_file, report.to_json)
        _write(csv_file, lambda: to_csv(report))
        _write(md_file, lambda: markdown(report))
        _write(svg_file, lambda: to_svg(report))
        if save and report.rows(BenchState.TIMED):
            console.print(f"saved to {measured.save(runner.records(report))}", highlight=False)
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        fail(str(error))
    if not report.rows(BenchState.TIMED):
        fail("nothing was timed; the rows above say why")
    if report.rows(BenchState.WRONG, BenchState.FAILED):
        raise typer.Exit(1)


def compare(
    old: Annotated[Path, typer.Argument(help="Report of `bench --json`.")],
    new: Annotated[Path, typer.Argument(help="A later one.")],
    by: Annotated[
        str,
        typer.Option(
            help="time, or fraction: the share of the limit measured in the same run, for machines "
            "whose speed differs from run to run."
        ),
    ] = "time",
    tolerance: Annotated[
        float, typer.Option(help="Changes within this fraction count as the same.")
    ] = 0.02,
) -> None:
    """Compare two reports row by row.

    Exit code 1 on a regression (slower beyond doubt, or no longer right), 2 when nothing is
    comparable."""
    from pagedattn.benchmarks.compare import (
        Basis,
        changes,
        differing_environment,
        exit_code,
        print_changes,
    )

    console = _console()
    try:
        reports = [_read(path) for path in (old, new)]
        found = changes(*reports, basis=_member("by", Basis, by), tolerance=tolerance)
        differences = differing_environment(*reports)
    except (OSError, ValueError) as error:
        fail(str(error))
    for line in differences:
        console.print(f"[yellow]differs[/] {line}", highlight=False)
    print_changes(found, console)
    code = exit_code(found)
    if code == 2:
        fail("no row was timed on the same device in both reports")
    raise typer.Exit(code)


def _sort_words(words: Sequence[str], given: Sequence[str]) -> tuple[list[str], list[str]]:
    """(phases, backends). An option takes one value: `--backend A B` leaves B among the words."""
    phases = [word for word in words if word in PHASES] or ["decode"]
    names = [name for part in given for name in part.split(",") if name]
    rest = [word for word in words if word not in PHASES]
    if rest and not names:
        raise typer.BadParameter(
            f"{rest[0]!r} is none of {', '.join(PHASES)}; name backends with --backend"
        )
    return list(dict.fromkeys(phases)), [*names, *rest]


def _sizes(text: str) -> list[int]:
    """ "1k,4k" -> [1024, 4096]"""
    sizes = [parse_size(part.strip()) for part in text.split(",")]
    if 0 in sizes:
        raise typer.BadParameter(f"{text!r}: every size must be at least 1")
    return sizes


def _ready() -> list[str]:
    from pagedattn import registry

    return [row.name for row in registry.backends() if row.state is registry.State.READY]


def _set_threads(threads: int) -> None:
    import torch

    if threads < 1:
        raise ValueError(f"threads={threads} is below 1")
    torch.set_num_threads(threads)


def _workloads(
    *,
    phases: Sequence[str],
    batches: Sequence[int],
    contexts: Sequence[int],
    query_lens: Sequence[int] | None,
    shape: str,
    dtype: str,
    block_size: int,
    layout: str,
    kv_quant: str,
    kv_dtype: str | None,
    window: int | None,
    softcap: float | None,
    placement: str,
) -> list[Workload]:
    """Every combination that was asked for."""
    import dataclasses

    from pagedattn.benchmarks import workload as make
    from pagedattn.benchmarks.shapes import parse_shape
    from pagedattn.spec import AttentionSpec, KVQuant, Layout

    heads = parse_shape(shape)
    quant = _member("kv-quant", KVQuant, kv_quant)
    if query_lens and phases == ["decode"]:
        raise typer.BadParameter("--query-len is for prefill and mixed; a decode step has one row")
    if kv_dtype is not None and quant is KVQuant.NONE:
        raise typer.BadParameter("--kv-dtype needs --kv-quant: only a quantised cache is 8-bit")
    spec = AttentionSpec(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        head_dim_v=heads.head_dim_v,
        shared_kv=heads.shared_kv,
        block_size=block_size,
        dtype=parse_dtype(dtype),
        kv_dtype=parse_dtype(dtype if quant is KVQuant.NONE else kv_dtype or "fp8"),
        kv_quant=quant,
        layout=_member("layout", Layout, layout),
        window=(window, None),
        softcap=softcap,
        scale=heads.head_dim**-0.5,
    )
    where = _member("placement", make.Placement, placement)
    found = []
    for phase in phases:
        for b in batches:
            for n in contexts:
                if phase == "decode":
                    decode_spec = dataclasses.replace(spec, max_query_len=1)
                    found.append(make.decode(decode_spec, batch=b, context=n))
                    continue
                of = make.prefill if phase == "prefill" else make.mixed
                default = n if phase == "prefill" else min(512, n)
                for rows in query_lens or [default]:
                    found.append(of(spec, batch=b, context=n, query_len=rows))
    return [dataclasses.replace(w, placement=where) for w in found]


def _member(option: str, options: type[E], text: str) -> E:
    """The member of an enum by name, in any case."""
    for member in options:
        if member.name == text.upper():
            return member
    names = ", ".join(member.name.lower() for member in options)
    raise typer.BadParameter(f"--{option} {text!r} is not one of {names}")


def _console(*, stderr: bool = False) -> Console:
    """The terminal's width on a terminal; room for every column in a file or a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr when that is a terminal, nothing otherwise."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bars:
        bar = bars.add_task("preparing", total=None)

        def update(what: str, done: int, total: int) -> None:
            bars.update(bar, description=what, completed=done, total=total)

        yield update


def _write(path: Path | None, make: Callable[[], str]) -> None:
    if path == Path("-"):
        sys.stdout.write(make())
    elif path:
        path.write_text(make(), encoding="utf-8")


def _read(path: Path) -> Report:
    from pagedattn.benchmarks.results import Report

    return Report.from_json(path.read_text(encoding="utf-8"), source=str(path))
