"""Inputs that are taken for tidier than they are: aligned, of equal strides, small, in float32; and
guests that do not behave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.batch import KVCache
from pagedattn.conformance.mutants.honest import HonestBackend, HonestOp
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.device import DeviceInfo
from pagedattn.spec import AttentionSpec, KVQuant, Limits
from pagedattn.write import amax_scale, as_bytes, quantise

__all__ = ["MUTANTS"]

garden = Garden()


def _aligned(x: Tensor) -> bool:
    steps = [x.stride(i) for i in range(x.dim() - 1) if x.shape[i] > 1]
    return x.data_ptr() % 16 == 0 and all(step * x.itemsize % 16 == 0 for step in steps)


# -- run() ---------------------------------------------------------------------------------------


class _Run(HonestOp):
    """q and the cache go through of()."""

    def of(self, q: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        raise NotImplementedError

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
        q, cache = self.of(q, cache)
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("q-aligned-only", "q is loaded 16 bytes at a time, wherever it begins", "KH-26")
class _AlignedQ(_Run):
    def of(self, q: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        return (q if _aligned(q) else q * 0), cache


@garden.op("pools-aligned-only", "pools are loaded 16 bytes at a time", "KH-24")
class _AlignedPools(_Run):
    def of(self, q: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        if _aligned(cache.k) and _aligned(cache.v):
            return q, cache
        return q, replace(cache, k=torch.zeros_like(cache.k))


@garden.op("stride-0-of-heads", "a stride of 0 is taken for a dimension of 1", "KH-25")
class _ZeroStride(_Run):
    def of(self, q: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        return (q * 0 if q.stride(1) == 0 and q.shape[1] > 1 else q), cache


@garden.op("values-below-20000", "V is clamped so that sums fit 16 bits", "KH-45")
class _Clamped(HonestOp):
    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        return super().mix(weight, v.clamp(-2e4, 2e4))


@garden.op("out-cut-off", "out is cut to bfloat16 instead of rounded", "KH-46")
class _CutOff(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        out, lse = super().weigh(score, v, sinks)
        if self.spec.out_dtype is torch.bfloat16:
            out = (out.contiguous().view(torch.int32) & -65536).view(torch.float32)
        return out, lse


@garden.op("zero-sinks-off", "sinks that are all 0 are taken for none", "KH-40")
class _ZeroSinks(HonestOp):
    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().weigh(score, v, sinks if sinks is not None and bool(sinks.any()) else None)


@garden.op("slopes-up-to-1", "slopes are clamped to 1", "KH-41")
class _GentleSlopes(HonestOp):
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
        slopes = None if alibi_slopes is None else alibi_slopes.clamp(max=1.0)
        super().kernel(q, cache, plan, out, lse, sinks, slopes)


@garden.op("lse-floor", "the LSE is kept above -1000", "KH-35")
class _Floor(HonestOp):
    def log_sum(self, top: Tensor, total: Tensor) -> Tensor:
        lse = super().log_sum(top, total)
        return torch.where(lse.isfinite(), lse.clamp(min=-1000.0), lse)


# -- write() -------------------------------------------------------------------------------------


class _Write(HonestOp):
    """k and v go through new()."""

    def new(self, x: Tensor, k: Tensor) -> Tensor:
        raise NotImplementedError

    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        new_v = None if v is None else self.new(v, k)
        super().write_kernel(self.new(k, k), new_v, cache, slot_mapping)


@garden.op("new-v-by-strides-of-k", "the rows of v are read by the strides of k", "KH-26")
class _StridesOfK(_Write):
    def new(self, x: Tensor, k: Tensor) -> Tensor:
        try:
            return x.as_strided(x.shape, k.stride())
        except RuntimeError:  # it would leave its memory
            return x * 0


@garden.op("new-rows-aligned-only", "k and v are loaded 16 bytes at a time", "KH-26")
class _AlignedRows(_Write):
    def new(self, x: Tensor, k: Tensor) -> Tensor:
        return x if _aligned(x) else x * 0


@garden.op("new-nan-cleaned", "NaN is stored as 0", "KH-27")
class _Cleaned(_Write):
    def new(self, x: Tensor, k: Tensor) -> Tensor:
        return x.nan_to_num(0.0) if self.spec.kv_quant is KVQuant.NONE else x


@garden.op("new-rows-scaled-in-place", "write() uses v as its scratch")
class _Scratch(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        super().write_kernel(k, v, cache, slot_mapping)
        (k if v is None else v).mul_(2)


@garden.op("v-columns-of-k", "as many columns of V are stored as K has")
class _ColumnsOfK(HonestOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        before = cache.v.clone()
        super().write_kernel(k, v, cache, slot_mapping)
        if v is not None:
            cache.v[..., k.shape[-1] :] = before[..., k.shape[-1] :]


class _Quantised(HonestOp):
    """quantise() in steps, token by token."""

    def codes(self, x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return quantise(x, scale, dtype)

    def scale(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return amax_scale(x, dtype)

    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        if self.spec.kv_quant is KVQuant.NONE:
            return super().write_kernel(k, v, cache, slot_mapping)
        for rows, pool, scales in ((k, cache.k, cache.k_scale), (v, cache.v, cache.v_scale)):
            if rows is None or scales is None:
                continue
            for row, slot in zip(rows, slot_mapping.tolist(), strict=False):
                if slot < 0:
                    continue
                at = divmod(slot, self.spec.block_size)
                scale = scales.expand(row.shape[0]) if scales.dim() < 3 else scales[at]
                if scales.dim() == 3:
                    scale = scales[at] = self.scale(row, pool.dtype)
                as_bytes(pool)[at] = as_bytes(self.codes(row, scale[:, None], pool.dtype))


@garden.op("divided-in-16-bits", "x / scale is computed in the dtype of x", "KH-47")
class _Divided(_Quantised):
    def codes(self, x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return quantise(x / scale.to(x.dtype), torch.ones_like(scale), dtype)


@garden.op("e5m2-overflows", "what e5m2 cannot hold becomes infinite", "KH-47")
class _Overflows(_Quantised):
    def codes(self, x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype is not torch.float8_e5m2:
            return quantise(x, scale, dtype)
        return (x.float() / scale).to(dtype)


@garden.op("scale-floor", "scales of tokens are kept above 1e-6", "KH-48")
class _ScaleFloor(_Quantised):
    def scale(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return amax_scale(x, dtype).clamp(min=1e-6)


@garden.op("scale-of-64-columns", "max|x| is taken over the first 64 columns", "KH-48")
class _ScaleColumns(_Quantised):
    def scale(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return amax_scale(x[..., :64], dtype)


# -- guests --------------------------------------------------------------------------------------


@garden.op("seeds-everybody", "open() seeds torch's random numbers")
class _Seeds(HonestOp):
    def setup(self) -> None:
        torch.manual_seed(0)


@garden.op("limits-overflow", "open() multiplies blocks and slots in 32 bits", "KH-01")
class _LimitsOverflow(HonestOp):
    def setup(self) -> None:
        if self.limits.num_blocks * self.spec.block_size > 2**31:
            raise OverflowError("int too large")


@garden.backend("describes-what-it-knows", "describe() fails for a block size that is not listed")
class _Describes(HonestBackend):
    def describe(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Any]:
        return {"rows": {8: 1, 16: 2, 32: 4}[spec.block_size]}


@garden.backend("knob-of-nothing", "tunables() names a knob without a value")
class _Nothing(HonestBackend):
    def tunables(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Sequence[int]]:
        return {"fraction": ()}


@garden.backend("workspace-to-the-byte", "the scratch is viewed as exactly what was asked for")
class _ToTheByte(HonestBackend):
    class op(HonestOp):  # noqa: N801
        def setup(self) -> None:
            self.workspace.view(4, 16)

    def workspace_bytes(self, spec: AttentionSpec, limits: Limits, device: DeviceInfo) -> int:
        return 64


MUTANTS = tuple(garden.mutants)
