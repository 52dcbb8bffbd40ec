"""The attention kernel: one tile of query rows against a range of keys.

One kernel serves decode, prefill, chunked prefill, mixed batches and trees. The query rows of a
request and the heads of a group are packed into one axis of query_len * GROUP rows, row-major, so
that a key is loaded once for all heads that share it: a decode step of 4 heads and 4 speculated
rows of 1 head fill a tile alike, and groups of 3, 7 or 71 leave no gap. A tile is BLOCK_M packed
rows; its keys are visited in steps of BLOCK_N with an online softmax (Milakov and Gimelshein 2018;
Dao 2023, "FlashAttention-2"), through the block table (Kwon et al. 2023, "PagedAttention").

A program does one work item: a tile, or a share of its keys (Dao et al. 2023, "Flash-Decoding").
Items come from work.py as rows of five int32:

    request   -1 for padding of a captured graph: the program ends
    tile      packed rows tile*BLOCK_M ... of the request
    part      which share of the keys, 0 <= part < parts; with CHUNK the number of the chunk
    parts     into how many shares
    slot      where the state goes in PARTIAL and STATS; -1: the item has all keys and writes OUT

Which keys those are is computed here from SEQ_LENS, so that a host which knows only upper bounds
(async_lengths) gets the same result.

CHUNK > 0 (batch_invariant): keys are cut at absolute multiples of CHUNK, every chunk has a state of
its own, and states merge in ascending order, in this program or in combine.py by the same
operations. How many programs share a tile then changes no bit.

Keys beyond the range are not loaded but 0: what an unowned slot holds cannot leak, not even as
0 * NaN. A head is split into D0, a power of two, and D1, the rest: tiles are powers of two, and of
1024 columns 576 dims would waste 448.
"""

# mypy: ignore-errors
# ruff: noqa: N803, N806

import triton
import triton.language as tl

from pagedattn.backends.triton.softmax import finish, merge, power, tanh

__all__ = ["aligned_tile_kernel", "unaligned_tile_kernel"]

CAUSAL, FULL, TREE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def load(pointers, keys, dims, BY_KEY: tl.constexpr, BY_DIM: tl.constexpr):
    """Zero where a mask that is in force is false. The masks broadcast over each other."""
    if BY_KEY and BY_DIM:
        return tl.load(pointers, mask=keys & dims, other=0.0)
    elif BY_KEY:
        return tl.load(pointers, mask=keys, other=0.0)
    elif BY_DIM:
        return tl.load(pointers, mask=dims, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def walk(
    acc,
    top,
    total,
    q0,
    q1,
    K,
    V,
    K_SCALE,
    V_SCALE,
    TABLE,
    TREE_BITS,
    k_block,
    k_token,
    v_block,
    v_token,
    ks_block,
    ks_token,
    vs_block,
    vs_token,
    factor,
    slope,
    row,
    rows,
    seq_len,
    has_tree,
    low,
    begin,
    end,
    D: tl.constexpr,
    DV: tl.constexpr,
    D0: tl.constexpr,
    D1: tl.constexpr,
    DV_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    MASK: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    SHARED_KV: tl.constexpr,
    TOKEN_SCALE: tl.constexpr,
    UNIT: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Take the keys [begin, end) into the state; begin is a multiple of BLOCK_N. K, V, the scales,
    TABLE and TREE_BITS point at the program's head and request. MASKED: some row may not see some
    key of [begin, end), or the last step is not full."""
    lane = tl.arange(0, BLOCK_N)
    d0, d1 = tl.arange(0, D0), D0 + tl.arange(0, max(D1, 1))
    dv = tl.arange(0, DV_TILE)
    position = seq_len - rows + row
    for first in range(begin, end, BLOCK_N):
        key = first + lane
        inside = key < end
        if LEFT >= 0:
            inside = inside & (key >= low)
        if BLOCK_SIZE % BLOCK_N == 0:
            block = tl.load(TABLE + first // BLOCK_SIZE).to(tl.int64)
            token = first % BLOCK_SIZE + lane
        elif MASKED:
            block = tl.load(TABLE + key // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
            token = key % BLOCK_SIZE
        else:
            block = tl.load(TABLE + key // BLOCK_SIZE).to(tl.int64)
            token = key % BLOCK_SIZE
        k_at = block * k_block + token * k_token
        k0 = load(K + k_at[:, None] + d0[None, :], inside[:, None], d0[None, :] < D, MASKED, D0 > D)
        if D1 > 0:
            k1 = load(
                K + k_at[:, None] + d1[None, :],
                inside[:, None],
                d1[None, :] < D,
                MASKED,
                D0 + D1 > D,
            )
        if TOKEN_SCALE:  # by key, where a thread has few of them; the columns of score have many
            ks = load(K_SCALE + block * ks_block + token * ks_token, inside, inside, MASKED, False)
            k0 = k0.to(tl.float32) * ks[:, None]
            if D1 > 0:
                k1 = k1.to(tl.float32) * ks[:, None]
        k0 = k0.to(q0.dtype)
        score = tl.dot(q0, tl.trans(k0), input_precision="ieee")
        if D1 > 0:
            k1 = k1.to(q0.dtype)
            score = tl.dot(q1, tl.trans(k1), acc=score, input_precision="ieee")
        score = score * factor
        if CAP > 0.0:
            score = CAP * UNIT * tanh(score, UNIT == 1.0 or CAP > 500.0)
        if MASKED or ALIBI:
            distance = key[None, :] - position[:, None]
        if ALIBI:
            far = tl.abs(distance) * -1 if MASK == FULL else distance
            score += slope[:, None] * far.to(tl.float32)
        if MASKED:
            seen = inside[None, :]
            if MASK == CAUSAL:
                seen = seen & (distance <= 0)
            elif MASK == TREE:
                column = key - (seq_len - rows)
                own = (column >= 0)[None, :] & inside[None, :] & (row < rows)[:, None]
                row_bit = row.to(tl.int64) * rows  # beyond 32 bits for many rows
                bit = (row_bit & 7).to(tl.int32)[:, None] + column[None, :]
                byte_at = (TREE_BITS + (row_bit >> 3))[:, None] + (bit >> 3)
                byte = tl.load(byte_at, mask=own & has_tree, other=0).to(tl.int32)
                allowed = (byte >> (bit & 7)) & 1 != 0
                allowed = (allowed & has_tree) | ((distance <= 0) & (has_tree == 0))
                seen = seen & ((column < 0)[None, :] | allowed)
            if LEFT >= 0:
                seen = seen & (distance >= -LEFT)
            if RIGHT >= 0:
                seen = seen & (distance <= RIGHT)
            score = tl.where(seen, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        base = new_top
        if MASKED:
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = power(score - base[:, None], UNIT)
        decay = power(top - base, UNIT)
        top = new_top
        total = total * decay + tl.sum(weight, 1)
        acc = acc * decay[:, None]
        if SHARED_KV and DV_TILE == D0:
            v = k0
        else:
            v_at = block * v_block + token * v_token
            v = load(
                V + v_at[:, None] + dv[None, :],
                inside[:, None],
                dv[None, :] < DV,
                MASKED,
                DV_TILE > DV,
            )
            if TOKEN_SCALE:
                vs_at = block * vs_block + token * vs_token
                vs = load(V_SCALE + vs_at, inside, inside, MASKED, False)
                v = v.to(tl.float32) * vs[:, None]
        acc = tl.dot(weight.to(q0.dtype), v.to(q0.dtype), acc=acc, input_precision="ieee")
    return acc, top, total


def attention_tile_kernel(
    Q,  # [T, Hq, D]
    K,  # [N, BLOCK_SIZE, Hkv, D]
    V,  # [N, BLOCK_SIZE, Hkv, Dv]
    OUT,  # [T, Hq, Dv]
    LSE,  # f32 [T, Hq] or None
    SINKS,  # f32 [Hq] or None
    SLOPES,  # f32 [Hq] or None
    K_SCALE,  # f32 [] | [Hkv] | [N, BLOCK_SIZE, Hkv] or None
    V_SCALE,
    STARTS,  # i32 [B + 1], query_start_loc
    SEQ_LENS,  # i32 [B]
    TABLE,  # i32 [B, M]
    TREE_BITS,  # u8 or None
    TREE_STARTS,  # i64 [B + 1] or None
    ITEMS,  # i32 [items, ITEM]
    PARTIAL,  # f32 [slots, Hkv, BLOCK_M, Dv]
    STATS,  # f32 [slots, Hkv, 2, BLOCK_M]: top, total
    factor: tl.float32,  # of q.k: UNIT * scale, or scale / CAP under a cap
    q_row: tl.int64,  # strides of q and out in ALIGN elements
    q_head: tl.int64,
    k_block: tl.int64,  # strides of k and v in KV_ALIGN elements
    k_token: tl.int64,
    k_head: tl.int64,
    v_block: tl.int64,
    v_token: tl.int64,
    v_head: tl.int64,
    o_row: tl.int64,
    o_head: tl.int64,
    table_row: tl.int64,  # the others in elements
    ks_block: tl.int64,
    ks_token: tl.int64,
    ks_head: tl.int64,
    vs_block: tl.int64,
    vs_token: tl.int64,
    vs_head: tl.int64,
    ALIGN: tl.constexpr,
    KV_ALIGN: tl.constexpr,
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    D0: tl.constexpr,
    D1: tl.constexpr,
    DV_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    MASK: tl.constexpr,
    LEFT: tl.constexpr,  # -1: no bound
    RIGHT: tl.constexpr,
    CAP: tl.constexpr,  # 0: off
    SHARED_KV: tl.constexpr,
    SCALED: tl.constexpr,
    TOKEN_SCALE: tl.constexpr,  # per token and head
    FLOAT32: tl.constexpr,  # multiply in float32, else in the type of q
    UNIT: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    item = ITEMS + tl.program_id(0) // HKV * 5
    kv_head = (tl.program_id(0) % HKV).to(tl.int64)
    request = tl.load(item).to(tl.int64)
    if request < 0:
        return
    tile, part = tl.load(item + 1), tl.load(item + 2)
    parts, slot = tl.load(item + 3), tl.load(item + 4).to(tl.int64)
    # Products with a constant, so that the compiler sees which addresses are multiples of 16 bytes.
    q_row, q_head, o_row, o_head = q_row * ALIGN, q_head * ALIGN, o_row * ALIGN, o_head * ALIGN
    k_block, k_token, k_head = k_block * KV_ALIGN, k_token * KV_ALIGN, k_head * KV_ALIGN
    v_block, v_token, v_head = v_block * KV_ALIGN, v_token * KV_ALIGN, v_head * KV_ALIGN

    start = tl.load(STARTS + request)
    rows = tl.load(STARTS + request + 1) - start
    seq_len = tl.load(SEQ_LENS + request)
    packed = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row = packed // GROUP
    live = row < rows
    head = kv_head * GROUP + packed % GROUP
    first_position = seq_len - rows + tile * BLOCK_M // GROUP
    last_row = tl.minimum(rows - 1, (tile * BLOCK_M + BLOCK_M - 1) // GROUP)
    last_position = seq_len - rows + last_row

    # Keys that some row of the tile may see: [low, high)
    low, high = 0, seq_len
    if LEFT >= 0:
        low = first_position - tl.minimum(first_position, LEFT)
    if MASK == CAUSAL:
        high = last_position + 1
    if RIGHT >= 0:
        high = last_position + 1 + tl.minimum(RIGHT, seq_len - 1 - last_position)

    token = (start + row).to(tl.int64)
    d0, d1 = tl.arange(0, D0), D0 + tl.arange(0, max(D1, 1))
    dv = tl.arange(0, DV_TILE)
    q_at = Q + token[:, None] * q_row + head[:, None] * q_head
    q0 = load(q_at + d0[None, :], live[:, None], d0[None, :] < D, True, D0 > D)
    q1 = q0
    if D1 > 0:
        q1 = load(q_at + d1[None, :], live[:, None], d1[None, :] < D, True, D0 + D1 > D)
    if FLOAT32:
        q0, q1 = q0.to(tl.float32), q1.to(tl.float32)

    K += kv_head * k_head
    V += kv_head * v_head
    TABLE += request * table_row
    v_factor = 1.0
    if TOKEN_SCALE:
        K_SCALE += kv_head * ks_head
        V_SCALE += kv_head * vs_head
    elif SCALED:
        factor = factor * tl.load(K_SCALE + kv_head * ks_head)
        v_factor = tl.load(V_SCALE + kv_head * vs_head)
    slope = 0.0
    if SLOPES is not None:
        slope = tl.load(SLOPES + head, mask=live, other=0.0) * UNIT
    has_tree = False
    if MASK == TREE:
        tree_start = tl.load(TREE_STARTS + request)
        has_tree = tl.load(TREE_STARTS + request + 1) > tree_start
        TREE_BITS += tree_start

    acc = tl.zeros([BLOCK_M, DV_TILE], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if CHUNK > 0:
        chunk, chunks = low // CHUNK, tl.cdiv(high, CHUNK)
        if slot >= 0:
            chunk, chunks = tl.maximum(chunk, part), tl.minimum(chunks, part + 1)
        for c in range(chunk, chunks):
            begin = tl.maximum(low, c * CHUNK) // BLOCK_N * BLOCK_N
            one_acc, one_top, one_total = walk(
                tl.zeros([BLOCK_M, DV_TILE], tl.float32),
                tl.full([BLOCK_M], float("-inf"), tl.float32),
                tl.zeros([BLOCK_M], tl.float32),
                q0, q1, K, V, K_SCALE, V_SCALE, TABLE, TREE_BITS,
                k_block, k_token, v_block, v_token, ks_block, ks_token, vs_block, vs_token,
                factor, slope, row, rows, seq_len, has_tree,
                low, begin, tl.minimum(high, c * CHUNK + CHUNK),
                D, DV, D0, D1, DV_TILE, BLOCK_SIZE, MASK, LEFT, RIGHT, CAP, SLOPES is not None,
                SHARED_KV, TOKEN_SCALE, UNIT, True, BLOCK_N,
            )  # fmt: skip
            acc, top, total = merge(acc, top, total, one_acc, one_top, one_total, UNIT)
    else:
        begin = low // BLOCK_N * BLOCK_N
        share = tl.cdiv(tl.cdiv(tl.maximum(high - begin, 0), BLOCK_N), parts) * BLOCK_N
        begin += part * share
        end = tl.minimum(high, begin + share)
        # Whole steps whose keys every row sees come first and need no mask.
        free = begin
        if LEFT < 0 and RIGHT < 0:
            if MASK == CAUSAL:
                free = tl.minimum(first_position + 1, end)
            elif MASK == TREE:
                free = tl.minimum(seq_len - rows, end)
            else:
                free = end
            free = begin + tl.maximum(free - begin, 0) // BLOCK_N * BLOCK_N
            acc, top, total = walk(
                acc, top, total,
                q0, q1, K, V, K_SCALE, V_SCALE, TABLE, TREE_BITS,
                k_block, k_token, v_block, v_token, ks_block, ks_token, vs_block, vs_token,
                factor, slope, row, rows, seq_len, has_tree, low, begin, free,
                D, DV, D0, D1, DV_TILE, BLOCK_SIZE, MASK, LEFT, RIGHT, CAP, SLOPES is not None,
                SHARED_KV, TOKEN_SCALE, UNIT, False, BLOCK_N,
            )  # fmt: skip
        acc, top, total = walk(
            acc, top, total,
            q0, q1, K, V, K_SCALE, V_SCALE, TABLE, TREE_BITS,
            k_block, k_token, v_block, v_token, ks_block, ks_token, vs_block, vs_token,
            factor, slope, row, rows, seq_len, has_tree, low, free, end,
            D, DV, D0, D1, DV_TILE, BLOCK_SIZE, MASK, LEFT, RIGHT, CAP, SLOPES is not None,
            SHARED_KV, TOKEN_SCALE, UNIT, True, BLOCK_N,
        )  # fmt: skip

    acc = acc * v_factor
    if slot >= 0:
        at = (slot * HKV + kv_head) * BLOCK_M
        lane = tl.arange(0, BLOCK_M)
        partial = PARTIAL + (at + lane)[:, None] * DV + dv[None, :]
        tl.store(partial, acc, mask=live[:, None] & (dv[None, :] < DV))
        tl.store(STATS + at * 2 + lane, top, mask=live)
        tl.store(STATS + at * 2 + BLOCK_M + lane, total, mask=live)
    else:
        sink = top
        if SINKS is not None:
            sink = tl.load(SINKS + head, mask=live, other=0.0)
        out, lse = finish(acc, top, total, sink, SINKS is not None, UNIT)
        out_at = OUT + token[:, None] * o_row + head[:, None] * o_head + dv[None, :]
        tl.store(out_at, out.to(OUT.dtype.element_ty), mask=live[:, None] & (dv[None, :] < DV))
        if LSE is not None:
            tl.store(LSE + token * (HKV * GROUP) + head, lse, mask=live)


_STRIDES = [
    name
    for name, kind in attention_tile_kernel.__annotations__.items()
    if kind in (tl.int64, tl.float32)
]
_SMALL = [
    "LSE",
    "SINKS",
    "SLOPES",
    "K_SCALE",
    "V_SCALE",
    "STARTS",
    "SEQ_LENS",
    "TABLE",
    "TREE_BITS",
    "TREE_STARTS",
    "ITEMS",
]
aligned_tile_kernel = triton.jit(do_not_specialize=_STRIDES, do_not_specialize_on_alignment=_SMALL)(
    attention_tile_kernel
)
"""For q, k, v and out that start on 16 bytes."""

unaligned_tile_kernel = triton.jit(
    do_not_specialize=_STRIDES, do_not_specialize_on_alignment=[*_SMALL, "Q", "K", "V", "OUT"]
)(attention_tile_kernel)
"""For any."""
