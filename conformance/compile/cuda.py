"""The CUDA compile gate: every kernel that the cupy backend launches, compiled for real chips.

    python -m pagedattn.conformance.compile.cuda --check
    python -m pagedattn.conformance.compile.cuda --write docs/compile/cupy.md

The backend's own heuristics say which instantiations each model of specs.py needs on each chip;
NVRTC compiles them with the options that open() uses. It fails on spills and stack, on shared
memory above the chip's, on a product of 16-bit matrices without a tensor-core instruction, on a KV
path without 128-bit loads, and, with --check, on a table that is not what was found. No GPU, no
driver and no nvcc are needed.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pagedattn.backends.cupy.backend import CupyBackend
from pagedattn.backends.cupy.compiler import KernelCompileError, compile_source, nvrtc_version
from pagedattn.backends.cupy.heuristics import Kernel, choose
from pagedattn.backends.cupy.source import OPTIONS, source
from pagedattn.capabilities import check
from pagedattn.conformance.compile import sass
from pagedattn.conformance.compile.specs import MODEL_SPECS
from pagedattn.conformance.compile.table import cell, launched_by, lines_by_digest, with_models
from pagedattn.conformance.compile.usage import Chip, Usage, faults
from pagedattn.device import DeviceInfo

__all__ = ["CHIPS", "Job", "Outcome", "compiled", "document", "gate", "jobs_for", "main"]

TABLE = Path("docs/compile/cupy.md")

SHARED = {
    "sm_80": 166_912, "sm_86": 101_376, "sm_89": 101_376, "sm_90": 232_448,
    "sm_100": 232_448, "sm_120": 101_376,
}  # fmt: skip
CHIPS: Mapping[str, Chip] = MappingProxyType(
    {name: Chip(name, "cuda", int(name[3:]), 32, shared) for name, shared in SHARED.items()}
)

_RESOURCES = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\s+"
    r"ptxas info\s*: Used (\d+) registers(?:.*?, (\d+) bytes smem)?"
)


@dataclass(frozen=True)
class Job:
    """One instantiation on one chip; models: those that launch it, `shared` the most of them."""

    chip: Chip
    kernel: Kernel
    shared: int
    models: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Of everything that the compiler is given, and of what else the row says."""
        text = source(self.kernel.file)
        parts = [text, *OPTIONS, self.kernel.name, self.chip.name, repr(nvrtc_version())]
        parts += [str(self.shared), *self.models]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Row:
    """What became of a job: usage of the kernel, 128-bit loads, and what is wrong."""

    job: Job
    usage: Usage
    faults: tuple[str, ...]

    @property
    def line(self) -> str:
        usage, job = self.usage, self.job
        name = job.kernel.name.removeprefix("attention_").replace("_kernel", "")
        cells = [
            cell(name),
            str(usage.registers),
            str(usage.spills),
            f"{usage.shared:,}",
            cell(usage.mma_kinds),
            str(usage.loads.get(128, 0)),
            launched_by(job.models),
            "fault" if self.faults else job.digest,
        ]
        return _line(cells)


def jobs_for(chip: Chip, models: Sequence[str]) -> tuple[list[Job], dict[str, str]]:
    """The instantiations that the models' ops load on a chip, and the models declined there."""
    info = DeviceInfo("cuda", sm=divmod(chip_number(chip), 10), shared_mem=chip.shared)
    found: dict[tuple[str, str], tuple[Kernel, int, list[str]]] = {}
    declined = {}
    for model in MODEL_SPECS:
        if model.name not in models:
            continue
        if refusals := check(CupyBackend(), model.spec, info):
            declined[model.name] = "; ".join(map(str, refusals))
            continue
        kernels = choose(model.spec, info, {})
        assert kernels is not None
        for kernel in kernels.all:
            key = kernel.file, kernel.name
            _, shared, names = found.setdefault(key, (kernel, 0, []))
            found[key] = kernel, max(shared, kernel.shared), [*names, model.name]
    jobs = [Job(chip, kernel, shared, tuple(names)) for kernel, shared, names in found.values()]
    return jobs, declined


def chip_number(chip: Chip) -> int:
    """90 of sm_90"""
    assert isinstance(chip.arch, int)
    return chip.arch


def compiled(job: Job) -> Row:
    """Compiles one kernel and reads the compiler's log and the SASS."""
    name, options = job.kernel.name, (*OPTIONS, "--ptxas-options=-v")
    try:
        binary = compile_source(
            source(job.kernel.file), options, (name,), job.chip.name, file=job.kernel.file
        )
    except KernelCompileError as error:
        return Row(job, Usage(registers=0, shared=0), (f"does not compile: {error.log[:400]}",))
    seen = sass.read(binary.cubin)[binary.symbols[name]]
    resources = _RESOURCES.search(binary.log)
    if resources is None:
        return Row(job, seen, (f"the compiler's log says nothing of resources: {binary.log}",))
    stack, stores, loads, registers = (int(resources[i]) for i in range(1, 5))
    usage = Usage(
        registers=registers,
        shared=job.shared + int(resources[5] or 0),
        stack=max(stack, seen.stack),
        spills=max(seen.spills, stores + loads),
        mma=seen.mma,
        loads=seen.loads,
    )
    tile = job.kernel.file == "prefill.cu"
    wrong = faults(usage, job.chip, mma=tile and "<float" not in name)
    wide = usage.loads.get(128, 0)
    if (wanted := _wide_loads(job.kernel)) > wide:
        wrong.append(
            f"{wide} loads of 128 bits where the copies of K and V need {wanted}: the rows' "
            "alignment is lost on the way"
        )
    return Row(job, usage, tuple(wrong))


def _wide_loads(kernel: Kernel) -> int:
    """128-bit loads without which a copy of K or V must be narrower: K and V in every stage of
    decode; K twice and V once in tiles, of which V may be a part of K."""
    return {"decode.cu": 6, "prefill.cu": 2, "write.cu": 1}.get(kernel.file, 0) * (
        "converted" not in kernel.name
    )


@dataclass(frozen=True)
class Outcome:
    """lines: the table by chip. rows: what was compiled now, the rest was known."""

    lines: dict[str, list[str]]
    declined: dict[str, dict[str, str]]
    rows: list[Row]


def gate(
    chips: Iterable[str],
    models: Sequence[str],
    *,
    workers: int = 2,
    known: Mapping[str, str] = MappingProxyType({}),
) -> Outcome:
    """Compiles the kernels of every model on every chip; `known` rows, by digest, are believed."""
    jobs, declined = {}, {}
    for chip in chips:
        jobs[chip], declined[chip] = jobs_for(CHIPS[chip], models)
    todo = [job for found in jobs.values() for job in found if job.digest not in known]
    with ThreadPoolExecutor(workers) as pool:  # NVRTC runs without the interpreter's lock
        rows = list(pool.map(compiled, todo))
    made = {row.job.digest: row.line for row in rows}
    lines = {
        chip: [made.get(job.digest) or with_models(known[job.digest], job.models) for job in found]
        for chip, found in jobs.items()
    }
    return Outcome(lines, declined, rows)


_ABOUT = """
Every kernel that the `cupy` backend loads for the {models} models of
`conformance/compile/specs.py`, compiled by NVRTC {version} without a GPU. Nothing here was run:
these are the compiler's figures.

- spills: bytes, and instructions that move registers to local memory and back. shared memory: bytes
  of a block, static and dynamic, the most of the models; the chips have {shared}.
- MMA: the matrix instructions used. 128-bit loads: instructions, straight to shared memory or
  through registers; a KV path without them fails.
- digest: of everything that the compiler was given; a row whose digest is still right is not
  compiled again.

Written by `python -m pagedattn.conformance.compile.cuda --write`; CI runs `--check`.
"""
_HEAD = (
    "kernel", "registers", "spills", "shared memory", "MMA", "128-bit loads", "launched by",
    "digest",
)  # fmt: skip


def document(found: Outcome, models: int) -> str:
    """The Markdown that --write writes and --check compares."""
    shared = ", ".join(f"{chip.shared:,} ({name})" for name, chip in CHIPS.items())
    version = ".".join(map(str, nvrtc_version()))
    about = _ABOUT.format(models=models, version=version, shared=shared).strip()
    text = ["# What the kernels of cupy compile to", "", about, ""]
    for chip, rows in found.lines.items():
        text += [f"## {chip}", "", f"{len(rows)} kernels.", ""]
        text += [_line(_HEAD), _line(["---"] * len(_HEAD)), *rows, ""]
        declined = [
            f"- Declined: {cell(m)} ({cell(why)})" for m, why in found.declined[chip].items()
        ]
        text += [*declined, ""] if declined else []
    return "\n".join(text).rstrip() + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every kernel is sound and the table is as it should be, else 1."""
    options = _parser().parse_args(arguments)
    models = [m.name for m in MODEL_SPECS]
    known_here = _supported()
    chips = [c for c in options.chips.split(",") if CHIPS[c].arch in known_here]
    table = options.check or options.write or TABLE
    text = table.read_text(encoding="utf-8") if table.is_file() else ""
    began = time.monotonic()
    found = gate(
        chips, models, workers=options.workers, known={} if options.all else lines_by_digest(text)
    )
    bad = [row for row in found.rows if row.faults]
    for row in bad:
        job = row.job
        print(f"FAILED {job.chip.name} {job.kernel.name}, of {', '.join(job.models)}")
        print(*(f"       {fault}" for fault in row.faults), sep="\n")
    count, seconds = sum(map(len, found.lines.values())), time.monotonic() - began
    print(f"{count} kernels, {len(found.rows)} compiled, {len(bad)} at fault, {seconds:.0f} s")
    new = document(found, len(models))
    if options.write:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(new, encoding="utf-8")
    if options.check and text != new:
        print(f"{options.check} is not what was found; write it anew with --write {options.check}")
        return 1
    return 1 if bad else 0


def _supported() -> set[int]:
    from cupy.cuda import nvrtc

    return set(nvrtc.getSupportedArchs())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pagedattn.conformance.compile.cuda")
    parser.add_argument(
        "--check", type=Path, nargs="?", const=TABLE, metavar="FILE", help=f"compare; {TABLE}"
    )
    parser.add_argument("--write", type=Path, nargs="?", const=TABLE, metavar="FILE")
    parser.add_argument("--chips", default=",".join(CHIPS), help="by default all: %(default)s")
    parser.add_argument("--all", action="store_true", help="compile also what the table knows")
    parser.add_argument("--workers", type=int, default=2, help="threads (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
