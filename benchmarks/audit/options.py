"""What the options of `pagedattn audit` mean. Raises ValueError saying what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pagedattn.cli.spec_options import parse_size

if TYPE_CHECKING:
    from pagedattn.benchmarks.audit.contender import Contender
    from pagedattn.benchmarks.audit.server import Server
    from pagedattn.benchmarks.audit.trace import Trace

__all__ = [
    "check_files",
    "chosen_contenders",
    "chosen_parts",
    "load_trace",
    "make_server",
    "one_of",
    "pool_blocks",
    "sizes",
    "sort_words",
    "without_effect",
]

T = TypeVar("T")

MAX_REQUESTS = 10_000_000  # of a made-up trace, which is kept in memory
PARTS = ("fixed", "replay", "prefix")


def sort_words(
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
    for kind, parts in (("allocator", allocators), ("policy", policies)):
        if parts and not named[kind]:
            raise ValueError(f"--{kind} {','.join(parts)!r} names none")
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


def chosen_parts(asked: Sequence[str]) -> set[str]:
    """The parts that --only names; all by default."""
    found = {name for item in asked for name in item.split(",")} or set(PARTS)
    for name in found - set(PARTS):
        raise ValueError(f"--only {name!r} is not one of {', '.join(PARTS)}")
    return found


def load_trace(
    path: Path | None,
    skip_bad_lines: bool,
    hash_block: int,
    limit: int | None,
    requests: int,
    seed: int,
) -> Trace:
    """The trace of a file, or a made-up one."""
    from pagedattn.benchmarks.audit.generator import generate
    from pagedattn.benchmarks.audit.readers import read_trace
    from pagedattn.benchmarks.audit.trace import TraceError

    if limit is not None and limit < 1:
        raise ValueError(f"--limit {limit} leaves no request")
    if hash_block < 1:
        raise ValueError(f"--hash-block is {hash_block}; at least 1 is required")
    if requests > MAX_REQUESTS:
        raise ValueError(f"--requests is {requests}; at most {MAX_REQUESTS} is possible")
    if path is None:
        return generate(min(requests, limit or requests), seed=seed)
    if not path.exists() or path.is_dir():
        raise ValueError(f"{path} is no trace file, and no allocator or policy that was asked for")
    try:
        return read_trace(path, skip_bad_lines=skip_bad_lines, hash_block=hash_block, limit=limit)
    except TraceError as error:
        hint = "correct the line, or replay the others with --skip-bad-lines"
        raise ValueError(f"{error}; {hint}") from None


def make_server(
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
    """The server; the default of max_len depends on the trace and the pool."""
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


def chosen_contenders(
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


def pool_blocks(memory: str, token_bytes: int, block_size: int) -> int:
    """Blocks that fit into `memory`: "16GiB", "16G"; powers of 1024."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", memory.strip().lower())
    if match is None or len(memory) > 40:
        raise ValueError(f"--memory {memory[:40]!r}: expected something like 16GiB or 800MiB")
    if token_bytes < 1:
        raise ValueError(f"--token-bytes is {token_bytes}; at least 1 is required")
    block = token_bytes * max(1, block_size)
    blocks = int(float(match[1]) * _UNITS[match[2]]) // block
    if not blocks:
        raise ValueError(f"--memory {memory} does not hold one block of {block} bytes")
    return blocks


def check_files(files: Sequence[Path | None]) -> None:
    """That what is written can be, before the work and not after it."""
    given = [file.absolute() for file in files if file is not None]
    for file in given:
        if file.is_dir():
            raise ValueError(f"cannot write {file}: it is a directory")
        if not file.parent.is_dir():
            raise ValueError(f"cannot write {file}: {file.parent} is no directory")
    if len(set(given)) < len(given):
        raise ValueError(f"cannot write {given[0]} twice; --json, --md and --plot need a file each")


def sizes(option: str, text: str) -> list[int]:
    """ "16,4k" -> [16, 4096]"""
    found = [parse_size(part.strip()) for part in text.split(",") if part.strip()]
    if min(found, default=1) < 1:
        raise ValueError(f"--{option} {text!r}: every size must be at least 1")
    return found


def one_of(option: str, text: str, options: dict[str, T]) -> T:
    """What `text` stands for."""
    if text not in options:
        raise ValueError(f"--{option} {text!r} is not one of {', '.join(options)}")
    return options[text]


def without_effect(given: set[str], path: Path | None, arrivals: str) -> list[str]:
    """Which of the options that were given change nothing beside the others, and why."""
    why = {
        "memory": "num_blocks" in given and "--num-blocks is given",
        "token_bytes": "num_blocks" in given and "--num-blocks is given",
        "clients": arrivals == "trace" and "requests come when the trace says",
        "speed": arrivals != "trace" and "it needs --arrivals trace",
        "requests": path is not None and "the trace is read from a file",
        "seed": path is not None and "the trace is read from a file",
        "hash_block": path is None and "the trace is made up",
        "skip_bad_lines": path is None and "the trace is made up",
    }
    return [
        f"--{name.replace('_', '-')} has no effect: {reason}"
        for name, reason in why.items()
        if reason and name in given
    ]
