"""CupyOp: compiles in setup(), cuts a step into work in prepare(), only launches in kernel()."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from pagedattn.attention import AttentionOp, Plan
from pagedattn.backends.cupy import driver
from pagedattn.backends.cupy.heuristics import COMBINE
from pagedattn.backends.cupy.loader import load
from pagedattn.backends.cupy.params import AttentionParams, WriteParams
from pagedattn.backends.cupy.work import StepWork, phases, step_work
from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.spec import KVQuant, Mask

if TYPE_CHECKING:
    from pagedattn.backends.cupy.backend import CupyBackend

__all__ = ["CupyOp"]

DTYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.int8: 3,
    torch.float8_e4m3fn: 4,
    torch.float8_e5m2: 5,
}
"""enum Dtype of kernels/types.cuh"""

MASKS = {Mask.CAUSAL: 0, Mask.FULL: 1, Mask.TREE: 2}
UNBOUNDED = 2**31 - 1
WRITE_WARPS = 4


class CupyOp(AttentionOp):
    """Attention by raw CUDA kernels."""

    def setup(self) -> None:
        spec, info = self.spec, self.info
        kernels = cast("CupyBackend", self.backend).kernels(spec, info, self.tuning)
        assert kernels is not None  # refuse() has seen to that
        self._phases = phases(spec, self.limits, info, kernels, self.tuning)
        self._launches = [load(phase.kernel, info, self.device) for phase in self._phases]
        self._combine = load(COMBINE, info, self.device)
        self._write = load(kernels.write, info, self.device)
        self._fixed = self._constant_params()
        self._caches: weakref.WeakKeyDictionary[KVCache, Any] = weakref.WeakKeyDictionary()
        self._writes: weakref.WeakKeyDictionary[KVCache, Any] = weakref.WeakKeyDictionary()

    def prepare(self, batch: AttentionBatch, data: StepWork | None) -> StepWork:
        return step_work(self.spec, self.limits, self._phases, batch, self.device, data)

    def kernel(
        self,
        q: Tensor,
        cache: KVCache,
        plan: Plan,
        out: Tensor,
        lse: Tensor | None,
        sinks: Tensor | None,
        alibi_slopes: Tensor | None,
    ) -> None:
        p = self._caches.get(cache)
        if p is None:
            p = self._caches[cache] = self._cache_params(cache)
        work: StepWork = plan.data
        p.q, p.out, p.lse = q.data_ptr(), out.data_ptr(), _pointer(lse)
        p.sinks, p.slopes = _pointer(sinks), _pointer(alibi_slopes)
        p.q_row, p.q_head, _ = q.stride()
        p.out_row, p.out_head, _ = out.stride()
        p.q_vectors = _aligned(q)
        (
            p.block_table,
            p.table_row,
            p.query_start,
            p.seq_lens,
            p.tree_mask,
            p.tree_indptr,
        ) = work.batch
        space = self.workspace.data_ptr()
        stream, heads = driver.DRIVER.stream(self.device), self.spec.num_kv_heads
        for phase, launch, lists, (items, joins) in zip(
            self._phases, self._launches, work.lists, work.counts, strict=True
        ):
            if not items:
                continue
            p.rows, (p.items, p.joins) = phase.rows, lists
            p.partial_out = space + phase.offset
            p.partial_state = space + phase.state_offset
            launch(items, heads, p, stream)
            if joins:
                self._combine(joins, heads, p, stream)

    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        slots = slot_mapping.shape[0]
        if slots == 0:
            return
        p = self._writes.get(cache)
        if p is None:
            p = self._writes[cache] = self._write_params(cache)
        p.k, p.v, p.slots, p.num_slots = k.data_ptr(), _pointer(v), slot_mapping.data_ptr(), slots
        p.k_row, p.k_head, _ = k.stride()
        if v is not None:
            p.v_row, p.v_head, _ = v.stride()
        p.vectors = all(_aligned(x) for x in (k, v, cache.k, cache.v) if x is not None)
        warps = slots * self.spec.num_kv_heads * (1 if v is None else 2)
        self._write(-(-warps // WRITE_WARPS), 1, p, driver.DRIVER.stream(self.device))

    # -- what does not change from step to step --------------------------------------------------

    def _constant_params(self) -> Any:
        """What the spec says."""
        spec, p = self.spec, AttentionParams()
        p.num_kv_heads, p.group = spec.num_kv_heads, spec.group_size
        p.head_dim, p.head_dim_v, p.block_size = spec.head_dim, spec.head_dim_v, spec.block_size
        p.block_multiplier, p.block_shift = _division(spec.block_size)
        p.q_dtype, p.out_dtype = DTYPES[spec.dtype], DTYPES[spec.out_dtype]
        p.scale_per_token = spec.kv_quant is KVQuant.PER_TOKEN_HEAD
        p.mask = MASKS[spec.mask]
        left, right = spec.window
        p.window_left = UNBOUNDED if left is None else left
        p.window_right = UNBOUNDED if right is None else right
        p.shared_kv, p.scale, p.softcap = spec.shared_kv, spec.scale, spec.softcap or 0.0
        return p

    def _cache_params(self, cache: KVCache) -> Any:
        """The above, and where the cache lies."""
        p = AttentionParams.from_buffer_copy(self._fixed)
        p.k, p.v = cache.k.data_ptr(), cache.v.data_ptr()
        p.k_block, p.k_slot, p.k_head, _ = cache.k.stride()
        p.v_block, p.v_slot, p.v_head, _ = cache.v.stride()
        p.k_vectors, p.v_vectors = _aligned(cache.k), _aligned(cache.v)
        self._scale_params(p, cache)
        return p

    def _write_params(self, cache: KVCache) -> Any:
        spec, p = self.spec, WriteParams()
        p.k_pool, p.v_pool = cache.k.data_ptr(), cache.v.data_ptr()
        p.k_pool_block, p.k_pool_slot, p.k_pool_head, _ = cache.k.stride()
        p.v_pool_block, p.v_pool_slot, p.v_pool_head, _ = cache.v.stride()
        p.num_kv_heads, p.block_size = spec.num_kv_heads, spec.block_size
        p.head_dim, p.head_dim_v = spec.head_dim, spec.head_dim_v
        p.dtype, p.pool_dtype = DTYPES[spec.dtype], DTYPES[spec.kv_dtype]
        p.scale_per_token = spec.kv_quant is KVQuant.PER_TOKEN_HEAD
        self._scale_params(p, cache)
        return p

    def _scale_params(self, p: ctypes.Structure, cache: KVCache) -> None:
        """Pointers and strides of the scales: 0 along what they do not depend on."""
        for name, scale in (("k_scale", cache.k_scale), ("v_scale", cache.v_scale)):
            if scale is None:
                continue
            strides = (0, 0, 0, *scale.stride())[-3:]
            setattr(p, name, scale.data_ptr())
            for axis, stride in zip(("block", "slot", "head"), strides, strict=True):
                setattr(p, f"{name}_{axis}", stride)


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _aligned(x: Tensor) -> bool:
    """Whether every row of the last dimension starts at a multiple of 16 bytes."""
    size = x.element_size()
    return x.data_ptr() % 16 == 0 and all(
        stride * size % 16 == 0
        for stride, count in zip(x.stride()[:-1], x.shape[:-1], strict=True)
        if count > 1
    )


def _division(divisor: int) -> tuple[int, int]:
    """(multiplier, shift): n / divisor == n * multiplier >> shift for 0 <= n < 2**31."""
    shift = 31 + (divisor - 1).bit_length()
    return -(-(1 << shift) // divisor), shift
