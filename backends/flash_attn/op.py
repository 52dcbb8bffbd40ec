"""plan() and run() of every variant."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from pagedattn.attention import AttentionOp, Plan
from pagedattn.backends.flash_attn.calls import CALLS, Call
from pagedattn.backends.flash_attn.presence import functions
from pagedattn.backends.flash_attn.step import Step
from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.errors import InvalidTensor
from pagedattn.spec import Graph

if TYPE_CHECKING:
    from pagedattn.backends.flash_attn.backend import Choosing

__all__ = ["FlashAttnOp"]

ALIGNMENT = 16
"""Bytes that the kernels load at once: rows must start at multiples of it."""


class FlashAttnOp(AttentionOp):
    """Calls the variant that the backend chose for this spec and device."""

    def setup(self) -> None:
        self.variant = cast("Choosing", self.backend).choose(self.spec, self.info)
        self.call = CALLS[self.variant.name]
        self.functions = functions(self.variant)
        self._aligned: set[object] = set()

    def prepare(self, batch: AttentionBatch, data: Any) -> Any:
        step = Step.of(batch, self.spec, self.limits, keyless_rows=self.variant.keyless_rows)
        return step if data is None else data.refreshed(step)

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
        step: Step = plan.data
        n = min(step.rows, q.shape[0], out.shape[0])
        if n == 0:
            return
        q, out, lse = q[:n], out[:n], None if lse is None else lse[:n]
        self._check_alignment(q, out, cache)
        if self._no_keys(plan):
            result, log_sum = torch.zeros_like(out), _nothing(lse, sinks)
        else:
            launched = q if step.source is None else q[step.source[:n]]
            into = out if step.source is None else torch.empty_like(launched)
            call = Call(self.functions, self.spec, step, cache, launched, into, sinks, alibi_slopes)
            made, log_sum = self.call(call)
            if made is None and into is out:
                return  # the library wrote it
            result = into if made is None else made
            if log_sum is not None:  # of a NaN sum the libraries give that of a row without keys
                log_sum = torch.where(result.isnan().any(-1), math.nan, log_sum)
            if step.place is not None:
                place = step.place[:n]
                result, log_sum = result[place], None if log_sum is None else log_sum[place]
        for target, values, nothing in ((out, result, 0.0), (lse, log_sum, -math.inf)):
            if target is None or values is None:
                continue
            if step.seen is not None:
                values = torch.where(_as(step.seen[:n], target), values, nothing)
            if step.live is not None:
                values = torch.where(_as(step.live[:n], target), values, target)
            target.copy_(values)

    def _no_keys(self, plan: Plan) -> bool:
        """Whether no request can have keys, in any step that this launch serves."""
        if plan.batch.block_table.shape[1] == 0:
            return True
        return self.spec.graph is Graph.NEVER and plan.batch.max_seq_len == 0

    def _check_alignment(self, q: Tensor, out: Tensor, cache: KVCache) -> None:
        tensors = [("q", q), ("cache.k", cache.k), ("cache.v", cache.v)]
        if self.variant.in_place:
            tensors.append(("out", out))
        for name, x in tensors:
            key = (x.data_ptr() % ALIGNMENT, x.stride())
            if key in self._aligned:
                continue
            strides = [s for s, size in zip(x.stride()[:-1], x.shape, strict=False) if size > 1]
            if any(n % ALIGNMENT for n in (x.data_ptr(), *(s * x.itemsize for s in strides))):
                raise InvalidTensor(
                    name,
                    f"stride {list(x.stride())} of {x.dtype} at {x.data_ptr():#x}",
                    f"rows that start at multiples of {ALIGNMENT} bytes; copy it to such memory",
                )
            self._aligned.add(key)


def _as(rows: Tensor, target: Tensor) -> Tensor:
    """[n] made to broadcast over the other dimensions of target."""
    return rows.view(-1, *[1] * (target.dim() - 1))


def _nothing(lse: Tensor | None, sinks: Tensor | None) -> Tensor | None:
    """LSE of rows without keys."""
    if lse is None:
        return None
    if sinks is not None:
        return sinks.expand_as(lse)
    return torch.full_like(lse, float("-inf"))
