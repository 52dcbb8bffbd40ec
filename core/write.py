"""The default write(): stores a step's keys and values in the cache on any device.

No data-dependent shape and no synchronisation, so that it can be captured in a CUDA graph: a row
whose slot is negative repeats the first live row's write (same slot, same value), and when there is
no live row at all slot 0 is rewritten with what it holds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pagedattn.batch import KVCache
from pagedattn.spec import AttentionSpec, KVQuant

__all__ = ["as_bytes", "dequantise", "quantise", "write_kv"]


def write_kv(
    spec: AttentionSpec, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
) -> None:
    """Store k [T, Hkv, D], v [T, Hkv, Dv] or None at slot_mapping i64 [n], n <= T."""
    n = slot_mapping.shape[0]
    if n == 0:
        return
    live = slot_mapping >= 0
    first = live.to(torch.uint8).argmax(0, keepdim=True)
    row = torch.where(live, torch.arange(n, device=live.device), first)
    slot = slot_mapping[row].clamp(min=0)
    block, offset = slot // spec.block_size, slot % spec.block_size
    any_live = live.any()

    def store(pool: Tensor, value: Tensor) -> None:
        pool = as_bytes(pool)
        value = torch.where(any_live, as_bytes(value), pool[block, offset])
        pool[block, offset] = value

    for source, pool, scale in ((k, cache.k, cache.k_scale), (v, cache.v, cache.v_scale)):
        if source is None:
            continue
        value = source[:n][row]
        if spec.kv_quant is KVQuant.NONE:
            store(pool, value.to(pool.dtype))
            continue
        assert scale is not None
        if spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
            token_scale = amax_scale(value, pool.dtype)
            store(scale, token_scale)
        else:
            token_scale = scale.expand(value.shape[1])
        store(pool, quantise(value, token_scale[..., None], pool.dtype))


def quantise(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x / scale rounded to nearest even and saturated to `dtype` (int8: -127..127). NaN stays NaN
    in fp8 and becomes 0 in int8."""
    limit = qmax(dtype)
    scaled = (x.float() / scale).clamp(-limit, limit)
    if dtype is torch.int8:
        return scaled.round().nan_to_num(0.0).to(dtype)
    return scaled.to(dtype)


def dequantise(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """stored * scale, in `dtype`."""
    return x.to(dtype) * scale.to(dtype)


def amax_scale(x: Tensor, dtype: torch.dtype) -> Tensor:
    """PER_TOKEN_HEAD scale of x [..., D]: max|x| / qmax, 1 where that is 0; f32 [...]."""
    scale = x.float().abs().amax(-1) / qmax(dtype)
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def qmax(dtype: torch.dtype) -> float:
    """Largest magnitude that quantised values reach."""
    return 127.0 if dtype is torch.int8 else torch.finfo(dtype).max


def as_bytes(x: Tensor) -> Tensor:
    """8-bit floats as uint8: torch indexes and selects those on every device."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x
