"""Partial attention states and their merge: (out, lse) over disjoint sets of keys."""

from __future__ import annotations

import torch
from torch import Tensor

from pagedattn.errors import InvalidTensor

__all__ = ["merge_states"]


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys.

    out_a, out_b  [T, Hq, Dv], same dtype      lse_a, lse_b  f32 [T, Hq], natural logarithm

    m = max(lse_a, lse_b);  w_i = exp(lse_i - m);  out = sum(w_i out_i) / sum(w_i);
    lse = m + ln(sum(w_i)). Computed in float32 (float64 for float64 outputs). A part without keys
    is (anything, -inf) and contributes nothing, not even its NaNs; +inf, which some libraries
    return for it, counts as -inf. Two empty parts give (0, -inf). With sinks, exactly one part
    must have seen them. Raises InvalidTensor. Source: the online-softmax recurrence (Milakov and
    Gimelshein 2018), as used for split keys in FlashDecoding.
    """
    for name, out, lse in (("a", out_a, lse_a), ("b", out_b, lse_b)):
        for label, x in ((f"out_{name}", out), (f"lse_{name}", lse)):
            if not isinstance(x, Tensor) or not x.is_floating_point():
                what = f"a {type(x).__name__}" if not isinstance(x, Tensor) else x.dtype
                raise InvalidTensor(label, what, "a floating-point tensor")
        if out.shape != out_a.shape or out.dtype != out_a.dtype:
            raise InvalidTensor(
                f"out_{name}",
                f"{out.dtype} {tuple(out.shape)}",
                f"{out_a.dtype} {tuple(out_a.shape)}, as out_a",
            )
        if lse.shape != out.shape[:-1] or lse.dtype not in (torch.float32, torch.float64):
            raise InvalidTensor(
                f"lse_{name}",
                f"{lse.dtype} {tuple(lse.shape)}",
                f"float32 {tuple(out.shape[:-1])}, the shape of out_{name} without its last dim",
            )
    work = torch.float64 if out_a.dtype is torch.float64 else torch.float32
    empty = float("-inf")
    la = torch.where(lse_a == float("inf"), empty, lse_a).to(work)
    lb = torch.where(lse_b == float("inf"), empty, lse_b).to(work)
    top = torch.maximum(la, lb)
    base = torch.where(top == empty, 0.0, top)
    wa, wb = torch.exp(la - base)[..., None], torch.exp(lb - base)[..., None]
    total = wa + wb
    part_a = torch.where(wa == 0, 0.0, wa * out_a.to(work))
    part_b = torch.where(wb == 0, 0.0, wb * out_b.to(work))
    out = (part_a + part_b) / torch.where(total == 0, 1.0, total)
    lse = top + torch.log(torch.where(total == 0, 1.0, total))[..., 0]
    return out.to(out_a.dtype), lse.to(lse_a.dtype)
