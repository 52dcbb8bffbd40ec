"""`pagedattn audit`. Everything heavy is imported when the command runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pagedattn.benchmarks.audit import options
from pagedattn.cli.output import fail, warn
from pagedattn.cli.spec_options import parse_size

__all__ = ["audit"]


def audit(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TRACE] [NAME]...",
            help="Trace file: CSV (TIMESTAMP, ContextTokens, GeneratedTokens) or JSONL (timestamp, "
            "input_length, output_length, hash_ids). Without one, a trace is made up. Names after "
            "--allocator NAME or --policy NAME are allocators and policies too.",
        ),
    ] = None,
    allocator: Annotated[
        list[str] | None,
        typer.Option(help="Allocator to replay; more may follow. Default: every ready one."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Eviction policy; more may follow. Default: each allocator's own, and every ready "
            "one in the prefix table."
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="fixed, replay or prefix; may be repeated. Default: all that the trace allows.",
        ),
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory of the pool, e.g. 16GiB.")] = "16GiB",
    token_bytes: Annotated[
        int, typer.Option(help="KV bytes of a token (the default: Llama-3-8B in bfloat16).")
    ] = 131_072,
    num_blocks: Annotated[
        int | None, typer.Option(help="Blocks of the pool, instead of --memory.")
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(help="Tokens of a block (default: the trace's hash block, else 16)."),
    ] = None,
    max_len: Annotated[
        str | None,
        typer.Option(
            help="Longest sequence that the server takes, e.g. 4k; reserving allocators reserve it "
            "(default: the power of two that holds the longest request that the pool can hold)."
        ),
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="closed: a closed loop of --clients; trace: at the trace's times.")
    ] = "closed",
    clients: Annotated[
        int, typer.Option(help="Clients of the closed loop; 0: as many as requests.")
    ] = 0,
    speed: Annotated[float, typer.Option(help="With --arrivals trace: this much faster.")] = 1.0,
    max_running: Annotated[int, typer.Option(help="Requests running at once; 0: no limit.")] = 0,
    step_ms: Annotated[float, typer.Option(help="Milliseconds of a decode step.")] = 25.0,
    prefill_rate: Annotated[
        float, typer.Option(help="Prompt tokens computed per second.")
    ] = 20_000.0,
    watermark: Annotated[
        float, typer.Option(help="Part of the pool that paged admission leaves free.")
    ] = 0.01,
    resolution: Annotated[
        str,
        typer.Option(
            help="block: allocators see whole blocks, fast; token: every token. Equal results, "
            "host times aside."
        ),
    ] = "block",
    reserve: Annotated[
        str, typer.Option(help="Reservations of the fixed table.")
    ] = "2048,4096,8192",
    page: Annotated[str, typer.Option(help="Block sizes of the fixed table.")] = "16,32,128",
    cache_blocks: Annotated[
        str, typer.Option(help="Cache sizes of the prefix table, in hash blocks.")
    ] = "1000,3000,10000,30000",
    hash_block: Annotated[int, typer.Option(help="Tokens per entry of hash_ids.")] = 512,
    limit: Annotated[int | None, typer.Option(help="Use only the first N requests.")] = None,
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Leave corrupt lines out and count them.")
    ] = False,
    requests: Annotated[int, typer.Option(help="Requests of the made-up trace.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the made-up trace.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything as JSON; - is stdout.")
    ] = None,
    md_file: Annotated[
        Path | None, typer.Option("--md", help="Write the tables as Markdown, host times left out.")
    ] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Write a picture: .svg, .png (needs matplotlib).")
    ] = None,
) -> None:
    """Replay a trace of requests through KV allocators at equal memory, in simulated time.

    Exit code 1 when an allocator fails, 2 when there is nothing to audit."""
    from rich.console import Console

    from pagedattn.benchmarks.audit import run
    from pagedattn.benchmarks.audit.plot import require_plotting, save_plot
    from pagedattn.benchmarks.audit.report import markdown, print_audit

    stream = sys.stderr if json_file == Path("-") else sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else 160)
    try:
        path, allocators, policies = options.sort_words(words or [], allocator or [], policy or [])
        parts = options.chosen_parts(part or [])
        to_stdout = json_file == Path("-")
        options.check_files([None if to_stdout else json_file, md_file, plot_file])
        for problem in options.without_effect(_given(context), path, arrivals):
            warn(problem)
        if plot_file:
            require_plotting(plot_file)
            if "replay" not in parts:
                raise ValueError("--plot shows the replay; add --only replay")
        trace = options.load_trace(path, skip_bad_lines, hash_block, limit, requests, seed)
        if block_size is None:
            block_size = trace.hash_block if path and trace.hash_block else 16
        if num_blocks is None:
            num_blocks = options.pool_blocks(memory, token_bytes, block_size)
        server = options.make_server(
            trace,
            num_blocks=num_blocks,
            block_size=block_size,
            max_len=None if max_len is None else parse_size(max_len),
            unit=options.one_of("resolution", resolution, {"block": block_size, "token": 1}),
            timed=options.one_of("arrivals", arrivals, {"closed": False, "trace": True}),
            clients=clients,
            speed=speed,
            max_running=max_running,
            step_seconds=step_ms / 1000,
            prefill_rate=prefill_rate,
            watermark=watermark,
        )
        replayed, cached = options.chosen_contenders(allocators, policies)
        with _progress() as progress:
            result = run.audit(
                trace,
                server,
                replayed=replayed if "replay" in parts else (),
                cached=cached if "prefix" in parts else (),
                reserve=options.sizes("reserve", reserve) if "fixed" in parts else (),
                page=options.sizes("page", page) if "fixed" in parts else (),
                cache_blocks=options.sizes("cache-blocks", cache_blocks),
                progress=progress,
            )
        print_audit(result, console)
        if json_file == Path("-"):
            sys.stdout.write(result.to_json())
        elif json_file:
            json_file.write_text(result.to_json(), encoding="utf-8")
        failed = any(row.failure for row in result.replays)
        picture = plot_file if plot_file and any(row.points for row in result.replays) else None
        if picture:
            save_plot(result, picture)
        if md_file:
            command = _command(context, path, allocators, policies)
            text = markdown(result, command, picture.name if picture else None)
            md_file.write_text(text, encoding="utf-8")
    except (LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        fail(str(error))
    if not (result.fixed or result.replays or result.cache):
        fail("nothing to audit: the trace has no hash ids, which the prefix table needs")
    if failed:
        raise typer.Exit(1)


def _given(context: typer.Context) -> set[str]:
    """Parameters that the command line names."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def _command(
    context: typer.Context, path: Path | None, allocators: Sequence[str], policies: Sequence[str]
) -> str:
    """The command line of this call: what was named, and options that are not at their defaults."""
    parts = ["pagedattn", "audit", *([str(path)] if path else [])]
    parts += [x for name in allocators for x in ("--allocator", name)]
    parts += [x for name in policies for x in ("--policy", name)]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "", parameter.default)
        if parameter.name in ("words", "allocator", "policy") or value == parameter.default:
            continue
        option = max(parameter.opts, key=len)
        for item in value if isinstance(value, list | tuple) else [value]:
            parts += [option] if item is True else [option, str(item)]
    return shlex.join(parts)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr when that is a terminal, nothing otherwise."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bars:
        bar = bars.add_task("reading", total=None)

        def update(what: str, done: int, total: int) -> None:
            bars.update(bar, description=what, completed=done, total=total or None)

        yield update
