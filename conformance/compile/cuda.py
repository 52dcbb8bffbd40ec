"""The CUDA compile gate: every kernel that the cupy backend launches, compiled for real chips.

    python -m pagedattn.conformance.compile.cuda --check
    python -m pagedattn.conformance.compile.cuda --write docs/compile/cupy.md

Each layer of specs.py is opened by the backend's own open(), on a made-up GPU of each chip: what
that loads, NVRTC compiles here. It fails on spills and stack, on shared
memory above the chip's, on a product of 16-bit matrices without a tensor-core instruction, on wgmma
that the compiler had to serialise, on a KV path without 128-bit loads, and, with --check, on a
table that is not what was found. No GPU, no driver and no nvcc are needed.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pagedattn.backends.cupy.backend import CupyBackend, CupyWgmmaBackend
from pagedattn.backends.cupy.compiler import KernelCompileError, compile_source, nvrtc_version
from pagedattn.backends.cupy.heuristics import Kernel
from pagedattn.backends.cupy.source import OPTIONS, source
from pagedattn.capabilities import check
from pagedattn.conformance.compile import sass
from pagedattn.conformance.compile.opening import Loaded, loaded
from pagedattn.conformance.compile.specs import MIXED_SPECS, MODEL_SPECS
from pagedattn.conformance.compile.table import (
    cell,
    launched_by,
    line_of,
    lines_by_digest,
    markdown,
    spread,
    with_models,
)
from pagedattn.conformance.compile.usage import Chip, Usage, faults
from pagedattn.device import SHARED_MEM, DeviceInfo

__all__ = ["CHIPS", "Job", "Outcome", "compiled", "document", "gate", "jobs_for", "main"]

TABLE = Path("docs/compile/cupy.md")

CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        f"sm_{arch}": Chip(f"sm_{arch}", "cuda", arch, 32, SHARED_MEM[divmod(arch, 10)])
        for arch in (80, 86, 89, 90, 100, 120)
    }
)

_RESOURCES = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\s+"
    r"ptxas info\s*: Used (\d+) registers(?:.*?, (\d+) bytes smem)?"
)

LAYERS = (*MODEL_SPECS, *MIXED_SPECS)

OPENED: tuple[tuple[type[CupyBackend], Mapping[str, int]], ...] = (
    (CupyBackend, {}),
    (CupyWgmmaBackend, {}),
    (CupyWgmmaBackend, {"tile_rows": 64}),  # one warpgroup a block
)

# What ptxas says where it waits for a product at once or adds a fence: C7510 to C7519.
_WGMMA_NOTE = re.compile(r"\(C75\d\d\) [^\n]*")


@dataclass(frozen=True)
class Job:
    """One instantiation on one chip; models: those that launch it, `shared` the most of them."""

    chip: Chip
    kernel: Kernel
    shared: int
    models: tuple[str, ...]

    @property
    def arch(self) -> str:
        """As in NVRTC's -arch."""
        return self.chip.name + self.kernel.suffix

    @property
    def digest(self) -> str:
        """Of everything that the compiler is given, of what else the row says, and of the rules
        that it is judged by."""
        text = source(self.kernel.file)
        parts = [text, *OPTIONS, self.kernel.name, self.arch, repr(nvrtc_version())]
        parts += [str(self.shared), *self.models, _rules()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@functools.cache
def _rules() -> str:
    folder, names = Path(__file__).parent, ("cuda.py", "sass.py", "usage.py")
    return hashlib.sha256(b"".join((folder / n).read_bytes() for n in names)).hexdigest()


@dataclass(frozen=True)
class Compiled:
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
        return line_of(cells)


def jobs_for(chip: Chip, models: Sequence[str]) -> tuple[list[Job], dict[str, str]]:
    """The instantiations that the models' ops load on a chip, and the models declined there.

    Raises RuntimeError where open() gives the compiler something else than is compiled here."""
    info = DeviceInfo(
        "cuda", sm=divmod(chip_number(chip), 10), name=chip.name, shared_mem=chip.shared, real=True
    )
    found: dict[tuple[str, str], tuple[Kernel, int, dict[str, None]]] = {}
    declined = {}
    for backend, tuning in OPENED:
        for model in LAYERS:
            if model.name not in models:
                continue
            if refusals := check(backend(), model.spec, info):
                if backend is CupyBackend:
                    declined[model.name] = "; ".join(map(str, refusals))
                continue
            for given in loaded(backend, model, info, tuning):
                kernel = given.kernel
                if given != Loaded(kernel, source(kernel.file), OPTIONS, chip.name + kernel.suffix):
                    raise RuntimeError(f"open() compiles {kernel} in another way than this gate")
                key = kernel.file, kernel.name
                _, shared, names = found.setdefault(key, (kernel, 0, {}))
                found[key] = kernel, max(shared, kernel.shared), {**names, model.name: None}
    jobs = [Job(chip, kernel, shared, tuple(names)) for kernel, shared, names in found.values()]
    return jobs, declined


def chip_number(chip: Chip) -> int:
    """90 of sm_90"""
    assert isinstance(chip.arch, int)
    return chip.arch


def compiled(job: Job) -> Compiled:
    """Compiles one kernel and reads the compiler's log and the SASS."""
    name, options = job.kernel.name, (*OPTIONS, "--ptxas-options=-v")
    try:
        binary = compile_source(
            source(job.kernel.file), options, (name,), job.arch, file=job.kernel.file
        )
    except KernelCompileError as error:
        return Compiled(
            job, Usage(registers=0, shared=0), (f"does not compile: {error.log[:400]}",)
        )
    seen = sass.read(binary.cubin)[binary.symbols[name]]
    resources = _RESOURCES.search(binary.log)
    if resources is None:
        return Compiled(job, seen, (f"the compiler's log says nothing of resources: {binary.log}",))
    stack, stores, loads, registers = (int(resources[i]) for i in range(1, 5))
    usage = Usage(
        registers=registers,
        shared=job.shared + int(resources[5] or 0),
        stack=max(stack, seen.stack),
        spills=max(seen.spills, stores + loads),
        mma=seen.mma,
        loads=seen.loads,
    )
    tile = job.kernel.file.startswith("prefill")
    wrong = faults(usage, job.chip, mma=tile and "<float" not in name)
    wrong += _WGMMA_NOTE.findall(binary.log)
    if "wgmma" in name and not any(kind.startswith("HGMMA") for kind in usage.mma):
        wrong.append("no HGMMA instruction, although the kernel is written with wgmma")
    wide = usage.loads.get(128, 0)
    if (wanted := _wide_loads(job.kernel)) > wide:
        wrong.append(
            f"{wide} loads of 128 bits where the copies of K and V need {wanted}: the rows' "
            "alignment is lost on the way"
        )
    return Compiled(job, usage, tuple(wrong))


def _wide_loads(kernel: Kernel) -> int:
    """128-bit loads without which a copy of K or V must be narrower: K and V in every stage of
    decode; K twice and V once in tiles, of which V may be a part of K; with wgmma Q, K before the
    loop and K and V twice each."""
    wanted = {"decode.cu": 6, "prefill.cu": 2, "prefill_wgmma.cu": 6, "write.cu": 1}
    return wanted.get(kernel.file, 0) * ("converted" not in kernel.name)


@dataclass(frozen=True)
class Outcome:
    """lines: the table by chip. rows: what was compiled now, the rest was known."""

    lines: dict[str, list[str]]
    declined: dict[str, dict[str, str]]
    rows: list[Compiled]


def gate(
    chips: Iterable[str],
    models: Sequence[str],
    *,
    workers: int = 2,
    known: Mapping[str, str] = MappingProxyType({}),
    sample: int = 0,
) -> Outcome:
    """Compiles the kernels of every model on every chip.

    known   rows by digest that need not be compiled again     sample  so many of them are anyway"""
    jobs, declined = {}, {}
    for chip in chips:
        jobs[chip], declined[chip] = jobs_for(CHIPS[chip], models)
    everything = [job for found in jobs.values() for job in found]
    old = sorted((j for j in everything if j.digest in known), key=lambda job: job.digest)
    todo = [j for j in everything if j.digest not in known] + [*spread(old, sample)]
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
`conformance/compile/specs.py`, and for layers of no model that mix all options there, compiled by
NVRTC {version} without a GPU. Nothing here was run: these are the compiler's figures.

- spills: bytes, and instructions that move registers to local memory and back. shared memory: bytes
  of a block, static and dynamic, the most of the models; the chips have {shared}.
- MMA: the matrix instructions used; HGMMA is wgmma, of `cupy:wgmma`, compiled for sm_90a.
- 128-bit loads: instructions, straight to shared memory or through registers; a KV path without
  them fails.
- digest: of everything that the compiler was given; a row whose digest is still right is not
  compiled again, but for a sample.

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
    title = "What the kernels of cupy compile to"
    return markdown(found.lines, found.declined, title=title, about=about, head=_HEAD)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every kernel is sound and the table is as it should be, else 1."""
    options = _parser().parse_args(arguments)
    models = [m.name for m in LAYERS]
    known_here = _supported()
    chips = [c for c in options.chips.split(",") if CHIPS[c].arch in known_here]
    table = options.check or options.write or TABLE
    text = table.read_text(encoding="utf-8") if table.is_file() else ""
    began = time.monotonic()
    found = gate(
        chips,
        models,
        workers=options.workers,
        known={} if options.all else lines_by_digest(text),
        sample=options.sample if options.check else 0,
    )
    bad = [row for row in found.rows if row.faults]
    for row in bad:
        job = row.job
        print(f"FAILED {job.chip.name} {job.kernel.name}, of {', '.join(job.models)}")
        print(*(f"       {fault}" for fault in row.faults), sep="\n")
    count, seconds = sum(map(len, found.lines.values())), time.monotonic() - began
    print(f"{count} kernels, {len(found.rows)} compiled, {len(bad)} at fault, {seconds:.0f} s")
    new = document(found, len(MODEL_SPECS))
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
    parser.add_argument(
        "--sample",
        type=int,
        default=20,
        help="so many known kernels are compiled by --check all the same (default %(default)s)",
    )
    parser.add_argument("--workers", type=int, default=2, help="threads (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
