"""The Triton compile gate: every kernel variant that a backend launches, compiled for real chips.

    python -m pagedattn.conformance.compile.triton --check docs/compile/triton.md
    python -m pagedattn.conformance.compile.triton --write docs/compile/triton.md

Each model of specs.py is opened by the backend's own open(), on a made-up GPU of each chip: what
open() compiles is what run() launches. It fails on spills, on shared memory above the chip's, on a
product of matrices without a tensor-core instruction, on narrow loads of a cache whose rows are
aligned, and, with --check, on a table that is not what was found. No GPU and no driver are needed:
Triton's wheel holds the compilers. Kernels are not interpreted here: TRITON_INTERPRET must be
unset.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pagedattn.conformance.compile.judging import compiled
from pagedattn.conformance.compile.recording import Job, record
from pagedattn.conformance.compile.specs import MODEL_SPECS
from pagedattn.conformance.compile.table import (
    Row,
    lines_by_digest,
    markdown,
    spread,
    with_models,
)
from pagedattn.conformance.compile.usage import CHIPS

__all__ = ["Outcome", "gate", "main"]

TABLE = Path("docs/compile/triton.md")


# -- all variants, in several processes ----------------------------------------------------------

Name = tuple[str, str]  # chip, key of the job
_jobs: dict[Name, Job] = {}


def _start_worker(target: str, chips: list[str], models: list[str]) -> None:
    """Every worker opens the ops itself: kernels do not travel between processes."""
    _jobs.update(_record_all(target, chips, models)[0])


def _compile_one(name: Name) -> Row:
    return compiled(_jobs[name])


def _record_all(
    target: str, chips: Sequence[str], models: Sequence[str]
) -> tuple[dict[Name, Job], dict[str, dict[str, str]]]:
    jobs: dict[Name, Job] = {}
    refused = {}
    chosen = [m for m in MODEL_SPECS if m.name in models]
    for chip in chips:
        found, refused[chip] = record(target, CHIPS[chip], chosen)
        jobs |= {(chip, job.key): job for job in found}
    return jobs, refused


@dataclass(frozen=True)
class Outcome:
    """What a gate found. lines: the table by chip. rows: what was compiled, the rest was known."""

    lines: dict[str, list[str]]
    refused: dict[str, dict[str, str]]
    rows: list[Row]


def gate(
    target: str,
    chips: Sequence[str],
    models: Sequence[str],
    *,
    workers: int = 2,
    known: Mapping[str, str] = MappingProxyType({}),
    sample: int = 0,
) -> Outcome:
    """Compiles the variants of every model on every chip.

    known   rows by digest that need not be compiled again     sample  so many of them are anyway"""
    jobs, refused = _record_all(target, chips, models)
    names = list(jobs)
    digests = {name: job.digest for name, job in jobs.items()}
    old = sorted((n for n in names if digests[n] in known), key=lambda n: digests[n])
    again = spread(old, sample)
    todo = [n for n in names if n in again or n not in old]
    arguments = (target, list(chips), list(models))
    made: dict[Name, Row] = {}
    if todo:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(workers, len(todo)), spawn, _start_worker, arguments) as pool:
            made = dict(zip(todo, pool.map(_compile_one, todo), strict=True))
    lines = {
        chip: [
            made[n].line if n in made else with_models(known[digests[n]], jobs[n].models)
            for n in names
            if n[0] == chip
        ]
        for chip in chips
    }
    return Outcome(lines, refused, list(made.values()))


_ABOUT = """
Every kernel variant that the `{backend}` backend compiles in open() for the {models} models of
`conformance/compile/specs.py`, compiled by Triton {version} without a GPU. Nothing here was run:
these are the compiler's figures.

- registers: of a thread. spills: instructions that move them to memory and back. shared memory:
  bytes of a program; the chips have {shared}.
- MMA: the matrix instructions used. loads: width of the loads of K and V in the attention kernel,
  in others that of the loads that move most bytes.
- variant: types of the first two tensors, head size, tile (M packed query rows, N keys), warps,
  stages; unaligned: for rows that do not start on 16 bytes.
- digest: of everything that the compiler was given; a row whose digest is still right is not
  compiled again, but for a sample.

Written by `python -m pagedattn.conformance.compile.triton --write`; CI runs `--check`.
"""


def document(target: str, found: Outcome, models: Sequence[str]) -> str:
    """The Markdown that --write writes and --check compares."""
    import triton

    shared = ", ".join(f"{chip.shared:,} ({name})" for name, chip in CHIPS.items())
    about = _ABOUT.format(
        backend=target, models=len(models), version=triton.__version__, shared=shared
    )
    title = f"What the kernels of {target} compile to"
    return markdown(found.lines, found.refused, title=title, about=about)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every kernel is sound and the table is as it should be, else 1."""
    options = _parser().parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        print("TRITON_INTERPRET is set: nothing would be compiled; unset it", file=sys.stderr)
        return 1
    models = [m.name for m in MODEL_SPECS if options.models.lower() in m.name.lower()]
    chips = [name for name in CHIPS if name in options.chips.split(",")]
    file = options.check or options.write or TABLE
    table = file.read_text(encoding="utf-8") if file.is_file() else ""
    known = {} if options.all else lines_by_digest(table)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:  # so that everything is compiled now
        os.environ["TRITON_CACHE_DIR"] = cache
        found = gate(
            options.backend,
            chips,
            models,
            workers=options.workers,
            known=known,
            sample=options.sample if options.check else 0,
        )
    bad = [row for row in found.rows if row.faults]
    for row in bad:
        print(f"FAILED {row.chip} {row.kernel} ({row.variant}), of {', '.join(row.models)}")
        print(*(f"       {fault}" for fault in row.faults), sep="\n")
    count, seconds = sum(map(len, found.lines.values())), time.monotonic() - began
    print(f"{count} kernels, {len(found.rows)} compiled, {len(bad)} at fault, {seconds:.0f} s")
    text = document(options.backend, found, models)
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(text, encoding="utf-8")
    if options.check and table != text:
        print(f"{file} is not what was found; write it anew with --write {file}")
        return 1
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pagedattn.conformance.compile.triton")
    for name, verb in (("--check", "compare with"), ("--write", "write")):
        parser.add_argument(
            name,
            type=Path,
            nargs="?",
            const=TABLE,
            metavar="FILE",
            help=f"{verb} FILE (default {TABLE})",
        )
    parser.add_argument(
        "--backend",
        default="triton",
        help="a name, or module:Class; its op compiles its kernels by kernel.warmup() in open()",
    )
    parser.add_argument("--chips", default=",".join(CHIPS), help="by default all: %(default)s")
    parser.add_argument("--models", default="", help="part of a model's name; default: all")
    parser.add_argument(
        "--all", action="store_true", help="compile also what FILE knows by its digest"
    )
    parser.add_argument(
        "--sample",
        type=int,
        default=40,
        help="so many known variants are compiled by --check all the same (default %(default)s)",
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
