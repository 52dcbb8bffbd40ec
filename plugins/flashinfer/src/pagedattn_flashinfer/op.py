"""plan() and run() over FlashInfer's wrappers."""

from __future__ import annotations

import importlib
import math
import weakref
from typing import Any

import torch
from torch import Tensor

import pagedattn as pa
from pagedattn_flashinfer.step import Step

__all__ = ["FlashInferOp"]

ALIGNMENT = 16


class Planned:
    """What a plan knows. Its wrapper, which makes new buffers at will, belongs to the op.

    pages  i32 [B * M]  room for all pages that the batch's table can list
    rows   i64 [count]  rows of q that are launched, None: all
    """

    def __init__(self, pages: Tensor) -> None:
        self.pages = pages
        self.rows: Tensor | None = None
        self.step: Step


class FlashInferOp(pa.AttentionOp):
    """The decode wrapper when the spec allows one row per request, else the prefill wrapper."""

    def setup(self) -> None:
        self.flashinfer = importlib.import_module("flashinfer")
        self.free: list[Any] = []
        self.wrappers: weakref.WeakKeyDictionary[Planned, Any] = weakref.WeakKeyDictionary()

    def prepare(self, batch: pa.AttentionBatch, data: Any) -> Any:
        step = Step.of(batch, self.spec)
        planned = data or self._planned(batch)
        planned.step = step
        on = batch.device
        planned.rows = None
        if step.rows is not None:
            planned.rows = self._sent(step.rows, on)
        if step.count:
            entries = self._sent(step.entries, on)
            pages = planned.pages[: len(step.entries)]
            torch.index_select(batch.block_table.flatten(), 0, entries, out=pages)
            self._plan(self.wrappers[planned], step, pages)
        return planned

    def _sent(self, numbers: tuple[int, ...], on: torch.device) -> Tensor:
        made = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        return made.to(on, non_blocking=True)

    def _planned(self, batch: pa.AttentionBatch) -> Planned:
        wrapper = self.free.pop() if self.free else self._wrapper()
        pages = torch.empty(batch.block_table.numel(), dtype=torch.int32, device=batch.device)
        planned = Planned(pages)
        self.wrappers[planned] = wrapper
        weakref.finalize(planned, self.free.append, wrapper)  # it serves again
        return planned

    def _wrapper(self) -> Any:
        layout = self.spec.layout.name
        if self.spec.max_query_len == 1:
            # The tensor-core kernels take any group; the others only a few sizes.
            return self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                self.workspace,
                kv_layout=layout,
                use_tensor_cores=self.spec.group_size > 1,
                backend="fa2",
            )
        return self.flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self.workspace, kv_layout=layout, backend="fa2"
        )

    def _plan(self, wrapper: Any, step: Step, pages: Tensor) -> None:
        """Lengths are given on the CPU, where the library reads them: nothing waits."""
        spec = self.spec
        qo, kv, last = (
            torch.tensor(numbers, dtype=torch.int32, device="cpu")
            for numbers in (step.qo_indptr, step.kv_indptr, step.last_page_len)
        )
        shape = (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.block_size)
        options: dict[str, Any] = {
            "sm_scale": spec.scale,
            "window_left": self._window(),
            "logits_soft_cap": spec.softcap or 0.0,
            "q_data_type": spec.dtype,
            "kv_data_type": spec.dtype,
        }
        if spec.max_query_len == 1:
            wrapper.plan(kv, pages, last, *shape, **options)
        else:
            causal = spec.mask is pa.Mask.CAUSAL
            wrapper.plan(qo, kv, pages, last, *shape, causal=causal, **options)

    def _window(self) -> int:
        left = self.spec.window[0]
        return -1 if left is None else left

    def kernel(
        self,
        q: Tensor,
        cache: pa.KVCache,
        plan: pa.Plan,
        out: Tensor,
        lse: Tensor | None,
        sinks: Tensor | None,
        alibi_slopes: Tensor | None,
    ) -> None:
        n, planned = plan.num_tokens, plan.data
        rows, count = planned.rows, planned.step.count
        q, out, lse = q[:n], out[:n], None if lse is None else lse[:n]
        self._check(q, cache)
        if rows is not None:  # the others see no key
            out.zero_()
            if lse is not None:
                lse.fill_(float("-inf"))
        if count == 0:
            return
        pools = (cache.k, cache.v)
        if self.spec.layout is pa.Layout.HND:
            pools = (cache.k.transpose(1, 2), cache.v.transpose(1, 2))
        in_place = rows is None and out.is_contiguous()
        got = self.wrappers[planned].run(
            q if rows is None else q[rows],
            pools,
            out=out if in_place else None,
            lse=lse if rows is None else None,
            return_lse=lse is not None,
        )
        result, log_sum = got if lse is not None else (got, None)
        if rows is not None:
            out[rows] = result
        elif not in_place:
            out.copy_(result)
        if lse is not None:
            assert log_sum is not None
            natural = log_sum * math.log(2)
            if rows is None:
                lse.copy_(natural)
            else:
                lse[rows] = natural

    def _check(self, q: Tensor, cache: pa.KVCache) -> None:
        """What FlashInfer assumes: equal strides of both pools, rows at multiples of 16 bytes."""
        if cache.k.stride() != cache.v.stride():
            raise pa.InvalidTensor(
                "cache.v", f"stride {list(cache.v.stride())}", f"that of k, {cache.k.stride()}"
            )
        for name, x in (("q", q), ("cache.k", cache.k), ("cache.v", cache.v)):
            steps = [s for s, size in zip(x.stride()[:-1], x.shape, strict=False) if size > 1]
            if any(a % ALIGNMENT for a in (x.data_ptr(), *(s * x.itemsize for s in steps))):
                raise pa.InvalidTensor(
                    name,
                    f"stride {list(x.stride())} of {x.dtype} at {x.data_ptr():#x}",
                    f"rows that start at multiples of {ALIGNMENT} bytes",
                )
