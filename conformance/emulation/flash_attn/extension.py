"""CPU stand-in for flash-attn 2's compiled extension: its checks, its rules, none of its kernels.

Texts of errors are our own. What a GPU would do with wrong arguments, read beyond a pool or fault
on a misaligned address, is an error here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pagedattn.conformance.emulation.flash_attn.attend import (
    Rules,
    attend,
    key_range,
    starts_without_keys,
)
from pagedattn.conformance.emulation.flash_attn.capture import launched

__all__ = ["fwd_kvcache", "not_modelled", "varlen_fwd"]

VECTOR_BYTES = 16
PAGE = 256


def require(fact: bool, expected: str) -> None:
    if not fact:
        raise RuntimeError(f"flash_attn_2_cuda stand-in: {expected}")


def not_modelled(*args: object) -> None:
    """The functions for training and for caches without pages."""
    raise NotImplementedError("flash_attn_2_cuda stand-in: this function is not modelled")


def key_tile(dim: int) -> int:
    """Keys that a kernel for paged caches loads at once."""
    return 256 if dim <= 64 else 128 if dim <= 128 else 64


@launched
def varlen_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqused_k: Tensor | None,
    leftpad_k: Tensor | None,
    block_table: Tensor | None,
    alibi_slopes: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    return_softmax: bool,
    generator: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q [T, Hq, D] -> out, lse [Hq, T], and two tensors of no use here."""
    requests = cu_seqlens_q.numel() - 1
    require(leftpad_k is None and seqused_k is None, "leftpad_k and seqused_k are not modelled")
    require(p_dropout == 0 and not return_softmax and not zero_tensors, "inference only")
    for name, lengths in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        require(lengths.dtype == torch.int32, f"{name} must be int32")
        require(lengths.is_contiguous(), f"{name} must be contiguous")
        require(lengths.shape == (requests + 1,), f"{name} must have {requests + 1} entries")
    table = check_inputs(q, k, v, block_table, requests)
    require(q.shape[-1] % 8 == 0, "head_dim must be a multiple of 8")
    if max_seqlen_q == 1 and alibi_slopes is None:
        causal = False
    window = (window_left, 0 if causal else window_right)
    # The heads of a group become rows, which takes exactly one row of every request.
    packed = max_seqlen_q == 1 and q.shape[1] > k.shape[2] and window == (-1, -1)
    require(
        not (packed and alibi_slopes is None) or q.shape[0] == requests,
        "with max_seqlen_q=1 and grouped heads, q must have one row per request",
    )
    rules = Rules.of(
        scale=softmax_scale,
        causal=causal,
        window=window,
        longest=max_seqlen_k,
        softcap=softcap,
        slopes=alibi_slopes,
    )
    result = torch.full_like(q, float("nan")) if out is None else out
    lse = torch.full((q.shape[1], q.shape[0]), float("nan"))
    starts, ends = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    require(starts[-1] <= q.shape[0], "cu_seqlens_q ends beyond q")
    for r in range(requests):
        # Rows and keys beyond the bounds that size the grid are never reached.
        rows, keys = starts[r + 1] - starts[r], ends[r + 1] - ends[r]
        require(rows <= max_seqlen_q, "a request has more rows than max_seqlen_q")
        require(keys <= max_seqlen_k, "a request has more keys than max_seqlen_k")
        require(
            not starts_without_keys(rules, rows, keys),
            f"{rows} rows of {keys} keys: the LSE of rows without keys is written elsewhere",
        )
        if rows == 0:
            continue
        own = slice(starts[r], starts[r + 1])
        result[own], log_sum = one(rules, q[own], k, v, table[r], keys)
        lse[:, own] = log_sum.T
    return result, lse, torch.empty(0, dtype=q.dtype), torch.empty(2, dtype=torch.int64)


@launched
def fwd_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    seqlens_k: Tensor | None,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    cache_batch_idx: Tensor | None,
    leftpad_k: Tensor | None,
    block_table: Tensor | None,
    alibi_slopes: Tensor | None,
    out: Tensor | None,
    softmax_scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    rotary_interleaved: bool,
    num_splits: int,
) -> tuple[Tensor, Tensor]:
    """q [B, rows, Hq, D] -> out, lse [B, Hq, rows]; keys come from the cache alone."""
    unused = (k, v, rotary_cos, rotary_sin, cache_batch_idx, leftpad_k)
    require(all(x is None for x in unused), "only attention over a paged cache is modelled")
    requests, rows = q.shape[:2]
    table = check_inputs(q, k_cache, v_cache, block_table, requests)
    assert seqlens_k is not None
    require(seqlens_k.dtype == torch.int32, "cache_seqlens must be int32")
    require(seqlens_k.is_contiguous(), "cache_seqlens must be contiguous")
    require(seqlens_k.shape == (requests,), f"cache_seqlens must have {requests} entries")
    require(0 <= num_splits <= 128, "num_splits must be in 0..128")
    if rows == 1 and alibi_slopes is None:
        causal = False
    rules = Rules.of(
        scale=softmax_scale,
        causal=causal,
        window=(window_left, window_right),
        longest=table.shape[1] * k_cache.shape[1],
        softcap=softcap,
        slopes=alibi_slopes,
    )
    result = torch.full_like(q, float("nan")) if out is None else out
    lse = torch.full((requests, q.shape[2], rows), float("nan"))
    for r, keys in enumerate(seqlens_k.tolist()):
        require(keys <= rules.longest, "cache_seqlens exceeds the block table")
        result[r], log_sum = one(rules, q[r], k_cache, v_cache, table[r], keys)
        lse[r] = log_sum.T
    return result, lse


def check_inputs(
    q: Tensor, k: Tensor, v: Tensor, block_table: Tensor | None, requests: int
) -> Tensor:
    """What the host code checks, and what a GPU would fault on. Returns the block table."""
    require(0 < requests <= 65535, "1 to 65535 requests fit into a grid")
    require(q.dtype in (torch.float16, torch.bfloat16), "q must be float16 or bfloat16")
    require(k.dtype == v.dtype == q.dtype, "q, k and v must have one dtype")
    assert block_table is not None
    require(block_table.dtype == torch.int32, "block_table must be int32")
    require(block_table.stride(-1) == 1, "the last stride of block_table must be 1")
    require(block_table.shape[0] == requests, f"block_table must have {requests} rows")
    require(k.dim() == v.dim() == 4, "a paged cache is [pages, page, heads, dim]")
    require(k.shape == v.shape, "k and v must have one shape")
    require(k.shape[1] % PAGE == 0, f"pages must be multiples of {PAGE} tokens, not {k.shape[1]}")
    require(q.shape[-1] == k.shape[-1], "q and k must have one head_dim")
    require(q.shape[-1] <= 256, "head_dim must not exceed 256")
    require(q.shape[-2] % k.shape[2] == 0, "heads must be a multiple of the kv heads")
    for name, x in (("q", q), ("k", k), ("v", v)):
        require(x.stride(-1) == 1, f"the last stride of {name} must be 1")
        steps = [s for s, size in zip(x.stride()[:-1], x.shape, strict=False) if size > 1]
        addresses = [x.data_ptr(), *(s * x.itemsize for s in steps)]
        require(not any(a % VECTOR_BYTES for a in addresses), f"{name} is misaligned (GPU fault)")
    return block_table


def one(
    rules: Rules, q: Tensor, k: Tensor, v: Tensor, table: Tensor, keys: int
) -> tuple[Tensor, Tensor]:
    """One request: gathers the keys of the tiles that the kernel visits, and attends."""
    if keys == 0:
        return torch.zeros_like(q), torch.full(q.shape[:2], torch.inf)
    page, tile = k.shape[1], key_tile(q.shape[-1])
    seen = key_range(rules, q.shape[0], keys, tile)
    position = torch.arange(seen.start, seen.stop)
    block = table[position // page].long()
    if len(seen):
        low, high = int(block.min()), int(block.max())
        require(low >= 0 and high < k.shape[0], f"page {low}..{high} lies outside the pool")
    offset = position % page
    out, lse = attend(rules, q, k[block, offset], v[block, offset], seen, keys)
    return out, lse.float()
