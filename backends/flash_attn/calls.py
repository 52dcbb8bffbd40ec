"""One function per library: a step in its own words.

Each returns (out, lse): out [n, Hq, D] is the library's own tensor, or None when it wrote into the
caller's; lse is [n, Hq], a view of what the library returned, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedattn.backends.flash_attn.step import Step
from pagedattn.batch import KVCache
from pagedattn.spec import AttentionSpec, Mask

__all__ = ["CALLS", "Call"]

Answer = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True, eq=False)
class Call:
    """Everything that a library is called with. q, out: the first n rows."""

    functions: Mapping[str, Callable[..., Any]]
    spec: AttentionSpec
    step: Step
    cache: KVCache
    q: Tensor
    out: Tensor
    sinks: Tensor | None
    alibi_slopes: Tensor | None

    @property
    def causal(self) -> bool:
        return self.spec.mask is Mask.CAUSAL

    @property
    def window(self) -> tuple[int, int]:
        """-1 is an open side; a causal mask closes the right one itself."""
        left, right = self.spec.window
        return (-1 if left is None else left, -1 if right is None else right)


def fa2(call: Call) -> Answer:
    """Decode steps by the function that splits the keys, all others by the ragged one."""
    out, lse = _fa2_decode(call) if call.step.decode else _fa2_ragged(call)
    if lse is None:
        return out, None
    # +inf marks a row without keys.
    lse = lse.masked_fill(lse == float("inf"), float("-inf"))
    if call.step.position is not None:
        assert call.alibi_slopes is not None
        lse = lse - call.step.position[: len(lse), None] * call.alibi_slopes
    return out, lse


def _fa2_decode(call: Call) -> Answer:
    spec, step, q = call.spec, call.step, call.q
    got = call.functions["flash_attn_with_kvcache"](
        (q if step.first is None else q[step.first])[:, None],
        call.cache.k,
        call.cache.v,
        cache_seqlens=step.used,
        block_table=call.step.table,
        softmax_scale=spec.scale,
        causal=call.causal,
        window_size=call.window,
        softcap=spec.softcap or 0.0,
        alibi_slopes=call.alibi_slopes,
        num_splits=0,
        return_softmax_lse=spec.return_lse,
    )
    out, lse = got if spec.return_lse else (got, None)
    out, lse = out[:, 0], None if lse is None else lse[..., 0]
    if step.first is None:
        return out, lse
    assert step.owner is not None
    owner = step.owner[: len(q)]
    return out[owner], None if lse is None else lse[owner]


def _fa2_ragged(call: Call) -> Answer:
    spec, step = call.spec, call.step
    got = call.functions["flash_attn_varlen_func"](
        call.q,
        call.cache.k,
        call.cache.v,
        cu_seqlens_q=call.step.cu_q,
        cu_seqlens_k=step.cu_k,
        max_seqlen_q=step.max_q,
        max_seqlen_k=step.max_k,
        softmax_scale=spec.scale,
        causal=call.causal,
        window_size=call.window,
        softcap=spec.softcap or 0.0,
        alibi_slopes=call.alibi_slopes,
        return_attn_probs=spec.return_lse,
        block_table=call.step.table,
    )
    return (got[0], got[1].transpose(0, 1)) if spec.return_lse else (got, None)


def fa3(call: Call) -> Answer:
    spec = call.spec
    got = call.functions["flash_attn_with_kvcache"](
        call.q,
        call.cache.k,
        call.cache.v,
        cache_seqlens=call.step.keys,
        page_table=call.step.table,
        cu_seqlens_q=call.step.cu_q,
        max_seqlen_q=call.step.max_q,
        softmax_scale=spec.scale,
        causal=call.causal,
        window_size=call.window,
        softcap=spec.softcap or 0.0,
        return_softmax_lse=spec.return_lse,
    )
    return (got[0], got[1].transpose(0, 1)) if spec.return_lse else (got, None)


def fa4(call: Call) -> Answer:
    spec = call.spec
    out, lse = call.functions["flash_attn_varlen_func"](
        call.q,
        call.cache.k,
        call.cache.v,
        cu_seqlens_q=call.step.cu_q,
        max_seqlen_q=call.step.max_q,
        max_seqlen_k=call.step.max_k,
        seqused_k=call.step.keys,
        page_table=call.step.table,
        softmax_scale=spec.scale,
        causal=call.causal,
        learnable_sink=call.sinks,
        softcap=spec.softcap or 0.0,
        num_splits=1,
        return_lse=spec.return_lse,
    )
    return out, lse.transpose(0, 1) if spec.return_lse else None


def torch_varlen(call: Call) -> Answer:
    spec, step = call.spec, call.step
    left, right = call.window
    call.functions["varlen_attn_out"](
        call.out,
        call.q,
        call.cache.k,
        call.cache.v,
        call.step.cu_q,
        step.cu_k,
        step.max_q,
        step.max_k,
        scale=spec.scale,
        window_size=(left, 0 if call.causal else right),
        enable_gqa=spec.group_size > 1,
        seqused_k=call.step.keys,
        block_table=call.step.table,
        num_splits=None,
    )
    return None, None


CALLS: Mapping[str, Callable[[Call], Answer]] = {
    "fa2": torch.no_grad()(fa2),
    "fa3": torch.no_grad()(fa3),
    "fa4": torch.no_grad()(fa4),
    "torch_varlen": torch.no_grad()(torch_varlen),
}
