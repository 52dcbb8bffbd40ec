"""Arithmetic as a GPU does it, where Triton's interpreter does otherwise.

bf16, fp8   the interpreter adds, multiplies and compares the stored bits as integers; here
            they are decoded, computed in float32 and rounded to nearest even
casts       truncate the mantissa to bf16, and break ties upwards to fp8; here round to nearest
            even, and fp8 saturates as cvt.satfinite does
max, min    3.6 and 3.7 pass NaN on; a GPU's return the operand that is a number
dot         bf16 and fp8 operands are decoded, 16-bit sums are exact in float32, and float32
            operands lose their low 13 bits unless input_precision says otherwise, which the
            interpreter ignores; the compiler's least tile is required
int1        adding or subtracting booleans wraps (3.6 to 3.8: saturates, or raises)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter

from pagedattn.conformance.emulation.triton.formats import (
    Bits,
    decode,
    encode,
    is_narrow,
    round_to_tf32,
)

__all__ = ["install"]

Operation = Callable[..., Bits]
_WRAPPING = {np.add: np.bitwise_xor, np.subtract: np.bitwise_xor, np.multiply: np.bitwise_and}


def _handle(data: Bits, ty: tl.dtype) -> Any:
    return interpreter.TensorHandle(data, ty)


def _result(values: Bits, ty: tl.dtype) -> Any:
    """A handle of computed values: comparisons are int1 whatever was compared."""
    if values.dtype == np.bool_:
        return _handle(values, tl.int1)
    if is_narrow(ty):
        return _handle(encode(values, ty), ty)
    wanted = interpreter._get_np_dtype(ty)
    return _handle(values.astype(wanted, copy=False), ty)


def _binary(self: Any, left: Any, right: Any, op: Operation) -> Any:
    ty = left.dtype.scalar
    a, b = decode(left.data, ty), decode(right.data, right.dtype.scalar)
    if a.dtype == np.bool_ and b.dtype == np.bool_:
        op = _WRAPPING.get(op, op)  # type: ignore[call-overload]
    return _result(op(a, b), ty)


def _unary(self: Any, argument: Any, op: Operation) -> Any:
    ty = argument.dtype.scalar
    return _result(op(decode(argument.data, ty)), ty)


def _fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    ty = z.dtype.scalar
    a, b, c = (decode(t.data, ty) for t in (x, y, z))
    return _result(np.multiply(a, b, dtype=np.float64) + c, ty)  # one rounding, up to a rare tie


def _clamp(self: Any, x: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
    ty = x.dtype.scalar
    a, lo, hi = (decode(t.data, ty) for t in (x, low, high))
    if propagate_nans == ir.PROPAGATE_NAN.NONE:
        return _result(np.fmin(np.fmax(a, lo), hi), ty)
    return _result(np.clip(a, lo, hi), ty)


def _cast(self: Any, source: Any, target: Any) -> Any:
    return _converted(source, target.scalar, towards_zero=False)


def _convert(self: Any, source: Any, target: Any, rounding: Any) -> Any:
    return _converted(source, target.scalar, towards_zero=rounding == ir.ROUNDING_MODE.RTZ)


def _converted(source: Any, target: tl.dtype, *, towards_zero: bool) -> Any:
    values = decode(source.data, source.dtype.scalar)
    if is_narrow(target):
        return _handle(encode(values, target, towards_zero=towards_zero), target)
    if towards_zero and values.itemsize > target.primitive_bitwidth // 8:
        raise NotImplementedError(f"rounding {target} towards zero is not emulated; use 'rtne'")
    wanted = interpreter._get_np_dtype(target)
    if values.dtype.kind == "f" and wanted.kind in "iu":
        return _handle(_to_integer(values, wanted), target)
    return _handle(values.astype(wanted), target)


def _to_integer(values: Bits, wanted: np.dtype[Any]) -> Bits:
    """Towards zero. NaN gives 0 and what is too large the bound, as cvt.rzi does; a narrower
    integer is cut out of the low bits of 32."""
    wide = np.dtype(np.uint32 if wanted.kind == "u" else np.int32)
    wide = wanted if wanted.itemsize > wide.itemsize else wide
    limits = np.iinfo(wide)
    whole = np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0))
    large, small = whole >= float(limits.max), whole <= float(limits.min)
    kept = np.where(large | small, 0.0, whole).astype(wide)
    kept[large], kept[small] = limits.max, limits.min
    return kept.astype(wanted)


def _least_tile(left: Any, right: Any) -> tuple[int, int, int]:
    """The least M, N and K that the compiler takes for NVIDIA targets."""
    return (1, 1, 32) if left.scalar.primitive_bitwidth == 8 else (1, 1, 16)


def _dot(self: Any, a: Any, b: Any, acc: Any, precision: Any, imprecise: Any) -> Any:
    left, right = decode(a.data, a.dtype.scalar), decode(b.data, b.dtype.scalar)
    if left.dtype == np.float16:
        left, right = left.astype(np.float32), right.astype(np.float32)
    elif a.dtype.scalar == tl.float32 and precision == ir.INPUT_PRECISION.TF32:
        left, right = round_to_tf32(left), round_to_tf32(right)
    ty = acc.dtype.scalar
    if left.dtype.kind in "iu":
        left, right = left.astype(np.int32), right.astype(np.int32)
    product = np.matmul(left, right)
    return _result(product + decode(acc.data, ty), ty)


def _constant_bf16(self: Any, value: float) -> Any:
    return _handle(encode(np.array([value], np.float32), tl.bfloat16), tl.bfloat16)


def install(builder: type[Any]) -> None:
    """Puts the arithmetic into the interpreter's builder."""
    builder.binary_op, builder.unary_op = _binary, _unary
    builder.create_fma, builder.create_clampf = _fma, _clamp
    builder.cast_impl, builder.create_fp_to_fp = _cast, _convert
    builder.create_dot = _dot
    builder.get_bf16 = _constant_bf16
    builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
    shared = interpreter.interpreter_builder
    shared.codegen_fns["min_dot_size"] = _least_tile
