"""Which kernels a spec needs on a device, and how much shared memory each takes.

Shape letters as everywhere; M packed rows of a tile, N keys of a step of the tile kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pagedattn.device import DeviceInfo
from pagedattn.spec import AttentionSpec, KVQuant, Mask

__all__ = ["COMBINE", "Kernel", "Kernels", "TileKernel", "choose", "shared_limit"]

WARPS = 4
DECODE_GROUP = 4
"""Larger groups fill a tile of the tensor cores well enough."""
DECODE_DIM = 256
DECODE_STAGES, DECODE_TOKENS = 3, 2  # of decode.cu

CTA_OVERHEAD = 1024
"""Bytes of a multiprocessor's shared memory that the driver takes for each block."""

_SHARED_LIMITS = {(8, 0): 166912, (8, 6): 101376, (8, 7): 166912, (8, 9): 101376}
_SHARED_LIMITS |= {(9, 0): 232448, (10, 0): 232448, (10, 3): 232448, (11, 0): 232448}
_SHARED_LIMITS |= {(12, 0): 101376, (12, 1): 101376}

_NAMES = {torch.float32: "float", torch.float16: "f16", torch.bfloat16: "bf16"}


def shared_limit(device: DeviceInfo) -> int:
    """Bytes of shared memory that one block may use; of an unknown device, what all since sm_80
    have."""
    return device.shared_mem or _SHARED_LIMITS.get(device.sm or (0, 0), 101376)


@dataclass(frozen=True)
class Kernel:
    """One instantiation: a file of kernels/, a name expression, dynamic shared memory in bytes."""

    file: str
    name: str
    shared: int


@dataclass(frozen=True)
class TileKernel(Kernel):
    """prefill.cu: tiles of `rows` packed rows, steps of `keys` keys."""

    rows: int
    keys: int


COMBINE = Kernel("combine.cu", "attention_combine_kernel", 0)


@dataclass(frozen=True)
class Kernels:
    """What an op launches.

    decode   for requests of one row: decode.cu, or small tiles for large groups; None where `tile`
             serves those too
    tile     prefill.cu for the others; None when the spec has no others
    """

    decode: Kernel | TileKernel | None
    tile: TileKernel | None
    write: Kernel

    @property
    def all(self) -> tuple[Kernel, ...]:
        """Everything that setup() compiles."""
        return tuple(k for k in (self.decode, self.tile, COMBINE, self.write) if k is not None)


def choose(spec: AttentionSpec, device: DeviceInfo, tuning: Mapping[str, int]) -> Kernels | None:
    """The kernels for a spec; None when no tile fits into the device's shared memory.

    Batch invariance wants one kernel for all rows; a tree's only row may not see its own key, which
    decode.cu does not know."""
    tile = _tile(spec, device, tuning.get("tile_rows"))
    if tile is None:
        return None
    decode: Kernel | None = None
    if not spec.batch_invariant:
        small = spec.group_size <= DECODE_GROUP and spec.mask is not Mask.TREE
        if small and max(spec.head_dim, spec.head_dim_v) <= DECODE_DIM:
            decode = _decode(spec)
        elif spec.max_query_len != 1:
            rows = max(16, 1 << (spec.group_size - 1).bit_length())
            decode = _tile(spec, device, rows)
            decode = None if decode == tile else decode
    if decode is not None and spec.max_query_len == 1:
        tile = None
    kind = "write" if spec.kv_dtype == spec.dtype else "write_converted"
    return Kernels(decode, tile, Kernel("write.cu", f"attention_{kind}_kernel", 0))


def _decode(spec: AttentionSpec) -> Kernel:
    dim = max(spec.head_dim, spec.head_dim_v)
    size = 16 // spec.kv_dtype.itemsize
    vectors = 1 if dim <= 32 * size else 2
    group = 1 if spec.group_size == 1 else DECODE_GROUP
    kind = _NAMES.get(spec.kv_dtype, "q8")
    copies = DECODE_STAGES * DECODE_TOKENS * vectors * 2 * 16 * WARPS * 32
    join = WARPS * spec.group_size * (spec.head_dim_v + 2) * 4
    name = f"attention_decode_kernel<{kind}, {group}, {vectors}>"
    return Kernel("decode.cu", name, max(copies, join))


def _tile(spec: AttentionSpec, device: DeviceInfo, wanted: int | None) -> TileKernel | None:
    """The largest tile that fits, and no more than the rows that a request can have."""
    longest = spec.max_query_len
    most = spec.group_size * longest if longest is not None else 64
    units = 2 if spec.head_dim_v <= 128 else 4 if spec.head_dim_v <= 256 else 9
    shapes = {2: ((4, 2), (2, 2), (1, 2)), 4: ((2, 2), (1, 2)), 9: ((1, 1),)}[units]
    kind, converted = _NAMES[_tile_dtype(spec)], spec.kv_dtype != spec.dtype
    for tiles, steps in (*shapes, (1, 1)):
        rows, keys = 16 * tiles, 32 * steps
        shared = _tile_shared(spec, rows, keys)
        too_large = rows > 16 and (most <= rows // 2 or (wanted is not None and rows > wanted))
        if too_large or shared > shared_limit(device):
            continue
        flags = f"{kind}, {str(converted).lower()}, {tiles}, {steps}, {units}"
        return TileKernel("prefill.cu", f"attention_prefill_kernel<{flags}>", shared, rows, keys)
    return None


def _tile_dtype(spec: AttentionSpec) -> torch.dtype:
    """What tiles hold: q's dtype; float32 when a float cache has another one, which is used as it
    is stored."""
    mixed = spec.kv_quant is KVQuant.NONE and spec.kv_dtype != spec.dtype
    return torch.float32 if mixed else spec.dtype


def _tile_shared(spec: AttentionSpec, rows: int, keys: int) -> int:
    """The layout of prefill.cu."""
    size = _tile_dtype(spec).itemsize
    pad = 16 // size
    stride = -(-spec.head_dim // 32) * 32 + pad
    v_stride = stride if spec.shared_kv else -(-spec.head_dim_v // 16) * 16 + pad
    tiles = rows * stride + keys * stride + keys * v_stride + rows * (keys + pad)
    return tiles * size + (WARPS + 1) * rows * 4
