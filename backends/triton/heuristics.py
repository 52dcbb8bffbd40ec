"""Which tiles and how many parts: decided on the host from the spec and the device alone.

Tiles. A decode step packs one group into BLOCK_M >= 16 rows (the smallest matrix instruction) and
wants many loads in flight: small tiles, four warps, several stages. Prefill wants the accumulator
[BLOCK_M, Dv] as large as the registers of the program hold, since every key is loaded once per
BLOCK_M packed rows. Both are then shrunk until the stages of K and V fit the shared memory.

Parts. A tile's keys are shared out when there are fewer programs than the device holds at once:
the target is a number of programs, the work of each the same number of keys, so that long
requests beside short ones are cut finer (see work.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pagedattn.device import DeviceInfo
from pagedattn.spec import AttentionSpec, KVQuant, Mask

__all__ = [
    "CHUNK",
    "Tile",
    "choose",
    "compute_dtype",
    "keys_per_part",
    "most_per_sm",
    "num_sms",
    "power_of_two",
    "smem_bytes",
    "split_head",
    "target_items",
    "token_scales",
    "tunables",
    "wide_warps",
]

CHUNK = 1024
"""Keys per state of a batch-invariant op; a constant, since a row's bits depend on it."""

MIN_PART = 128
"""Keys below which a part costs more to merge than it saves."""

_NUM_SMS = {(8, 0): 108, (9, 0): 132, (10, 0): 148}


@dataclass(frozen=True, kw_only=True)
class Tile:
    """How one phase is compiled and launched.

    block_m    packed rows of a program (a power of two, at least 16)
    block_n    keys of a step
    num_warps  of the kernel for aligned rows; narrow_warps of the other one, whose narrow loads
               take more registers
    per_sm     programs that are to share one multiprocessor: how many parts there will be
    """

    block_m: int
    block_n: int
    num_warps: int
    narrow_warps: int
    num_stages: int
    per_sm: int


def power_of_two(value: int, *, at_least: int = 1) -> int:
    """The smallest power of two that is not below `value` and `at_least`."""
    return 1 << (max(value, at_least) - 1).bit_length()


def compute_dtype(spec: AttentionSpec) -> torch.dtype:
    """What q.k and weights.v are multiplied in: q's dtype, or float32 when the cache holds values
    that it would round. 8-bit values are exact in all of them."""
    if spec.kv_quant is not KVQuant.NONE or spec.kv_dtype == spec.dtype:
        return spec.dtype
    return torch.float32


def split_head(dim: int) -> tuple[int, int]:
    """(D0, D1): tiles that cover a head of `dim` columns; 576 is 512 + 64, 96 is 64 + 32."""
    whole = 1 << (dim.bit_length() - 1)
    if dim <= 16 or whole == dim:
        return power_of_two(dim, at_least=16), 0
    rest = power_of_two(dim - whole, at_least=16)
    return (2 * whole, 0) if rest >= whole else (whole, rest)


def num_sms(device: DeviceInfo) -> int:
    """Multiprocessors; those of the usual product when the device is made up."""
    return device.num_sms or _NUM_SMS.get(device.sm or (0, 0), 108)


def wide_warps(device: DeviceInfo) -> bool:
    """Whether a warp has 64 lanes, as AMD's accelerators do: their names tell."""
    return device.name.startswith(("gfx9", "AMD Instinct"))


def choose(
    spec: AttentionSpec, device: DeviceInfo, tuning: Mapping[str, int] | None = None
) -> tuple[Tile, ...]:
    """The phases of an op, smallest tile first: a request goes to the first that holds all its
    packed rows, else to the last. One phase when every request fits it, and when bits may not
    depend on the choice (batch_invariant). Empty when no tile fits the shared memory."""
    tuning = tuning or {}
    rows = None if spec.max_query_len is None else spec.max_query_len * spec.group_size
    small = min(power_of_two(spec.group_size, at_least=16), _most_rows(spec, device))
    decode_alone = rows is not None and rows <= small
    if spec.batch_invariant:
        rows_of_phases = [
            small if decode_alone and small < 32 else min(32, _most_rows(spec, device))
        ]
    elif decode_alone:
        rows_of_phases = [small]
    else:
        large = max(small, _most_rows(spec, device))
        if rows is not None:
            large = min(large, power_of_two(rows, at_least=16))
        rows_of_phases = [small, large] if large > small else [small]
    tiles = []
    for block_m in rows_of_phases:
        tile = _fitted(spec, device, block_m, tuning)
        if tile is None:
            return ()
        tiles.append(tile)
    return tuple(tiles)


def _most_rows(spec: AttentionSpec, device: DeviceInfo) -> int:
    """BLOCK_M of prefill, by the registers that the accumulator takes. float32 is multiplied
    without the matrix unit and takes many more."""
    wide = power_of_two(spec.head_dim_v, at_least=16)
    if compute_dtype(spec) is torch.float32:
        return 32 if max(wide, spec.head_dim) <= 64 else 16
    if token_scales(spec) and wide_warps(device):
        return 16  # in larger tiles there every lane loads the scales of half of the keys
    # A tree's bits, scales of every key, and a division by the group take registers too.
    group = spec.group_size
    divides = group & (group - 1) != 0 and group <= 64 and wide > 64
    most = 32 if spec.mask is Mask.TREE else 64 if token_scales(spec) or divides else 128
    return max(16, min(most, 16384 // wide))


def _fitted(
    spec: AttentionSpec, device: DeviceInfo, block_m: int, tuning: Mapping[str, int]
) -> Tile | None:
    """The widest step and the most stages that fit."""
    wide = max(power_of_two(spec.head_dim_v, at_least=16), spec.head_dim)
    single = compute_dtype(spec) is torch.float32
    heavy = block_m * wide >= (2048 if single else 8192 if block_m <= 16 else 4096)
    narrow = wide > 128 or spec.batch_invariant or (single and block_m > 16)
    if block_m > 64 and wide > 64 and device.sm is not None and device.sm < (9, 0):
        narrow = True  # q stays in registers there
    block_n = tuning.get("block_n", 32 if narrow else 64)
    stages = tuning.get("num_stages", 3 if block_m <= 32 and not spec.batch_invariant else 2)
    if spec.mask is Mask.TREE and wide_warps(device):
        stages = 1  # Triton 3.6 cannot translate this loop with a pipeline for AMD
    limit = device.shared_limit
    while smem_bytes(spec, block_m, block_n, stages) > limit:
        if stages > 1:
            stages -= 1
        elif block_n > 16:
            block_n //= 2
        else:
            return None
    most = 4 if wide_warps(device) else 8
    warps = tuning.get("num_warps", most if heavy else 4)
    if spec.batch_invariant:  # bits depend on it, but may not on alignment
        warps = most
    # By registers, as docs/compile/triton.md shows them.
    resident = 1 if heavy or warps == 8 else 2 if wide > 128 else 3 if wide > 64 else 4
    return Tile(
        block_m=block_m,
        block_n=block_n,
        num_warps=warps,
        narrow_warps=max(warps, 4 if block_m <= 16 else most),
        num_stages=stages,
        per_sm=min(tuning.get("per_sm", resident), most_per_sm(block_m)),
    )


def smem_bytes(spec: AttentionSpec, block_m: int, block_n: int, stages: int) -> int:
    """An upper estimate of a program's shared memory: K and V in flight in the cache's dtype (one
    stage fewer than asked for, except where Hopper's matrix unit reads them in place); a copy of
    each on the way to the matrix unit, where that is not it; and q or the weights."""
    d0, d1 = split_head(spec.head_dim)
    wide = power_of_two(spec.head_dim_v, at_least=16)
    values = 0 if spec.shared_kv and wide == d0 else wide
    keys = block_n * (d0 + d1 + values)
    size = compute_dtype(spec).itemsize
    in_flight = 0 if stages == 1 else stages if block_m >= 64 else stages - 1
    copied = in_flight == 0 or spec.kv_dtype != compute_dtype(spec)
    moving = block_m * max(d0 + d1, block_n) * size
    return in_flight * keys * spec.kv_dtype.itemsize + copied * keys * size + moving


def tunables(spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Sequence[int]]:
    """Knobs of open(tuning=); values that do not fit shared memory or workspace are lowered."""
    return {
        "block_n": (16, 32, 64, 128),
        "num_warps": (2, 4, 8),
        "num_stages": (1, 2, 3, 4),
        "per_sm": (1, 2, 3, 4),
    }


def keys_per_part(keys: int, target: int) -> int:
    """Keys of a part when `keys` in all are shared out to `target` work items."""
    return max(MIN_PART, -(-keys // target))


def most_per_sm(block_m: int) -> int:
    """Programs per multiprocessor for which the workspace has room, whatever the tuning."""
    return 4 if block_m <= 32 else 2


def target_items(spec: AttentionSpec, device: DeviceInfo, per_sm: int) -> int:
    """Work items that fill the device; each is one program per kv head."""
    return max(1, -(-num_sms(device) * per_sm // spec.num_kv_heads))


def token_scales(spec: AttentionSpec) -> bool:
    """Whether every key has scales of its own."""
    return spec.kv_quant is KVQuant.PER_TOKEN_HEAD
