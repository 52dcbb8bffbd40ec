"""Reads AMD assembly: registers, scratch, spills, shared memory, matrix instructions, loads."""

from __future__ import annotations

import re
from collections import Counter

from pagedattn.conformance.compile.usage import Usage

__all__ = ["read"]

_LOAD = re.compile(r"\b(?:global|buffer|flat)_load_(?:lds_)?(dwordx4|dwordx3|dwordx2|dword|\w+)")
_WIDTHS = {"dwordx4": 128, "dwordx3": 96, "dwordx2": 64, "dword": 32}


def read(assembly: str, *, shared: int) -> Usage:
    """Usage of the one kernel in `assembly`; `shared` as Triton's metadata has it, in bytes.

    Scalar registers that are kept in lanes of vector registers do not touch memory and are no
    spills here; scratch memory is."""
    widths: Counter[int] = Counter()
    for kind in _LOAD.findall(assembly):
        widths[_width(kind)] += 1
    return Usage(
        registers=_number("vgpr_count", assembly),  # accumulation registers are part of them
        shared=max(shared, _number("group_segment_fixed_size", assembly)),
        stack=_number("private_segment_fixed_size", assembly),
        spills=_number("vgpr_spill_count", assembly),
        mma=dict(Counter(re.findall(r"\b(v_mfma_\w+|v_smfmac_\w+)", assembly))),
        loads=dict(widths),
    )


def _width(kind: str) -> int:
    if kind in _WIDTHS:
        return _WIDTHS[kind]
    return 8 if "byte" in kind else 16


def _number(key: str, assembly: str) -> int:
    match = re.search(rf"\.{key}:\s+(\d+)", assembly)
    if match is None:
        raise ValueError(f"no .{key} in the assembly of {len(assembly)} characters")
    return int(match[1])
