"""Loads, stores and atomics that know which tensor of the launch they may touch.

Triton's interpreter reads and writes raw host memory: a stray lane reads a neighbour, or ends the
process. Here every tensor of a launch is an Extent; the pointer made of it carries the extent
through pointer arithmetic, and an access outside of it raises OutOfBounds before it happens, also
where the address lies in another tensor. Masked-off lanes are free to hold any address.

A masked load without `other` leaves masked-off lanes undefined on a GPU, where the interpreter
gives zeros. Here they hold poison: NaN, or the largest integer.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from pagedattn.conformance.emulation.triton.formats import Bits

__all__ = ["Extent", "MisalignedAccess", "OutOfBounds", "Pointer", "install"]


class OutOfBounds(IndexError):
    """A kernel touches memory outside of the tensor that its pointer was made of."""


class MisalignedAccess(ValueError):
    """A kernel touches an address that is no multiple of the element's size."""


class Extent:
    """The memory of one tensor of a launch.

    name   of the kernel's parameter     owner  the tensor, kept so that the memory stays
    start  address of its first element  size   bytes up to the end of its last element
    """

    __slots__ = ("_views", "name", "owner", "size", "start")

    def __init__(self, name: str, tensor: Any) -> None:
        self.name, self.owner, self.start = name, tensor, tensor.data_ptr()
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        self.size = (last + 1) * tensor.element_size() if tensor.numel() else 0
        self._views: dict[np.dtype[Any], Bits] = {}

    def __str__(self) -> str:
        tensor = self.owner
        return (
            f"{self.name} ({tuple(tensor.shape)} strides {tensor.stride()} {tensor.dtype}, "
            f"{self.size} bytes)"
        )

    def elements(self, dtype: np.dtype[Any]) -> Bits:
        """The memory as a flat array of `dtype`, without a copy."""
        if dtype not in self._views:
            count = self.size // dtype.itemsize
            raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(self.start)
            self._views[dtype] = np.ctypeslib.as_array(raw).view(dtype)
        return self._views[dtype]


class Pointer(tl.pointer_type):  # type: ignore[misc]
    """A pointer type that remembers the extent; the interpreter keeps the type of a handle."""

    def __init__(self, element: tl.dtype, extent: Extent) -> None:
        super().__init__(element)
        self.extent = extent


# Extents of the launch that runs, for pointers whose origin is not known (made of integers).
current: list[Extent] = []


def _handle(data: Bits, ty: tl.dtype) -> Any:
    return interpreter.TensorHandle(data, ty)


def _lanes(mask: Any, shape: tuple[int, ...]) -> Bits | None:
    """The active lanes, None for all."""
    if mask is None:
        return None
    data = mask.data if isinstance(mask, interpreter.TensorHandle) else np.asarray(mask)
    data = np.broadcast_to(data, shape)
    return None if data.all() else data


def _place(what: str, ptrs: Any, mask: Bits | None, dtype: np.dtype[Any]) -> tuple[Bits, Bits]:
    """(flat memory, element index of each lane; 0 for masked-off lanes).

    Raises OutOfBounds, MisalignedAccess."""
    size = dtype.itemsize
    extent = getattr(ptrs.dtype, "extent", None) or _guess(ptrs.data, mask)
    offset = ptrs.data - np.uint64(extent.start)  # below the start it wraps to a large number
    inside = offset < np.uint64(max(extent.size - size + 1, 0))
    if not inside.all() if mask is None else (mask > inside).any():
        _raise_out_of_bounds(what, ptrs.data, ~inside if mask is None else mask > inside, extent)
    if mask is not None:
        offset = np.where(mask, offset, np.uint64(0))
    if size > 1:
        if (offset & np.uint64(size - 1)).any():
            raise MisalignedAccess(
                f"{what} of {size} bytes at an address of {extent} that is no multiple of {size}: "
                "a GPU faults there"
            )
        offset = offset >> np.uint64(size.bit_length() - 1)
    return extent.elements(dtype), offset.view(np.int64)


def _guess(addresses: Bits, mask: Bits | None) -> Extent:
    """The extent of a pointer that was made of an integer: where its first active lane lies."""
    active = addresses[mask] if mask is not None else addresses.reshape(-1)
    if not current:
        raise OutOfBounds("the kernel touches memory but was given no tensor")
    if not active.size:
        return current[0]
    first = int(active[0])
    return min(current, key=lambda e: max(e.start - first, first - e.start - e.size + 1, 0))


def _raise_out_of_bounds(what: str, addresses: Bits, bad: Bits, extent: Extent) -> None:
    lane = tuple(int(i) for i in np.argwhere(bad)[0])
    distance = int(addresses[lane]) - extent.start
    if distance < 0:
        where = f"{-distance} bytes before its start"
    elif distance < extent.size:
        where = f"across its end, {extent.size - distance} bytes before it"
    else:
        where = f"{distance - extent.size} bytes past its end"
    raise OutOfBounds(
        f"{what} outside of {extent}: lane {lane} of {bad.shape} is {where}; {int(bad.sum())} "
        "active lanes are outside. Mask these lanes, or mend the offset (64-bit where block ids or "
        "strides are large)"
    )


def _poison(ty: tl.dtype, dtype: np.dtype[Any]) -> Any:
    """What a masked-off lane holds when the load names no `other`."""
    if ty == tl.bfloat16:
        return np.uint16(0x7FC0)
    if ty.is_floating() and dtype.itemsize == 1:  # fp8; the fnuz formats keep their NaN at -0
        return np.uint8(0x80 if ty in (tl.float8e4b8, tl.float8e5b16) else 0x7F)
    if dtype.kind == "f":
        return dtype.type(np.nan)
    return True if dtype.kind == "b" else np.iinfo(dtype).max


def _element(ptrs: Any) -> tuple[tl.dtype, np.dtype[Any]]:
    ty = ptrs.get_element_ty()
    return ty, interpreter._get_np_dtype(ty)


def _load(self: Any, ptrs: Any, *policy: Any) -> Any:
    return _masked_load(self, ptrs, None, None, *policy)


def _masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *policy: Any, **options: Any) -> Any:
    ty, dtype = _element(ptrs)
    lanes = _lanes(mask, ptrs.data.shape)
    memory, index = _place("a load", ptrs, lanes, dtype)
    if lanes is None:
        return _handle(memory.take(index), ty)
    fill = _poison(ty, dtype) if other is None else other.data
    found = memory.take(index) if memory.size else np.zeros(index.shape, dtype)
    return _handle(np.where(lanes, found, fill).astype(dtype, copy=False), ty)


def _store(self: Any, ptrs: Any, value: Any, *policy: Any) -> None:
    _masked_store(self, ptrs, value, None, *policy)


def _masked_store(
    self: Any, ptrs: Any, value: Any, mask: Any, *policy: Any, **options: Any
) -> None:
    _, dtype = _element(ptrs)
    lanes = _lanes(mask, ptrs.data.shape)
    memory, index = _place("a store", ptrs, lanes, dtype)
    data = np.broadcast_to(value.data, ptrs.data.shape)
    if lanes is not None:
        index, data = index[lanes], data[lanes]
    memory[index] = data


def install(builder: type[Any]) -> None:
    """Puts the checked accesses into the interpreter's builder."""
    builder.create_load, builder.create_masked_load = _load, _masked_load
    builder.create_store, builder.create_masked_store = _store, _masked_store
    _check_atomics(builder)
    _keep_extents(builder)


def _check_atomics(builder: type[Any]) -> None:
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def check(ptr: Any, mask: Any) -> None:
        ty, dtype = _element(ptr)
        if ty.is_floating() and ty not in (tl.float16, tl.float32, tl.float64):
            raise NotImplementedError(f"atomics on {ty} are not emulated: add in float32")
        _place("an atomic", ptr, _lanes(mask, ptr.data.shape), dtype)

    def checked_rmw(self: Any, op: Any, ptr: Any, value: Any, mask: Any, *how: Any) -> Any:
        check(ptr, mask)
        return rmw(self, op, ptr, value, mask, *how)

    def checked_cas(self: Any, ptr: Any, expected: Any, value: Any, *how: Any) -> Any:
        check(ptr, None)
        return cas(self, ptr, expected, value, *how)

    builder.create_atomic_rmw, builder.create_atomic_cas = checked_rmw, checked_cas


def _keep_extents(builder: type[Any]) -> None:
    """A pointer that is cast to one of another element keeps its extent."""
    bitcast = builder.create_bitcast

    def checked(self: Any, source: Any, target: Any) -> Any:
        extent = getattr(source.dtype, "extent", None)
        made = bitcast(self, source, target)
        if extent is not None and isinstance(made.dtype, tl.pointer_type):
            made.dtype = Pointer(made.dtype.element_ty, extent)
        return made

    builder.create_bitcast = checked
