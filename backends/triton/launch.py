"""The one place where kernels are launched, and where every variant of an op is listed.

A Launch holds a kernel, its constexprs and options; call() runs it on torch's current stream and
warmup() compiles it without a launch. Both pass the same keywords, so what open() compiled is what
run() needs: strides are int64 and unspecialised, and the only thing that a launch may choose is
ALIGN, 16 bytes or nothing, for which both variants exist.

The modules with kernels, and Triton with them, are imported when an op is opened.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedattn.backends.triton.heuristics import (
    CHUNK,
    Tile,
    compute_dtype,
    power_of_two,
    split_head,
    token_scales,
)
from pagedattn.spec import AttentionSpec, KVQuant, Mask
from pagedattn.write import qmax

__all__ = ["ALIGN_BYTES", "Launch", "Launches", "aligned", "build", "factor", "variants"]

ALIGN_BYTES = 16
"""Widest load and store of a lane."""


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel variant: constexprs and compile options are fixed, arguments are not."""

    kernel: Any
    constants: Mapping[str, Any]
    options: Mapping[str, int]

    def units(self, *strides: int) -> tuple[int, ...]:
        """Strides of q, out and new rows, in ALIGN elements."""
        return tuple(s // self.constants["ALIGN"] for s in strides)

    def pool_units(self, *strides: int) -> tuple[int, ...]:
        """Strides of the cache, in KV_ALIGN elements."""
        return tuple(s // self.constants["KV_ALIGN"] for s in strides)

    def __call__(self, programs: int, arguments: tuple[Any, ...]) -> None:
        self.kernel[(programs,)](*arguments, **self.constants, **self.options)

    def warmup(self, arguments: tuple[Any, ...]) -> Any:
        """Compile for the active target. Arguments: torch dtypes stand for pointers."""
        return self.kernel.warmup(*arguments, grid=(1,), **self.constants, **self.options)


@dataclass(frozen=True, eq=False)
class Launches:
    """What an op launches. tiles: per phase, by whether the strides are aligned."""

    tiles: tuple[Mapping[bool, Launch], ...]
    combines: tuple[Launch, ...]
    write: Mapping[bool, Launch]


def build(spec: AttentionSpec, tiles: tuple[Tile, ...]) -> Launches:
    """Every variant that the op of `spec` can launch."""
    return Launches(
        tuple({a: _tile(spec, tile, a) for a in (True, False)} for tile in tiles),
        tuple(_combine(spec, tile) for tile in tiles),
        {a: _write(spec, a) for a in (True, False)},
    )


def variants(spec: AttentionSpec, tiles: tuple[Tile, ...]) -> list[tuple[Launch, tuple[Any, ...]]]:
    """(launch, arguments for warmup) of all of them."""
    launches = build(spec, tiles)
    found = []
    for by_alignment in launches.tiles:
        found += [(launch, _tile_arguments(spec)) for launch in by_alignment.values()]
    found += [(launch, _combine_arguments(spec)) for launch in launches.combines]
    found += [(launch, _write_arguments(spec)) for launch in launches.write.values()]
    return found


def factor(spec: AttentionSpec) -> float:
    """What the kernel multiplies q.k by."""
    return spec.scale / spec.softcap if spec.softcap is not None else spec.scale * _unit(spec)


def aligned(*tensors: Tensor | None) -> bool:
    """Whether every row of every tensor starts on 16 bytes."""
    return all(
        t.data_ptr() % ALIGN_BYTES == 0
        and all(s * t.itemsize % ALIGN_BYTES == 0 for s in t.stride()[:-1])
        for t in tensors
        if t is not None
    )


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device; make it the op's."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def _unit(spec: AttentionSpec) -> float:
    return 1.0 if compute_dtype(spec) is torch.float32 else math.log2(math.e)


def _align(*dtypes: torch.dtype) -> int:
    """Elements in 16 bytes of the widest type, by which aligned strides of all are divisible."""
    return ALIGN_BYTES // max(d.itemsize for d in dtypes)


def _bound(value: int | None) -> int:
    return -1 if value is None else value


def _tile(spec: AttentionSpec, tile: Tile, is_aligned: bool) -> Launch:
    from pagedattn.backends.triton.tile import aligned_tile_kernel, unaligned_tile_kernel

    d0, d1 = split_head(spec.head_dim)
    constants = {
        "ALIGN": _align(spec.dtype, spec.out_dtype) if is_aligned else 1,
        "KV_ALIGN": _align(spec.kv_dtype) if is_aligned else 1,
        "HKV": spec.num_kv_heads,
        "GROUP": spec.group_size,
        "D": spec.head_dim,
        "DV": spec.head_dim_v,
        "D0": d0,
        "D1": d1,
        "DV_TILE": power_of_two(spec.head_dim_v, at_least=16),
        "BLOCK_SIZE": spec.block_size,
        "MASK": {Mask.CAUSAL: 0, Mask.FULL: 1, Mask.TREE: 2}[spec.mask],
        "LEFT": _bound(spec.window[0]),
        "RIGHT": _bound(spec.window[1]),
        "CAP": spec.softcap or 0.0,
        "SHARED_KV": spec.shared_kv,
        "SCALED": spec.kv_quant is not KVQuant.NONE,
        "TOKEN_SCALE": token_scales(spec),
        "FLOAT32": compute_dtype(spec) is torch.float32,
        "UNIT": _unit(spec),
        "CHUNK": CHUNK if spec.batch_invariant else 0,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
    }
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    if not is_aligned:  # narrow loads take many registers, and are not pipelined
        options = {"num_warps": tile.narrow_warps, "num_stages": 1}
        if not spec.batch_invariant:  # whose bits depend on the steps
            constants["BLOCK_N"] = 16
    kernel = aligned_tile_kernel if is_aligned else unaligned_tile_kernel
    return Launch(kernel, constants, options)


def _combine(spec: AttentionSpec, tile: Tile) -> Launch:
    from pagedattn.backends.triton.combine import attention_combine_kernel

    wide = power_of_two(spec.head_dim_v, at_least=16)
    constants = {
        "HKV": spec.num_kv_heads,
        "GROUP": spec.group_size,
        "DV": spec.head_dim_v,
        "DV_TILE": wide,
        "UNIT": _unit(spec),
        "IN_ORDER": spec.batch_invariant,
        "BLOCK_M": tile.block_m,
        "BLOCK_S": 16 if wide <= 256 else 8,
    }
    return Launch(attention_combine_kernel, constants, {"num_warps": 4, "num_stages": 2})


def _write(spec: AttentionSpec, is_aligned: bool) -> Launch:
    from pagedattn.backends.triton.write import aligned_write_kernel, unaligned_write_kernel

    constants = {
        "ALIGN": _align(spec.dtype) if is_aligned else 1,
        "KV_ALIGN": _align(spec.kv_dtype) if is_aligned else 1,
        "HKV": spec.num_kv_heads,
        "D": spec.head_dim,
        "DV": spec.head_dim_v,
        "D_TILE": power_of_two(spec.head_dim),
        "DV_TILE": power_of_two(spec.head_dim_v),
        "BLOCK_SIZE": spec.block_size,
        "TOKEN_SCALE": token_scales(spec),
        "LIMIT": 0.0 if spec.kv_quant is KVQuant.NONE else qmax(spec.kv_dtype),
        "INT8": spec.kv_dtype is torch.int8,
        "BLOCK_T": 16,
    }
    kernel = aligned_write_kernel if is_aligned else unaligned_write_kernel
    return Launch(kernel, constants, {"num_warps": 4, "num_stages": 1})


# Arguments of warmup: a dtype for each pointer, any int for each stride.


def _tile_arguments(spec: AttentionSpec) -> tuple[Any, ...]:
    f32, i32, i64 = torch.float32, torch.int32, torch.int64
    scale = f32 if spec.kv_quant is not KVQuant.NONE else None
    tree = spec.mask is Mask.TREE
    return (
        spec.dtype, spec.kv_dtype, spec.kv_dtype, spec.out_dtype,
        f32 if spec.return_lse else None,
        f32 if spec.sinks else None,
        f32 if spec.alibi else None,
        scale, scale,
        i32, i32, i32,
        torch.uint8 if tree else None, i64 if tree else None,
        i32, f32, f32,
        1.0, *[0] * 17,
    )  # fmt: skip


def _combine_arguments(spec: AttentionSpec) -> tuple[Any, ...]:
    f32, i32 = torch.float32, torch.int32
    return (
        f32, f32, i32, i32, spec.out_dtype,
        f32 if spec.return_lse else None,
        f32 if spec.sinks else None,
        1, 0, 0,
    )  # fmt: skip


def _write_arguments(spec: AttentionSpec) -> tuple[Any, ...]:
    scale = torch.float32 if spec.kv_quant is not KVQuant.NONE else None
    has_v = not spec.shared_kv
    return (
        spec.dtype, spec.dtype if has_v else None,
        spec.kv_dtype, spec.kv_dtype if has_v else None,
        scale, scale if has_v else None,
        torch.int64, 1, *[0] * 16,
    )  # fmt: skip
