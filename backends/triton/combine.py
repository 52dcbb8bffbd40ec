"""Merging the states of a tile whose keys were shared out (Dao et al. 2023, "Flash-Decoding").

One program per packed row. Rows of `merges`, four int32 each, say which tile of which request it
is, its first slot and how many parts it has; request -1 is padding of a captured graph.
"""

# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

from pagedattn.backends.triton.softmax import finish, merge, power

__all__ = ["attention_combine_kernel"]


@triton.jit(
    do_not_specialize=["row_programs", "o_row", "o_head"],
    do_not_specialize_on_alignment=["MERGES", "STARTS", "OUT", "LSE", "SINKS"],
)
def attention_combine_kernel(
    PARTIAL,  # f32 [slots, Hkv, BLOCK_M, Dv]
    STATS,  # f32 [slots, Hkv, 2, BLOCK_M]: top, total
    MERGES,  # i32 [tiles, MERGE]
    STARTS,  # i32 [B + 1]
    OUT,  # [T, Hq, Dv]
    LSE,  # f32 [T, Hq] or None
    SINKS,  # f32 [Hq] or None
    row_programs: tl.int32,  # packed rows of a tile that may be live
    o_row: tl.int64,
    o_head: tl.int64,
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    DV: tl.constexpr,
    DV_TILE: tl.constexpr,
    UNIT: tl.constexpr,
    IN_ORDER: tl.constexpr,  # one part after the other, as tile.py merges chunks
    BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr,  # parts taken together
):
    lane = tl.program_id(0) % row_programs
    kv_head = (tl.program_id(0) // row_programs % HKV).to(tl.int64)
    merges = MERGES + tl.program_id(0) // (row_programs * HKV) * 4
    request = tl.load(merges)
    if request < 0:
        return
    packed = tl.load(merges + 1) * BLOCK_M + lane
    first, parts = tl.load(merges + 2).to(tl.int64), tl.load(merges + 3)
    start = tl.load(STARTS + request)
    row = packed // GROUP
    if row >= tl.load(STARTS + request + 1) - start:
        return
    head = kv_head * GROUP + packed % GROUP
    dv = tl.arange(0, DV_TILE)
    wide = (dv < DV)[None, :]

    acc = tl.zeros([1, DV_TILE], tl.float32)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    if IN_ORDER:
        for part in range(0, parts):
            at = ((first + part) * HKV + kv_head) * BLOCK_M
            one_acc = tl.load(PARTIAL + (at + lane) * DV + dv[None, :], mask=wide, other=0.0)
            one = at * 2 + lane + tl.arange(0, 1)
            one_top, one_total = tl.load(STATS + one), tl.load(STATS + one + BLOCK_M)
            acc, top, total = merge(acc, top, total, one_acc, one_top, one_total, UNIT)
    else:
        for part in range(0, parts, BLOCK_S):
            several = part + tl.arange(0, BLOCK_S)
            there = several < parts
            at = ((first + several) * HKV + kv_head) * BLOCK_M
            tops = tl.load(STATS + at * 2 + lane, mask=there, other=float("-inf"))
            totals = tl.load(STATS + at * 2 + BLOCK_M + lane, mask=there, other=0.0)
            accs = tl.load(
                PARTIAL + (at + lane)[:, None] * DV + dv[None, :],
                mask=there[:, None] & wide,
                other=0.0,
            )
            highest = tl.max(tops, 0)
            factor = power(tops - tl.where(highest == float("-inf"), 0.0, highest), UNIT)
            one_acc = tl.sum(accs * factor[:, None], 0)[None, :]
            one_total = tl.sum(totals * factor, 0)
            acc, top, total = merge(acc, top, total, one_acc, highest, one_total, UNIT)

    sink = top
    if SINKS is not None:
        sink = tl.load(SINKS + head + tl.arange(0, 1))
    out, lse = finish(acc, top, total, sink, SINKS is not None, UNIT)
    token = (start + row).to(tl.int64)
    one_row = OUT + token * o_row + head * o_head + dv[None, :]
    tl.store(one_row, out.to(OUT.dtype.element_ty), mask=wide)
    if LSE is not None:
        tl.store(LSE + token * (HKV * GROUP) + head + tl.arange(0, 1), lse)
