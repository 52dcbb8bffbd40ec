"""Reductions over the numbers that a GPU reduces, in an order that it may take.

The interpreter sums the stored bits of bf16 as integers, and sums fp16 in float32. Here a sum of
16-bit floats halves the axis and rounds every step, as a tree of lanes does: kernels that need
more convert to float32 first. max and min skip NaN, without NumPy's warnings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from pagedattn.conformance.emulation.triton.formats import Bits, decode, encode, is_narrow

__all__ = ["install"]


def _halved(values: Bits, axis: int, ty: tl.dtype) -> Bits:
    """The sum along `axis` (a power of two), rounded to `ty` at every level; keeps the axis."""
    while (count := values.shape[axis]) > 1:
        low, high = np.split(values, [count // 2], axis=axis)
        if is_narrow(ty):
            values = decode(encode(low + high, ty), ty)
        else:
            values = (low + high).astype(np.float16)
    return values


def _sum(self: Any, input: Any) -> Any:
    ty, data, axis = input.dtype.scalar, input.handle.data, self.axis
    if not is_narrow(ty) and ty != tl.float16:
        return self.to_tensor(np.sum(data, axis=axis, keepdims=self.keep_dims), ty)
    values = decode(data, ty)
    if axis is None:
        shape = (1,) * data.ndim
        total = _halved(values.reshape(-1), 0, ty).reshape(shape)
    else:
        total = _halved(values, axis, ty)
    if not self.keep_dims:
        total = total.reshape(-1)[0] if axis is None else total.squeeze(axis)
    bits = encode(np.asarray(total), ty) if is_narrow(ty) else np.asarray(total)
    return self.to_tensor(bits if bits.ndim else bits[()], ty)


def _largest(data: Bits, axis: int | None, keepdims: bool) -> Bits:
    op: Any = np.fmax if data.dtype.kind == "f" else np.maximum
    return np.asarray(op.reduce(data, axis=axis, keepdims=keepdims))


def _smallest(data: Bits, axis: int | None, keepdims: bool) -> Bits:
    op: Any = np.fmin if data.dtype.kind == "f" else np.minimum
    return np.asarray(op.reduce(data, axis=axis, keepdims=keepdims))


def install() -> None:
    """Puts the reductions into the interpreter's ReduceOps."""
    ops = interpreter.ReduceOps
    extremes = ops.min_max

    def min_max(self: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        if idx_reduce_op is None and val_reduce_op in (np.nanmax, np.nanmin):
            (tensor,) = input if isinstance(input, tuple) else (input,)
            if not is_narrow(tensor.dtype.scalar):
                reduce = _largest if val_reduce_op is np.nanmax else _smallest
                found = reduce(tensor.handle.data, self.axis, self.keep_dims)
                return self.to_tensor(found if found.ndim else found[()], tensor.dtype)
        return extremes(self, input, val_reduce_op, idx_reduce_op)

    ops.sum, ops.min_max = _sum, min_max
