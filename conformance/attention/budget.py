"""The allowed error. One rule for everybody; no backend sets its own tolerance.

    allowed = 2 x max|truth| x (relative error of the plain computation + eps)

4 x for 8-bit caches. The plain computation is the definition in the backend's own dtype (oracle.py);
its relative error is the largest of the step's requests, and max|truth| is taken per request, so
that a long request (small outputs) is not judged by the yardstick of a short one. eps is that of
the coarser of dtype and out_dtype. For the LSE the yardstick is the larger of |lse| and the largest
|score|, of which it is a sum.

Head-room is allowed / measured: below 1 the case fails; the report prints the smallest of a dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.oracle import Answer, plain
from pagedattn.spec import AttentionSpec, KVQuant

__all__ = ["Budget", "budget", "dtype_label"]


@dataclass(frozen=True)
class Budget:
    """Allowed absolute error of `out`, per request, and of `lse`."""

    out: tuple[float, ...]
    lse: float


def budget(content: Content, true: Answer) -> Budget:
    """The allowed error of a step, from its truth and its plain computation."""
    spec = content.spec
    factor = 2.0 if spec.kv_quant is KVQuant.NONE else 4.0
    rough = plain(content)
    eps = max(torch.finfo(spec.dtype).eps, torch.finfo(spec.out_dtype).eps)
    sizes = [_largest(x) for x in true.out]
    relative = max(
        (_largest(a.double() - b) / s for a, b, s in zip(rough.out, true.out, sizes, strict=True) if s),
        default=0.0,
    )
    out = tuple(factor * size * (relative + eps) for size in sizes)
    size_lse = max(true.top, _largest_finite(true.lse))
    errors = [(a.double() - b)[b.isfinite()] for a, b in zip(rough.lse, true.lse, strict=True)]
    eps_lse = max(eps, torch.finfo(torch.float32).eps)
    if spec.out_dtype.itemsize < spec.dtype.itemsize:
        eps_lse = max(torch.finfo(spec.dtype).eps, torch.finfo(torch.float32).eps)
    return Budget(out, factor * (_largest_finite(errors) + eps_lse * size_lse))


def dtype_label(spec: AttentionSpec) -> str:
    """Under which head-room is reported: the cache's dtype when it is 8-bit, else that of q."""
    return str(spec.dtype if spec.kv_quant is KVQuant.NONE else spec.kv_dtype).removeprefix("torch.")


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _largest_finite(tensors: Sequence[Tensor]) -> float:
    found = [_largest(x[x.isfinite()]) for x in tensors]
    return max((v for v in found if math.isfinite(v)), default=0.0)
