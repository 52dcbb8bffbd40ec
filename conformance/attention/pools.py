"""KV pools full of poison, and putting keys and values into them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pagedattn.batch import KVCache, scale_shape
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.placing import GAP, Guard, Placing, Storage
from pagedattn.spec import AttentionSpec, KVQuant, Layout

__all__ = ["as_bytes", "make_cache", "store"]


def make_cache(
    spec: AttentionSpec,
    num_blocks: int,
    device: torch.device,
    placing: Placing,
    guards: list[Guard],
) -> KVCache:
    """Pools full of poison. Their bytes are guarded: run() changes none of them."""
    inner = (spec.block_size, spec.num_kv_heads)
    hnd = spec.layout is Layout.HND
    inner = inner[::-1] if hnd else inner

    def oriented(x: Tensor) -> Tensor:
        return x.transpose(1, 2) if hnd else x

    def poisoned(shape: tuple[int, ...], which: int) -> Tensor:
        base = torch.empty(shape, dtype=spec.kv_dtype, device=device)
        _poison(base, placing.poison.value[which])
        return base

    gap = {Storage.GAPS: GAP, Storage.ODD: 1}.get(placing.storage, 0)
    at = 1 if placing.storage is Storage.ODD else 0
    dim, dim_v = spec.head_dim, spec.head_dim_v
    split: Callable[[Tensor], list[Tensor]]
    if spec.shared_kv:
        bases = [poisoned((num_blocks, *inner, dim + gap), 0)]
        splits = [lambda x: [oriented(x)[..., at : at + dim]]]
    elif placing.storage is Storage.INTERLEAVED and dim == dim_v:
        bases = [poisoned((num_blocks, 2, *inner, dim), 0)]
        splits = [lambda x: [oriented(x[:, 0]), oriented(x[:, 1])]]
    elif placing.storage is Storage.INTERLEAVED:
        bases = [poisoned((num_blocks, *inner, dim + dim_v), 0)]
        splits = [lambda x: [oriented(x)[..., :dim], oriented(x)[..., dim:]]]
    else:
        # Gaps of other sizes: nothing says that K and V have equal strides.
        bases = [
            poisoned((num_blocks, *inner, d + (i + 1) * gap), i) for i, d in enumerate((dim, dim_v))
        ]
        splits = [
            lambda x: [oriented(x)[..., at : at + dim]],
            lambda x: [oriented(x)[..., at : at + dim_v]],
        ]
    pools = []
    for base, split in zip(bases, splits, strict=True):
        guards.append(Guard("the KV pool", "unowned-slots", base, slots=split))
        pools += split(base)
    k, v = pools if len(pools) == 2 else (pools[0], pools[0][..., :dim_v])
    if placing.storage is Storage.INTERLEAVED and len(pools) == 2:
        _poison(v, placing.poison.value[1])
    if spec.kv_quant is KVQuant.NONE:
        return KVCache(k=k, v=v)
    scales = [
        _scales(spec, num_blocks, device, placing.poison.value[i], 3 + i, guards)
        for i in range(1 if spec.shared_kv else 2)
    ]
    return KVCache(k=k, v=v, k_scale=scales[0], v_scale=scales[-1])


def _scales(
    spec: AttentionSpec,
    num_blocks: int,
    device: torch.device,
    poison: tuple[float, ...],
    gap: int,
    guards: list[Guard],
) -> Tensor:
    """Scales are strided: PER_TOKEN_HEAD has a gap behind each token, PER_HEAD behind each head."""
    shape = scale_shape(spec, num_blocks)
    if spec.kv_quant is KVQuant.PER_TENSOR:
        one = torch.ones(shape, device=device)
        guards.append(Guard("a constant scale", "quantisation", one))
        return one
    if spec.kv_quant is KVQuant.PER_HEAD:
        columns = torch.full((*shape, gap), float("nan"), device=device)
        guards.append(Guard("a constant scale", "quantisation", columns))
        return columns[:, 0].fill_(1.0)
    heads = shape[2]
    wide = torch.empty((*shape[:2], heads + gap), device=device)
    _poison(wide, poison)
    guards.append(Guard("the scales", "unowned-slots", wide, slots=lambda x: [x[..., :heads]]))
    return wide[..., :heads]


def _poison(x: Tensor, pattern: tuple[float, ...]) -> None:
    """Fill x, also where its dtype cannot hold the pattern: int8 gets its extremes instead."""
    numbers = torch.tensor(pattern)
    if x.dtype is torch.int8:
        numbers = torch.nan_to_num(numbers, nan=-128.0, posinf=127.0, neginf=-127.0).clamp(
            -128, 127
        )
    flat = numbers.repeat(-(-x.numel() // len(pattern)))[: x.numel()].reshape(x.shape)
    x.copy_(flat.to(x.dtype))


def store(content: Content, tables: list[list[int | None]], cache: KVCache) -> None:
    """Put the keys, values and scales of every request into its blocks; [] for one whose blocks
    are another's. A block that is None is not stored."""
    for request, table in enumerate(tables):
        if table:
            _store(content, request, table, cache)
    for scale, given in ((cache.k_scale, content.k_scale), (cache.v_scale, content.v_scale)):
        if isinstance(given, Tensor):
            assert scale is not None
            scale.copy_(given)


def _store(content: Content, request: int, table: list[int | None], cache: KVCache) -> None:
    size = content.spec.block_size
    positions = [p for p in range(len(content.k[request])) if table[p // size] is not None]
    if not positions:
        return
    at = torch.tensor(positions)
    blocks = torch.tensor([table[p // size] for p in positions], device=cache.k.device)
    offsets = (at % size).to(cache.k.device)
    pools = [(cache.k, content.k[request])]
    if not content.spec.shared_kv:
        pools.append((cache.v, content.v[request]))
    for pool, values in pools:
        as_bytes(pool)[blocks, offsets] = as_bytes(values)[at].to(pool.device)
    for scale, given in ((cache.k_scale, content.k_scale), (cache.v_scale, content.v_scale)):
        if isinstance(given, tuple):
            assert scale is not None
            scale[blocks, offsets] = given[request][at].to(scale.device)


def as_bytes(x: Tensor) -> Tensor:
    """8-bit floats as uint8: torch indexes those on every device."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x
