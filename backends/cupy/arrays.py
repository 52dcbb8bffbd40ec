"""CuPy arrays in and out, without copies: from_cupy() for what the contract takes, to_cupy() back.

    q = from_cupy(cupy_q)                                  # a torch tensor on the same memory
    k = from_cupy(cupy_bits, dtype=torch.bfloat16)         # uint16 array that holds bfloat16
    op.run(q, cache, plan, out=from_cupy(cupy_out))

Both go by DLPack, which also orders the two libraries' current streams.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.dlpack
from torch import Tensor

from pagedattn.backends.cupy.dlpack import Checked

__all__ = ["from_cupy", "to_cupy"]

_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
_KNOWN = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.complex64,
        torch.complex128,
        torch.bool,
    }
)
"""Dtypes that CuPy has too."""


def from_cupy(x: Any, *, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor on the memory of a CuPy array (or of anything that speaks DLPack): of any shape,
    0-d and empty too, with any strides but negative ones.

    dtype   what the array's bits are, for dtypes that CuPy lacks: bfloat16 in uint16, float8 in
            uint8. No conversion. Default: the array's own.

    Raises TypeError for what has no DLPack; ValueError for what a tensor cannot be (negative
    strides, read-only, another byte order) and for a dtype of another size."""
    if isinstance(x, type) or not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        what = f"the class {x.__name__}" if isinstance(x, type) else f"a {type(x).__name__}"
        raise TypeError(f"{what} is not an array that speaks DLPack")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype={dtype!r} is not a torch.dtype")
    tensor = torch.utils.dlpack.from_dlpack(Checked(x))
    if dtype is None:
        return tensor
    if dtype.itemsize != tensor.dtype.itemsize:
        raise ValueError(
            f"elements of {tensor.dtype} have {tensor.dtype.itemsize} bytes, those of {dtype} "
            f"{dtype.itemsize}: give an array of the same element size"
        )
    return tensor.view(dtype)


def to_cupy(x: Tensor, *, bits: bool = False) -> Any:
    """The CuPy array on the memory of a tensor.

    bits   give dtypes that CuPy lacks as unsigned integers of the same size; others stay

    Raises TypeError for such a dtype without `bits`."""
    if x.dtype not in _KNOWN:
        if not bits:
            raise TypeError(f"CuPy has no {x.dtype}: pass bits=True for its bits as integers")
        x = x.view(_BITS[x.dtype.itemsize])
    return _cupy_from_dlpack(x.detach())


def _cupy_from_dlpack(x: Tensor) -> Any:
    import cupy

    return cupy.from_dlpack(x)
