"""Which kernels a spec needs on a device, and how much shared memory each takes.

Shape letters as everywhere; M packed rows of a tile, N keys of a step of the tile kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pagedattn.backends.cupy.instances import Option, spec_type
from pagedattn.device import DeviceInfo
from pagedattn.spec import AttentionSpec, KVQuant, Mask

__all__ = ["COMBINE", "WGMMA_DIMS", "WGMMA_SM", "Kernel", "Kernels", "TileKernel", "choose"]

WARPS = 4
DECODE_GROUP = 4
"""Larger groups fill a tile of the tensor cores well enough."""
DECODE_DIM = 256
DECODE_STAGES, DECODE_TOKENS = 3, 2  # of decode.cu

WGMMA_SM = (9, 0)
WGMMA_DIMS = frozenset({64, 128, 256})
"""Head widths of prefill_wgmma.cu."""

IN_DECODE = Option.SOFTCAP | Option.SLOPES | Option.TOKEN_SCALES | Option.SHARED_KV
IN_TILES = Option.WINDOW | Option.BIDIRECTIONAL | Option.TREES | Option.SOFTCAP | Option.SLOPES
"""What the loops of decode.cu and of the tiles test; prefill.cu also tests SHARED_KV."""

CTA_OVERHEAD = 1024
"""Bytes of a multiprocessor's shared memory that the driver takes for each block."""

_NAMES = {
    torch.float32: "float",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "q8<INT8>",
    torch.float8_e4m3fn: "q8<E4M3>",
    torch.float8_e5m2: "q8<E5M2>",
}
"""Types of kernels/types.cuh."""


@dataclass(frozen=True)
class Kernel:
    """One instantiation.

    file     of kernels/        name   its name expression
    shared   dynamic shared memory of a block, bytes
    threads  of a block
    suffix   of the architecture: "a" for instructions that only this very one has
    """

    file: str
    name: str
    shared: int
    threads: int = 128
    suffix: str = ""


@dataclass(frozen=True, kw_only=True)
class TileKernel(Kernel):
    """prefill.cu or prefill_wgmma.cu: tiles of `rows` packed rows, steps of `keys` keys."""

    rows: int
    keys: int


COMBINE = Kernel("combine.cu", "attention_combine_kernel", 0)


@dataclass(frozen=True)
class Kernels:
    """What an op launches.

    decode   for requests of one row: decode.cu, or small tiles for large groups; None where `tile`
             serves those too
    tile     prefill.cu or prefill_wgmma.cu for the others; None when the spec has no others
    """

    decode: Kernel | TileKernel | None
    tile: TileKernel | None
    write: Kernel

    @property
    def all(self) -> tuple[Kernel, ...]:
        """Everything that setup() compiles."""
        return tuple(k for k in (self.decode, self.tile, COMBINE, self.write) if k is not None)


def choose(
    spec: AttentionSpec, device: DeviceInfo, tuning: Mapping[str, int], *, wgmma: bool = False
) -> Kernels | None:
    """The kernels for a spec; None when no tile fits into the device's shared memory.

    wgmma   large tiles by prefill_wgmma.cu; whoever says so has refused what that does not serve

    Batch invariance wants one kernel for all rows; a tree's only row may not see its own key, which
    decode.cu does not know."""
    tile_of = _wgmma_tile if wgmma and spec.max_query_len != 1 else _tile
    tile = tile_of(spec, device, tuning.get("tile_rows"))
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
    copies = DECODE_STAGES * DECODE_TOKENS * vectors * 2 * 16 * WARPS * 32
    join = WARPS * spec.group_size * (spec.head_dim_v + 2) * 4
    flags = f"{_NAMES[spec.kv_dtype]}, {spec.group_size}, {vectors}, {spec_type(spec, IN_DECODE)}"
    name = f"attention_decode_kernel<{flags}>"
    return Kernel("decode.cu", name, max(copies, join))


def _tile(spec: AttentionSpec, device: DeviceInfo, wanted: int | None) -> TileKernel | None:
    """The largest tile that fits, and no more than the rows that a request can have."""
    longest = spec.max_query_len
    most = spec.group_size * longest if longest is not None else 64
    units = 2 if spec.head_dim_v <= 128 else 4 if spec.head_dim_v <= 256 else 9
    shapes = {2: ((4, 2), (2, 2), (1, 2)), 4: ((2, 2), (1, 2)), 9: ((1, 1),)}[units]
    kinds = f"{_NAMES[_tile_dtype(spec)]}, {_NAMES[spec.kv_dtype]}"
    known = spec_type(spec, IN_TILES | Option.SHARED_KV)
    for tiles, steps in (*shapes, (1, 1)):
        rows, keys = 16 * tiles, 32 * steps
        shared = _tile_shared(spec, rows, keys)
        too_large = rows > 16 and (most <= rows // 2 or (wanted is not None and rows > wanted))
        if too_large or shared > device.shared_limit:
            continue
        flags = f"{kinds}, {tiles}, {steps}, {units}, {known}"
        name = f"attention_prefill_kernel<{flags}>"
        return TileKernel("prefill.cu", name, shared, rows=rows, keys=keys)
    return None


def _wgmma_tile(spec: AttentionSpec, device: DeviceInfo, wanted: int | None) -> TileKernel | None:
    """Two warpgroups of 64 rows, which share the copies of K and V, if a request can fill them."""
    if spec.head_dim not in WGMMA_DIMS:
        return None
    longest = spec.max_query_len
    short = longest is not None and spec.group_size * longest <= 64
    groups = 1 if short or wanted == 64 else 2
    # Registers hold 128 keys beside heads of 128. With 64, two blocks of one warpgroup share a
    # multiprocessor's memory.
    keys = 128 if spec.head_dim * (3 - groups) <= 128 else 64
    row = spec.head_dim * spec.dtype.itemsize
    shared = 1024 + groups * 64 * row + 4 * keys * row  # alignment; Q; K and V, both twice
    if shared > device.shared_limit:
        return None
    flags = f"{_NAMES[spec.dtype]}, {keys}, {groups}, {spec_type(spec, IN_TILES)}"
    return TileKernel(
        "prefill_wgmma.cu",
        f"attention_prefill_wgmma_kernel<{flags}>",
        shared,
        threads=128 * groups,
        suffix="a",
        rows=64 * groups,
        keys=keys,
    )


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
