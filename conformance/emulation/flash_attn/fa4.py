"""The adapter's calls of FlashAttention-4 compile for a GPU that is not here.

    make gates                            # or, in an environment of its own with torch:
    pip install --pre flash-attn-4
    python -m pagedattn.conformance.emulation.flash_attn.fa4

FlashAttention-4 is Python that compiles its kernels when they are called. Called with fake tensors
it stops before the launch: signatures, shapes, dtypes and strides are checked by the library and a
kernel for sm_90 is made, but nothing is computed.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pagedattn.backends.flash_attn.calls import CALLS, Call
from pagedattn.backends.flash_attn.limits import FA4
from pagedattn.backends.flash_attn.presence import Absent, functions
from pagedattn.backends.flash_attn.step import Step
from pagedattn.batch import KVCache
from pagedattn.spec import AttentionSpec, Layout, Mask

__all__ = ["calls", "compile_all", "main"]

TARGET = {
    "FLASH_ATTENTION_ARCH": "sm_90",
    "CUTE_DSL_ARCH": "sm_90a",
    "FLASH_ATTENTION_NUM_SMS": "132",
}


def calls() -> Iterator[tuple[AttentionSpec, int]]:
    """Specs and the most rows of a request, which is 2 for decode: one per thing that may make
    another kernel."""
    changes: tuple[tuple[int, dict[str, Any]], ...] = (
        (2, {}),
        (300, {}),
        (2, {"head_dim": 64, "dtype": torch.float16, "block_size": 32}),
        (300, {"head_dim": 64, "num_heads": 2}),
        (300, {"dtype": torch.float16, "head_dim": 96}),
        (3, {"mask": Mask.FULL, "return_lse": True, "num_heads": 2}),
        (3, {"softcap": 30.0, "layout": Layout.HND}),
        (2, {"sinks": True, "return_lse": True, "block_size": 1}),
    )
    for longest, change in changes:
        plain: dict[str, Any] = {
            "num_heads": 8,
            "num_kv_heads": 2,
            "head_dim": 128,
            "block_size": 16,
            "dtype": torch.bfloat16,
            "scale": 0.088,
        }
        yield AttentionSpec(**{**plain, **change}), longest


def compile_all() -> Iterator[tuple[AttentionSpec, int, float]]:
    """Each call and the seconds that its kernel took. Raises Absent and the library's errors."""
    os.environ.update(TARGET)  # read when the library is imported
    found = functions(FA4)
    for spec, longest in calls():
        start = time.perf_counter()
        with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _call(spec, longest, found)
        yield spec, longest, time.perf_counter() - start


def _call(spec: AttentionSpec, longest: int, found: Any) -> None:
    def lengths(n: int) -> torch.Tensor:
        return torch.empty(n, dtype=torch.int32, device="cuda")

    rows = 3 * longest - 1
    q = torch.empty(rows, spec.num_heads, spec.head_dim, dtype=spec.dtype, device="cuda")
    table = torch.empty(3, 4, dtype=torch.int32, device="cuda")
    most = 4 * spec.block_size + longest
    step = Step(rows, longest, most, False, lengths(4), table, lengths(4), lengths(3), lengths(3))
    sinks = torch.empty(spec.num_heads, device="cuda") if spec.sinks else None
    cache = KVCache.allocate(spec, 12, "cuda")
    out, lse = CALLS["fa4"](Call(found, spec, step, cache, q, torch.empty_like(q), sinks, None))
    if out is None or out.shape != q.shape or out.dtype != q.dtype:
        raise RuntimeError(f"out is {out}, expected [T, Hq, D] of {q.dtype}")
    if spec.return_lse and (lse is None or lse.shape != q.shape[:2]):
        raise RuntimeError(f"lse is {lse}, expected [T, Hq]")


def main() -> int:
    """Print a line per kernel; 0 when all were made, 2 when the library is not here."""
    try:
        for spec, longest, seconds in compile_all():
            options = [n for n in ("softcap", "sinks", "return_lse") if getattr(spec, n)]
            words = [spec.mask.value, spec.layout.value, *options]
            print(
                f"sm_90 {str(spec.dtype).removeprefix('torch.')} head_dim {spec.head_dim} group "
                f"{spec.group_size} page {spec.block_size} rows {longest} {' '.join(words)}: "
                f"{seconds:.1f} s"
            )
    except Absent as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
