"""Kernel arguments by CuPy's convention: arrays pass their pointer, NumPy scalars their value.

A Python int counts as an int64 and a Python float as a double, as in CuPy. What CuPy would hand to
the kernel as garbage (a float64 for a `float`, an int32 for a `long long`, a float tensor for an
`int*`) is refused here.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from pagedattn.conformance.emulation.cuda.errors import LaunchError
from pagedattn.conformance.emulation.cuda.library import Kind, Param

__all__ = ["SLOT", "Extent", "extent_of", "pack", "pointer_of"]

SLOT = 16  # bytes reserved for an argument; a larger one is a structure of its own
_FORMATS = {
    (Kind.SIGNED, 1): "b", (Kind.SIGNED, 2): "h", (Kind.SIGNED, 4): "i", (Kind.SIGNED, 8): "q",
    (Kind.UNSIGNED, 1): "B", (Kind.UNSIGNED, 2): "H", (Kind.UNSIGNED, 4): "I",
    (Kind.UNSIGNED, 8): "Q", (Kind.FLOAT, 4): "f", (Kind.FLOAT, 8): "d", (Kind.BOOL, 1): "?",
    (Kind.HALF, 2): "e",
}  # fmt: skip
_NAMES = {
    Kind.SIGNED: "signed integer", Kind.UNSIGNED: "unsigned integer", Kind.FLOAT: "float",
    Kind.BOOL: "bool", Kind.HALF: "__half", Kind.BFLOAT16: "__nv_bfloat16", Kind.FP8: "fp8",
}  # fmt: skip

_DTYPES = {
    "float8": Kind.FP8, "float16": Kind.HALF, "float": Kind.FLOAT, "bfloat16": Kind.BFLOAT16,
    "uint": Kind.UNSIGNED, "int": Kind.SIGNED, "bool": Kind.BOOL,
}  # fmt: skip

Extent = tuple[int, int]  # first byte, byte past the last


def extent_of(array: Any) -> Extent:
    """The bytes that an array's elements span (strided views: from the first to the last)."""
    if hasattr(array, "data_ptr"):
        size, start = array.element_size(), array.data_ptr()
        shape, strides = array.shape, [s * size for s in array.stride()]
    else:
        size, start = array.itemsize, pointer_of(array)
        shape, strides = array.shape, array.strides
    if 0 in shape:
        return start, start
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return start + sum(min(r, 0) for r in reach), start + sum(max(r, 0) for r in reach) + size


def pointer_of(value: Any) -> int | None:
    """The address that an argument stands for, None when it is no pointer."""
    if hasattr(value, "data_ptr"):
        return int(value.data_ptr())
    if isinstance(value, np.ndarray):
        return int(value.ctypes.data) if value.ndim else None
    if value is None:
        return 0
    if isinstance(value, ctypes.c_void_p):
        return value.value or 0
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return int(value)
    pointer = getattr(getattr(value, "data", None), "ptr", getattr(value, "ptr", None))
    return None if pointer is None else int(pointer)


def pack(
    params: Sequence[Param], args: Sequence[Any], buffer: ctypes.Array[ctypes.c_char]
) -> list[Any]:
    """Writes the arguments into `buffer`, one SLOT each; returns the values larger than a slot.

    Raises LaunchError naming the argument."""
    if len(args) != len(params):
        raise LaunchError(f"takes {len(params)} arguments, {len(args)} were given")
    return [
        kept
        for i, (param, value) in enumerate(zip(params, args, strict=True))
        if (kept := _pack_one(i, param, value, buffer)) is not None
    ]


def _pack_one(i: int, param: Param, value: Any, buffer: ctypes.Array[ctypes.c_char]) -> Any:
    if param.kind == Kind.POINTER:
        pointer = pointer_of(value)
        if pointer is None:
            raise LaunchError(f"argument {i} is a pointer, {_shown(value)} was given")
        problem = _pointee_problem(param, value)
        if problem:
            raise LaunchError(f"argument {i} is {problem}")
        struct.pack_into("Q", buffer, i * SLOT, pointer & 0xFFFFFFFFFFFFFFFF)
        return None
    if param.kind in (Kind.OTHER, Kind.BFLOAT16, Kind.FP8) or isinstance(value, np.void):
        return _pack_structure(i, param, value, buffer)
    wanted = f"argument {i} is {_described(param.kind, param.size)}"
    if not isinstance(value, (bool, int, float, np.generic)):
        raise LaunchError(f"{wanted}, {_shown(value)} was given")
    given = value.dtype if isinstance(value, np.generic) else np.dtype(type(value))
    number = value.item() if isinstance(value, np.generic) else value
    if param.kind in (Kind.SIGNED, Kind.UNSIGNED, Kind.BOOL):
        fits = isinstance(value, bool) or (given.kind in "iub" and given.itemsize >= param.size)
        low = -(1 << (8 * param.size - 1)) if param.kind == Kind.SIGNED else 0
        count = 2 if param.kind == Kind.BOOL else 1 << 8 * param.size
        fits = fits and low <= number < low + count
    else:
        fits = given.kind == "f" and given.itemsize == param.size
    if not fits:
        raise LaunchError(f"{wanted}, {_shown(value)} was given: CuPy would pass other bits")
    struct.pack_into(_FORMATS[Kind(param.kind), param.size], buffer, i * SLOT, number)
    return None


def _pack_structure(i: int, param: Param, value: Any, buffer: ctypes.Array[ctypes.c_char]) -> Any:
    raw = bytes(value) if isinstance(value, (bytes, ctypes.Structure)) else None
    if isinstance(value, np.generic) and not isinstance(value, np.number):
        raw = value.tobytes()  # a record, or a scalar of a type that NumPy itself has not
    if raw is None or len(raw) != param.size:
        size = f" of {len(raw)} bytes" if raw is not None else ""
        what = _NAMES.get(Kind(param.kind), "structure")
        raise LaunchError(
            f"argument {i} is a {what} of {param.size} bytes, {_shown(value)}{size} was given"
        )
    if param.size <= SLOT:
        ctypes.memmove(ctypes.addressof(buffer) + i * SLOT, raw, len(raw))
        return None
    return i, ctypes.create_string_buffer(raw, len(raw))


def _pointee_problem(param: Param, value: Any) -> str:
    """Why the array's elements are not what the parameter points to; "" when they may be.

    void, unsigned integers and vector types are raw bits and take any array."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or isinstance(value, np.generic):
        return ""
    if param.pointee not in _NAMES or param.pointee == Kind.UNSIGNED:
        return ""
    name = str(dtype).removeprefix("torch.")
    kind, size = _dtype_kind(name), int(dtype.itemsize)
    pointee = Kind(param.pointee)
    if kind == pointee and size == param.pointee_size:
        return ""
    if pointee == Kind.SIGNED and kind in (Kind.UNSIGNED, Kind.BOOL) and size == param.pointee_size:
        return ""
    return f"a pointer to {_described(pointee, param.pointee_size)}, an array of {name} was given"


def _described(kind: int, size: int) -> str:
    name = _NAMES[Kind(kind)]
    article = "an" if name.startswith("u") else "a"
    return f"{article} {name} of {size} byte{'s' if size > 1 else ''}"


def _dtype_kind(name: str) -> Kind:
    for start, kind in _DTYPES.items():
        if name.startswith(start):
            return kind
    return Kind.OTHER


def _shown(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})" if np.isscalar(value) else type(value).__name__
