"""The cache write: a step's keys and values to their slots, quantised as the spec says.

One program per BLOCK_T tokens of one kv head. Rounding is to nearest even: the 8-bit floats' by the
conversion itself, int8's by adding and subtracting 1.5 * 2**23, after which a float32 has no bits
left behind the point.
"""

# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

__all__ = ["aligned_write_kernel", "unaligned_write_kernel"]


@triton.jit
def store_rows(
    SOURCE,
    POOL,
    SCALE,
    source_row,
    pool_block,
    pool_token,
    scale_block,
    scale_token,
    token,
    block,
    offset,
    live,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    QUANTISED: tl.constexpr,
    TOKEN_SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    INT8: tl.constexpr,
):
    """BLOCK_T rows of WIDTH columns; SOURCE, POOL and SCALE point at the program's head."""
    dim = tl.arange(0, TILE)
    mask = live[:, None] & (dim < WIDTH)[None, :]
    x = tl.load(SOURCE + token[:, None] * source_row + dim[None, :], mask=mask, other=0.0)
    if QUANTISED:
        x = x.to(tl.float32)
        if TOKEN_SCALE:
            largest = tl.max(tl.abs(x), 1)
            scale = tl.div_rn(largest, tl.full(largest.shape, LIMIT, tl.float32))
            scale = tl.where(scale == 0.0, 1.0, scale)
            tl.store(SCALE + block * scale_block + offset * scale_token, scale, mask=live)
        else:
            scale = tl.load(SCALE + live.to(tl.int32) * 0)
        x = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
        x = tl.where(x > LIMIT, LIMIT, tl.where(x < -LIMIT, -LIMIT, x))
        if INT8:
            x = tl.where(x == x, x, 0.0)
            x = (x + 12582912.0) - 12582912.0
    at = POOL + (block * pool_block + offset * pool_token)[:, None] + dim[None, :]
    tl.store(at, x.to(POOL.dtype.element_ty), mask=mask)


def cache_write_kernel(
    K,  # [>=T, Hkv, D]
    V,  # [>=T, Hkv, Dv] or None: shared_kv
    K_POOL,  # [N, BLOCK_SIZE, Hkv, D]
    V_POOL,  # [N, BLOCK_SIZE, Hkv, Dv]
    K_SCALE,  # f32 [] | [Hkv] | [N, BLOCK_SIZE, Hkv] or None
    V_SCALE,
    SLOTS,  # i64 [T]
    tokens: tl.int32,  # T
    k_row: tl.int64,  # strides of k and v in ALIGN elements
    k_head: tl.int64,
    v_row: tl.int64,
    v_head: tl.int64,
    kp_block: tl.int64,  # strides of the pools in KV_ALIGN elements
    kp_token: tl.int64,
    kp_head: tl.int64,
    vp_block: tl.int64,
    vp_token: tl.int64,
    vp_head: tl.int64,
    ks_block: tl.int64,  # of the scales in elements
    ks_token: tl.int64,
    ks_head: tl.int64,
    vs_block: tl.int64,
    vs_token: tl.int64,
    vs_head: tl.int64,
    ALIGN: tl.constexpr,
    KV_ALIGN: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    D_TILE: tl.constexpr,
    DV_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKEN_SCALE: tl.constexpr,
    LIMIT: tl.constexpr,  # largest magnitude of a quantised value; 0: not quantised
    INT8: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    kv_head = (tl.program_id(0) % HKV).to(tl.int64)
    token = (tl.program_id(0) // HKV).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    slot = tl.load(SLOTS + token, mask=token < tokens, other=-1)
    live = slot >= 0
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    # Products with a constant, so that the compiler sees which addresses are multiples of 16 bytes.
    k_row, k_head, v_row, v_head = k_row * ALIGN, k_head * ALIGN, v_row * ALIGN, v_head * ALIGN
    kp_block, kp_token, kp_head = kp_block * KV_ALIGN, kp_token * KV_ALIGN, kp_head * KV_ALIGN
    vp_block, vp_token, vp_head = vp_block * KV_ALIGN, vp_token * KV_ALIGN, vp_head * KV_ALIGN
    store_rows(
        K + kv_head * k_head, K_POOL + kv_head * kp_head,
        K_SCALE if K_SCALE is None else K_SCALE + kv_head * ks_head,
        k_row, kp_block, kp_token, ks_block, ks_token, token, block, offset, live,
        D, D_TILE, LIMIT > 0, TOKEN_SCALE, LIMIT, INT8,
    )  # fmt: skip
    if V is not None:
        store_rows(
            V + kv_head * v_head, V_POOL + kv_head * vp_head,
            V_SCALE if V_SCALE is None else V_SCALE + kv_head * vs_head,
            v_row, vp_block, vp_token, vs_block, vs_token, token, block, offset, live,
            DV, DV_TILE, LIMIT > 0, TOKEN_SCALE, LIMIT, INT8,
        )  # fmt: skip


_SCALARS = [
    name
    for name, kind in cache_write_kernel.__annotations__.items()
    if kind in (tl.int64, tl.int32)
]
_SMALL = ["K_SCALE", "V_SCALE", "SLOTS"]
aligned_write_kernel = triton.jit(
    do_not_specialize=_SCALARS, do_not_specialize_on_alignment=_SMALL
)(cache_write_kernel)
"""For k, v and pools that start on 16 bytes."""

unaligned_write_kernel = triton.jit(
    do_not_specialize=_SCALARS,
    do_not_specialize_on_alignment=[*_SMALL, "K", "V", "K_POOL", "V_POOL"],
)(cache_write_kernel)
"""For any."""
