"""Who shares whose memory: ranges of addresses, and the exact answer where ranges meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pagedattn.batch import KVCache

__all__ = ["Pools", "distinct", "extent", "overlap", "pools_of"]

MOST_PIECES = 2**20
"""Pools of more pieces, of unlike strides and within each other's range, are taken for disjoint."""


@dataclass(frozen=True)
class Pools:
    """Where a cache lies: addresses of K and V, ends excluded.

    fault  name and fault of a pool that cannot be written: one place for two elements
    """

    k: tuple[int, int]
    v: tuple[int, int]
    fault: tuple[str, str] | None

    def near(self, x: Tensor, size: int) -> bool:
        """Whether `x`, of that extent, may share memory with a pool."""
        begin = x.data_ptr()
        end = begin + size
        return (self.k[0] < end and begin < self.k[1]) or (self.v[0] < end and begin < self.v[1])


def extent(x: Tensor) -> int:
    """Bytes from the first element to behind the last one; 0 when there is none."""
    if not x.numel():
        return 0
    last = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return (last + 1) * x.itemsize


def pools_of(cache: KVCache, *, shared_kv: bool) -> Pools:
    """Where the pools lie, and whether two elements of them, or of scales that write() computes,
    share a place."""
    k, v = cache.k, cache.v
    ranges = [(x.data_ptr(), x.data_ptr() + extent(x)) for x in (k, v)]
    fault = None
    for name, pool in (("cache.k", k), ("cache.v", v)):
        if not distinct(pool):
            fault = name, f"stride {list(pool.stride())}: several elements in one place"
    if fault is None and not shared_kv and _pools_overlap(k, v):
        fault = "cache.v", "overlaps cache.k"
    k_scale, v_scale = cache.k_scale, cache.v_scale
    if fault is None and k_scale is not None and v_scale is not None and k_scale.dim() == 3:
        for name, scale in (("cache.k_scale", k_scale), ("cache.v_scale", v_scale)):
            if not distinct(scale):
                fault = name, f"stride {list(scale.stride())}: several elements in one place"
        if not shared_kv and _pools_overlap(k_scale[..., None], v_scale[..., None]):
            fault = "cache.v_scale", "overlaps cache.k_scale"
    return Pools(ranges[0], ranges[1], fault)


def distinct(x: Tensor) -> bool:
    """No two elements in one place, as far as strides tell: each step clears all smaller ones."""
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def _pools_overlap(k: Tensor, v: Tensor) -> bool:
    """Of two pools of one number of blocks. Where their blocks lie equally far apart, the first and
    the last block of one meet all the distances that there are."""
    if not k.numel() or not v.numel():
        return False
    if k.stride(0) == v.stride(0):
        return overlap(k[:1], v) or overlap(k[-1:], v)
    if max(k.numel() // k.shape[-1], v.numel() // v.shape[-1]) > MOST_PIECES:
        return False
    return overlap(k, v)


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share memory; exact, for tensors that may be slices of one buffer. Their
    last dimension is contiguous: each is a set of equal intervals. `b` may be a large pool."""
    if a.numel() == 0 or b.numel() == 0:
        return False
    b = _near(b, a.data_ptr(), a.data_ptr() + extent(a))
    if b.numel() == 0:
        return False
    (starts_a, length_a), (starts_b, length_b) = _intervals(a), _intervals(b)
    # The last interval of b that begins before one of a ends is the one that reaches furthest.
    last = torch.searchsorted(starts_b, starts_a + length_a) - 1
    return bool(((last >= 0) & (starts_b[last.clamp(min=0)] + length_b > starts_a)).any())


def _near(x: Tensor, begin: int, end: int) -> Tensor:
    """The entries of dimension 0 that may lie between these addresses."""
    step, start = x.stride(0) * x.itemsize, x.data_ptr()
    if step <= 0:
        return x
    first = max(0, (begin - extent(x[0]) - start) // step)
    last = min(x.shape[0], -((start - end) // step))
    return x[first : max(first, last)]


def _intervals(x: Tensor) -> tuple[Tensor, int]:
    """Addresses of the contiguous pieces, ascending, and their length in bytes."""
    starts = torch.tensor([x.data_ptr()], device="cpu")
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        steps = torch.arange(size, device="cpu") * stride * x.itemsize
        starts = (starts[:, None] + steps).flatten()
    return starts.sort().values, x.shape[-1] * x.itemsize
