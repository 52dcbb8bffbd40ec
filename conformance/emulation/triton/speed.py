"""Shapes and types that the interpreter makes anew for every value, made once.

Every value of a kernel gets a block type and two tuples of constexprs with their type names: more
work than the arithmetic on a small tile. They depend on the shape and the element alone, are never
changed, and are shared here. What a kernel computes is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

__all__ = ["install"]

_core = tl.core


def _share_shapes() -> None:
    original = _core.block_type.__init__
    blocks: dict[Any, tuple[Any, ...]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([s.value if isinstance(s, _core.constexpr) else s for s in shape])
        key = (sizes, element_ty.name)
        if (known := blocks.get(key)) is None:
            original(self, element_ty, list(sizes))
            of_tensor = _core.tuple([_core.constexpr(s) for s in sizes])
            of_tensor = (_core.constexpr(self.numel), of_tensor)
            known = blocks[key] = (self.shape, self.numel, self.name, sizes, of_tensor)
        self.element_ty = element_ty
        self.shape, self.numel, self.name, self.sizes, self.of_tensor = known

    scalar = (_core.constexpr(1), _core.tuple([]))

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = getattr(type, "of_tensor", scalar)

    _core.block_type.__init__ = block
    _core.tensor.__init__ = tensor


def _broadcast_by_sizes() -> None:
    """Blocks of one rank are compared as tuples of integers, not of constexprs."""
    original = TritonSemantic.broadcast_impl_value

    def stretched(self: Any, value: Any, sizes: tuple[int, ...]) -> Any:
        if value.type.sizes == sizes:
            return value
        ty = _core.block_type(value.type.element_ty, sizes)
        return _core.tensor(self.builder.create_broadcast(value.handle, sizes), ty)

    def broadcast(self: Any, left: Any, right: Any) -> Any:
        a, b = getattr(left.type, "sizes", None), getattr(right.type, "sizes", None)
        if a == b:  # two scalars too
            return left, right
        if a is None or b is None or len(a) != len(b):
            return original(self, left, right)
        if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
            return original(self, left, right)  # which raises
        sizes = tuple(map(max, a, b))
        return stretched(self, left, sizes), stretched(self, right, sizes)

    TritonSemantic.broadcast_impl_value = broadcast


def _look_up_numpy_types() -> None:
    original = interpreter._get_np_dtype
    address = np.dtype(np.uint64)
    known: dict[str, np.dtype[Any]] = {}

    def numpy_type(ty: Any) -> np.dtype[Any]:
        if isinstance(ty, _core.block_type):
            ty = ty.element_ty
        if isinstance(ty, _core.pointer_type):
            return address
        if (found := known.get(ty.name)) is None:
            found = known[ty.name] = original(ty)
        return found

    interpreter._get_np_dtype = numpy_type


def install() -> None:
    """Shares shapes and types from here on."""
    _share_shapes()
    _broadcast_by_sizes()
    _look_up_numpy_types()
