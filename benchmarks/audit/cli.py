"""`pagedattn audit`. Everything heavy is imported when the command runs."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pagedattn.cli.output import fail
from pagedattn.cli.spec_options import parse_size

if TYPE_CHECKING:
    from pagedattn.benchmarks.audit.contender import Contender
    from pagedattn.benchmarks.audit.server import Server
    from pagedattn.benchmarks.audit.trace import Trace

__all__ = ["audit"]

T = TypeVar("T")

PARTS = ("fixed", "replay", "prefix")


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
    limit: Annotated[int | None, typer.Option(help="Only the first so many requests.")] = None,
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
        path, allocators, policies = _sort_words(words or [], allocator or [], policy or [])
        parts = _parts(part or [])
        for file in (json_file, md_file, plot_file):
            if file and not file.absolute().parent.is_dir():
                raise ValueError(f"cannot write {file}: {file.absolute().parent} is no directory")
        if plot_file:
            require_plotting(plot_file)
            if "replay" not in parts:
                raise ValueError("--plot shows the replay; add --only replay")
        trace = _trace(path, skip_bad_lines, hash_block, limit, requests, seed)
        if block_size is None:
            block_size = trace.hash_block if path and trace.hash_block else 16
        if num_blocks is None:
            num_blocks = _memory(memory) // max(1, token_bytes * block_size)
        server = _server(
            trace,
            num_blocks=num_blocks,
            block_size=block_size,
            max_len=parse_size(max_len) if max_len else None,
            unit=_one_of("resolution", resolution, {"block": block_size, "token": 1}),
            timed=_one_of("arrivals", arrivals, {"closed": False, "trace": True}),
            clients=clients,
            speed=speed,
            max_running=max_running,
            step_seconds=step_ms / 1000,
            prefill_rate=prefill_rate,
            watermark=watermark,
        )
        replayed, cached = _contenders(allocators, policies)
        with _progress() as progress:
            result = run.audit(
                trace,
                server,
                replayed=replayed if "replay" in parts else (),
                cached=cached if "prefix" in parts else (),
                reserve=_sizes("reserve", reserve) if "fixed" in parts else (),
                page=_sizes("page", page) if "fixed" in parts else (),
                cache_blocks=_sizes("cache-blocks", cache_blocks),
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


def _sort_words(
    words: Sequence[str], allocators: Sequence[str], policies: Sequence[str]
) -> tuple[Path | None, list[str], list[str]]:
    """(trace, allocators, policies). An option takes one value: `--allocator A B` leaves B among
    the words, where its name tells what it is; the one word that names neither is the trace."""
    from pagedattn import registry

    named = {
        "allocator": [name for part in allocators for name in part.split(",") if name],
        "policy": [name for part in policies for name in part.split(",") if name],
    }
    known = {
        "allocator": {row.name for row in registry.allocators()},
        "policy": {row.name for row in registry.policies()},
    }
    files = []
    for word in words:
        kinds = [kind for kind in named if named[kind] and word in known[kind]]
        if kinds and not Path(word).exists():
            named[kinds[0]].append(word)
        else:
            files.append(word)
    if len(files) > 1:
        raise ValueError(
            f"{', '.join(map(repr, files))}: only one of them can be the trace; the others are no "
            "allocator or policy that follows --allocator or --policy"
        )
    unique = {kind: list(dict.fromkeys(names)) for kind, names in named.items()}
    return Path(files[0]) if files else None, unique["allocator"], unique["policy"]


def _parts(asked: Sequence[str]) -> set[str]:
    found = {name for item in asked for name in item.split(",")} or set(PARTS)
    for name in found - set(PARTS):
        raise ValueError(f"--only {name!r} is not one of {', '.join(PARTS)}")
    return found


def _trace(
    path: Path | None,
    skip_bad_lines: bool,
    hash_block: int,
    limit: int | None,
    requests: int,
    seed: int,
) -> Trace:
    from pagedattn.benchmarks.audit.generator import generate
    from pagedattn.benchmarks.audit.readers import read_trace
    from pagedattn.benchmarks.audit.trace import TraceError

    if limit is not None and limit < 1:
        raise ValueError(f"--limit {limit} leaves no request")
    if hash_block < 1:
        raise ValueError(f"--hash-block is {hash_block}; at least 1 is required")
    if path is None:
        return generate(min(requests, limit or requests), seed=seed)
    if not path.is_file():
        raise ValueError(f"{path} is no trace file, and no allocator or policy that was asked for")
    try:
        return read_trace(path, skip_bad_lines=skip_bad_lines, hash_block=hash_block, limit=limit)
    except TraceError as error:
        hint = "correct the line, or replay the others with --skip-bad-lines"
        raise ValueError(f"{error}; {hint}") from None


def _server(
    trace: Trace,
    *,
    num_blocks: int,
    block_size: int,
    max_len: int | None,
    unit: int,
    timed: bool,
    clients: int,
    speed: float,
    max_running: int,
    step_seconds: float,
    prefill_rate: float,
    watermark: float,
) -> Server:
    from pagedattn.benchmarks.audit.server import Server

    pool = num_blocks * block_size
    if max_len is None:
        longest = max((r.total for r in trace.requests if r.total <= pool), default=1)
        max_len = min(1 << (longest - 1).bit_length(), max(1, pool))
    return Server(
        num_blocks=num_blocks,
        block_size=block_size,
        max_len=max_len,
        unit=unit,
        timed=timed,
        clients=clients,
        speed=speed,
        max_running=max_running,
        step_seconds=step_seconds,
        prefill_rate=prefill_rate,
        watermark=watermark,
    )


def _contenders(
    allocators: Sequence[str], policies: Sequence[str]
) -> tuple[list[Contender], list[Contender]]:
    """Those to replay and those whose prefixes are counted."""
    from pagedattn import registry
    from pagedattn.benchmarks.audit.contender import contenders

    def ready(rows: Sequence[registry.Row]) -> list[str]:
        return [row.name for row in rows if row.state is registry.State.READY]

    names = list(allocators) or ready(registry.allocators())
    every = list(policies) or ready(registry.policies())
    return contenders(names, policies), contenders(names, every)


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def _memory(text: str) -> int:
    """ "16GiB", "16G" -> bytes; powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or len(text) > 40:
        raise ValueError(f"--memory {text!r}: expected something like 16GiB or 800MiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _sizes(option: str, text: str) -> list[int]:
    sizes = [parse_size(part.strip()) for part in text.split(",") if part.strip()]
    if min(sizes, default=1) < 1:
        raise ValueError(f"--{option} {text!r}: every size must be at least 1")
    return sizes


def _one_of(option: str, text: str, options: dict[str, T]) -> T:
    if text not in options:
        raise ValueError(f"--{option} {text!r} is not one of {', '.join(options)}")
    return options[text]


def _command(
    context: typer.Context, path: Path | None, allocators: Sequence[str], policies: Sequence[str]
) -> str:
    """The command line of this call: what was named, and options that are not at their defaults."""
    parts = ["pagedattn", "audit", *([str(path)] if path else [])]
    parts += [x for name in allocators for x in ("--allocator", name)]
    parts += [x for name in policies for x in ("--policy", name)]
    for parameter in context.command.params:
        value = context.params[parameter.name or ""]
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
