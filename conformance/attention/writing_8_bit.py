"""write() into 8-bit caches: every format and kind of scale, other dtypes and widths, and numbers
at the ends of their range."""

from __future__ import annotations

from typing import Any

import torch

from pagedattn.conformance.attention.writing import Shape, write_case
from pagedattn.conformance.case import Case
from pagedattn.spec import KVQuant, Layout

__all__ = ["CASES", "QUANTISED"]

QUANTISED: tuple[tuple[str, dict[str, Any]], ...] = tuple(
    (f"{name}/{quantum.value.replace('_', '-')}", {"kv_dtype": dtype, "kv_quant": quantum})
    for name, dtype in (
        ("int8", torch.int8),
        ("fp8-e4m3", torch.float8_e4m3fn),
        ("fp8-e5m2", torch.float8_e5m2),
    )
    for quantum in (KVQuant.PER_TENSOR, KVQuant.PER_HEAD, KVQuant.PER_TOKEN_HEAD)
) + tuple(
    (f"{name}/per-tensor", {"kv_dtype": dtype, "kv_quant": KVQuant.PER_TENSOR})
    for name, dtype in (
        ("fp8-e4m3fnuz", torch.float8_e4m3fnuz),
        ("fp8-e5m2fnuz", torch.float8_e5m2fnuz),
    )
)

PAST_THE_END = {torch.float8_e5m2: 2000.0, torch.float8_e5m2fnuz: 2000.0}
"""Spread of values, many of which saturate; 40 for the other formats."""


def _cases() -> list[Case]:
    cases = []

    def add(id: str, shape: Shape, wanted: dict[str, Any]) -> None:
        cases.append(write_case(id, shape, wanted, "quantisation"))

    for id, wanted in QUANTISED:
        spread = PAST_THE_END.get(wanted["kv_dtype"], 40.0)
        add(f"{id}/normal", Shape(slots="skips", padding=2), wanted)
        add(f"{id}/saturated", Shape(spread=spread), wanted)
        add(f"{id}/borders", Shape(slots="borders"), wanted)
        add(f"{id}/alternate", Shape(slots="alternate"), wanted)
        for dtype in (torch.float16, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            add(f"{id}/{name}", Shape(rows=("plain", "fused")), {**wanted, "dtype": dtype})
        if wanted["kv_quant"] is not KVQuant.PER_TOKEN_HEAD:
            add(f"{id}/ties", Shape(ties=True), wanted)
            add(f"{id}/endless", Shape(endless=True), wanted)
            continue
        # max|x| is over all columns, of K and of V, and of any size.
        for key, dim, dim_v in (("dim-80", 80, 80), ("dim-128", 128, 128), ("v-128", 64, 128)):
            add(f"{id}/{key}", Shape(), {**wanted, "head_dim": dim, "head_dim_v": dim_v})
        add(f"{id}/tiny", Shape(spread=1e-20), wanted)
        add(f"{id}/huge", Shape(spread=1e20), wanted)
    hnd = {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_TOKEN_HEAD, "layout": Layout.HND}
    add("int8/hnd", Shape(), hnd)
    return cases


CASES = _cases()
