"""Compiles one Triton kernel variant and says what is wrong with what came out."""

from __future__ import annotations

import re
from typing import Any

from pagedattn.conformance.compile import amdgcn, sass
from pagedattn.conformance.compile.recording import Job, on_chip
from pagedattn.conformance.compile.table import Row
from pagedattn.conformance.compile.usage import Usage, faults

__all__ = ["compiled", "kv_loads", "needs_mma"]


def compiled(job: Job) -> Row:
    """Compiles one variant and reads what came out; a failure to compile is a fault."""
    on_chip(job.chip)
    try:
        made = job.kernel.run(*job.args, grid=(1,), warmup=True, **job.keywords)
    except Exception as error:  # whatever a compiler raises is a finding about the kernel
        text = f"does not compile: {type(error).__name__}: {str(error).strip()[:400]}"
        return _row(job, Usage(registers=0, shared=0), [text], 0)
    shared = made.metadata.shared
    if job.chip.backend == "hip":
        usage = amdgcn.read(made.asm["amdgcn"], shared=shared)
    else:
        usage = sass.read(made.asm["cubin"], shared=shared)[made.metadata.name]
    mma = needs_mma(made.asm["ttir"])
    if not mma or not job.aligned:
        return _row(job, usage, faults(usage, job.chip, mma=mma), usage.load_width)
    if (wanted := kv_loads(job)) is None:
        wrong = faults(usage, job.chip, mma=mma, load_width=128)
        return _row(job, usage, wrong, usage.load_width)
    wrong, (width, needed) = faults(usage, job.chip, mma=mma), wanted
    if usage.bytes_loaded(width) < needed:
        width = usage.load_width
        wrong.append(
            f"a lane needs {needed} bytes of q, K and V for a step, not all of them come in loads "
            f"of {wanted[0]} bits ({dict(usage.loads)}); look for a lost alignment hint"
        )
    return _row(job, usage, wrong, width)


def kv_loads(job: Job) -> tuple[int, int] | None:
    """(widest load of K that the tile has room for in bits, bytes of q, K and V that a lane loads
    in a step), from constants called as in the built-in backend; None when they are not there."""
    words, needed = job.keywords, {"D", "DV", "BLOCK_M", "BLOCK_N", "SHARED_KV"}
    if not needed <= words.keys():
        return None
    lanes = job.chip.warp * words["num_warps"]
    of_q, of_kv = (argument.dtype.itemsize for argument in job.args[:2])
    columns = words["D"] + (0 if words["SHARED_KV"] else words["DV"])
    of_k = words["BLOCK_N"] * words["D"] * of_kv // lanes
    total = words["BLOCK_M"] * words["D"] * of_q + words["BLOCK_N"] * columns * of_kv
    return min(128, 1 << (8 * of_k).bit_length() - 1), total // lanes


def _row(job: Job, usage: Usage, wrong: list[str], width: int) -> Row:
    types = [str(d).removeprefix("torch.") for d in dict.fromkeys(map(_dtype, job.args[:2])) if d]
    sizes = {
        "D": "head", "BLOCK_M": "M", "BLOCK_N": "N", "num_warps": "warps", "num_stages": "stages"
    }  # fmt: skip
    named = [f"{label} {job.keywords[k]}" for k, label in sizes.items() if k in job.keywords]
    return Row(
        chip=job.chip.name,
        kernel=job.kernel.fn.__name__,
        variant=", ".join([*types, *named, *([] if job.aligned else ["unaligned"])]),
        models=tuple(job.models),
        usage=usage,
        width=width,
        faults=tuple(wrong),
        digest=job.digest,
    )


def _dtype(argument: Any) -> Any:
    return getattr(argument, "dtype", None)


_DOT = re.compile(r"tt\.dot (.*)")
_NARROW = re.compile(r"tensor<[\dx]+x(?:f16|bf16|i8|f8\w+)")


def needs_mma(ttir: str) -> bool:
    """Whether the kernel multiplies matrices of a type that tensor cores take."""
    return any(_NARROW.search(d) or "= tf32" in d for d in _DOT.findall(ttir))
