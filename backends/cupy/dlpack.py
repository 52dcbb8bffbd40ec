"""What a DLPack capsule says, read before torch takes it: torch ends the process at a negative
stride, and drops the read-only mark in silence."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["Checked"]

_READ_ONLY = 1
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h, 1.0."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h, 1.0; the older DLManagedTensor begins with its
    DLTensor."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Checked:
    """Stands for an array in torch.from_dlpack(). Raises ValueError for what torch must not get."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        try:
            capsule = self._array.__dlpack__(**options)
        except BufferError as error:
            raise ValueError(f"{_named(self._array)} cannot be shared: {error}") from error
        strides, read_only = _facts(capsule)
        if any(stride < 0 for stride in strides):
            raise ValueError(
                f"{_named(self._array)} has strides {strides}, in elements; tensors have no "
                "negative ones: give a copy of the array"
            )
        if read_only:
            raise ValueError(
                f"{_named(self._array)} is read-only, and a tensor cannot be: give a writable "
                "array or a copy"
            )
        return capsule


def _facts(capsule: Any) -> tuple[tuple[int, ...], bool]:
    """Strides, none for an array without gaps; whether it is marked as read-only."""
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        tensor, flags = managed.tensor, managed.flags
    else:
        tensor, flags = _Tensor.from_address(_get_pointer(capsule, b"dltensor")), 0
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else ()
    return strides, bool(flags & _READ_ONLY)


def _named(array: Any) -> str:
    return f"this {type(array).__name__}"
