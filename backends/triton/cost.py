"""What a step should cost: bytes, FLOP, waves and occupancy, by arithmetic alone.

Predictions to be confronted with measurements: what the kernel must move and multiply, and how many
programs the device holds at once. Device memory moves every key once, as if programs that load the
same key met in the L2 cache; `loaded` counts it once per program, which is what L2 must serve.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagedattn.backends.triton.heuristics import (
    Tile,
    keys_per_part,
    num_sms,
    smem_bytes,
    target_items,
)
from pagedattn.device import DeviceInfo
from pagedattn.spec import AttentionSpec, KVQuant, Mask

__all__ = ["Cost", "cost"]

MAX_WARPS = 64
"""Warps that a multiprocessor holds (48 on sm_86, sm_89 and sm_120)."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one layer's run().

    bytes      read and written in device memory       flop     of the two matrix products
    loaded     what the programs load and store, through L2
    programs   of the tile kernel                      waves    programs / (per_sm * SMs)
    per_sm     programs that one multiprocessor holds at once
    occupancy  warps that these are, of those it could hold
    parts      shares of one request's keys            intensity  FLOP per byte
    """

    bytes: int
    loaded: int
    flop: int
    programs: int
    per_sm: int
    occupancy: float
    waves: int
    parts: int

    @property
    def intensity(self) -> float:
        return self.flop / max(1, self.bytes)


def cost(
    spec: AttentionSpec,
    device: DeviceInfo,
    tile: Tile,
    *,
    requests: int,
    query_len: int,
    seq_len: int,
) -> Cost:
    """`requests` equal ones of query_len rows over seq_len keys, their own included."""
    packed = query_len * spec.group_size
    tiles = -(-packed // tile.block_m)
    target = target_items(spec, device, tile.per_sm)
    size, group = tile.block_m, spec.group_size
    seen = [
        _keys(spec, query_len, seq_len, t * size // group, (t * size + size - 1) // group)
        for t in range(tiles)
    ]
    share = keys_per_part(requests * sum(seen), target)
    parts_of = [max(1, (2 * keys + share) // (2 * share)) for keys in seen]
    parts = max(parts_of, default=1)
    items = requests * sum(parts_of)
    width = spec.head_dim + (0 if spec.shared_kv else spec.head_dim_v)
    per_key = width * spec.kv_dtype.itemsize
    if spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
        per_key += 4 if spec.shared_kv else 8
    heads = spec.num_kv_heads
    once = (
        requests
        * query_len
        * spec.num_heads
        * (spec.head_dim * spec.dtype.itemsize + spec.head_dim_v * spec.out_dtype.itemsize)
    )
    if parts > 1:
        once += 2 * items * heads * min(packed, tile.block_m) * (spec.head_dim_v + 2) * 4
    multiplied = requests * sum(
        _keys(spec, query_len, seq_len, row, row) for row in range(query_len)
    )
    flop = 2 * multiplied * spec.num_heads * (spec.head_dim + spec.head_dim_v)
    programs = items * heads
    memory = smem_bytes(spec, tile.block_m, tile.block_n, tile.num_stages)
    held = min(tile.per_sm, device.shared_limit // memory, MAX_WARPS // tile.num_warps)
    per_sm = max(1, held)
    return Cost(
        bytes=once + requests * _keys(spec, query_len, seq_len, 0, query_len) * heads * per_key,
        loaded=once + requests * sum(seen) * heads * per_key,
        flop=flop,
        programs=programs,
        per_sm=per_sm,
        occupancy=per_sm * tile.num_warps / MAX_WARPS,
        waves=-(-programs // (per_sm * num_sms(device))),
        parts=parts,
    )


def _keys(spec: AttentionSpec, query_len: int, seq_len: int, first_row: int, last_row: int) -> int:
    """Keys that rows first_row ... last_row (or the last one there is) may see together."""
    first = seq_len - query_len + first_row
    last = seq_len - query_len + min(last_row, query_len - 1)
    left, right = spec.window
    low = 0 if left is None else max(0, first - left)
    high = seq_len if right is None else min(seq_len, last + right + 1)
    if spec.mask is Mask.CAUSAL:
        high = min(high, last + 1)
    return max(0, high - low)
