"""The allowed error. One rule for everybody; no backend sets its own tolerance.

    allowed = 2 x max|truth| x (relative error of the plain computation + eps + eps32 x max|logit|)

4 x for 8-bit caches. The last term is what rounding a score (or sink), once and in float32
(float64), does to its weight. The plain computation is the definition in the backend's own dtype
(oracle.py); its relative error is the largest of the step's requests, and max|truth| is taken per
request, so that a long request (small outputs) is not judged by the yardstick of a short one.
Rounding depends on the order of the sums, and a small step has few samples of it: the plain
computation is run in four orders and the worst counts. eps is that of the coarser of dtype and
out_dtype. For the LSE the yardstick is the larger of |lse| and the largest |logit|, of which it is
a sum.

Head-room is allowed / measured: below 1 the case fails; the report prints the smallest of a dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.oracle import Answer, plain
from pagedattn.spec import AttentionSpec, KVQuant

__all__ = ["Budget", "budget", "dtype_label"]

ORDERS = 4


@dataclass(frozen=True)
class Budget:
    """Allowed absolute error of `out`, per request, and of `lse`."""

    out: tuple[float, ...]
    lse: float


def budget(content: Content, true: Answer) -> Budget:
    """The allowed error of a step, from its truth and its plain computation."""
    spec = content.spec
    factor = 2.0 if spec.kv_quant is KVQuant.NONE else 4.0
    roughs = [plain(content, order) for order in range(ORDERS)]
    eps = max(torch.finfo(spec.dtype).eps, torch.finfo(spec.out_dtype).eps)
    eps_score = torch.finfo(torch.float64 if spec.dtype is torch.float64 else torch.float32).eps
    sizes = [_largest(x) for x in true.out]
    relative = max(
        (
            _largest(a.double() - b) / size
            for rough in roughs
            for a, b, size in zip(rough.out, true.out, sizes, strict=True)
            if size
        ),
        default=0.0,
    )
    out = tuple(factor * size * (relative + eps + eps_score * true.top) for size in sizes)
    size_lse = max(true.top, _largest_finite(true.lse))
    errors = [
        (a.double() - b)[b.isfinite()]
        for rough in roughs
        for a, b in zip(rough.lse, true.lse, strict=True)
    ]
    eps_lse = max(torch.finfo(spec.dtype).eps, torch.finfo(torch.float32).eps)
    return Budget(out, factor * (_largest_finite(errors) + eps_lse * size_lse))


def dtype_label(spec: AttentionSpec) -> str:
    """Under which head-room is reported: the cache's dtype when it is 8-bit, else that of q."""
    return str(spec.dtype if spec.kv_quant is KVQuant.NONE else spec.kv_dtype).removeprefix(
        "torch."
    )


def _largest(x: Tensor) -> float:
    """The largest finite magnitude: where the plain computation overflows it allows nothing."""
    x = x[x.isfinite()]
    return float(x.abs().max()) if x.numel() else 0.0


def _largest_finite(tensors: Sequence[Tensor]) -> float:
    return max((_largest(x) for x in tensors), default=0.0)
