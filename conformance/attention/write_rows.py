"""How the new keys and values may lie in memory on their way into the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pagedattn.conformance.attention.placing import GAP

__all__ = ["ROWS"]


def _wide(x: Tensor, heads: int, width: int) -> Tensor:
    """`x` as a part of NaNs: `heads` more of them, `width` more columns."""
    base = torch.full(
        (x.shape[0], x.shape[1] + heads, x.shape[2] + width),
        float("nan"),
        dtype=x.dtype,
        device=x.device,
    )
    part = base[:, heads // 2 : heads // 2 + x.shape[1], : x.shape[2]]
    part.copy_(x)
    return part


def _shifted(x: Tensor) -> Tensor:
    """`x` one element behind a border of 16 bytes."""
    memory = x.new_empty(x.numel() + 1)[1:].view(x.shape)
    memory.copy_(x)
    return memory


ROWS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "fused": lambda x: _wide(x, 3, 0),
    "gaps": lambda x: _wide(x, 0, GAP),
    "odd gaps": lambda x: _wide(x, 0, 1),
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "unaligned": _shifted,
    "one head": lambda x: x[:, :1].expand_as(x),
    "one row": lambda x: x[:1].expand_as(x),
}
"""k or v [T, Hkv, D] -> the same numbers, lying otherwise; in "one head" and "one row" all are
equal and in one place"""
