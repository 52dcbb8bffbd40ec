"""bf16 and fp8 as the interpreter holds them: bits in unsigned integers, decoded for arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton.language as tl

__all__ = ["Bits", "decode", "encode", "is_narrow", "round_to_tf32"]

Bits = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Format:
    """A float of 8 or 16 bits that NumPy does not know.

    torch    the same format in torch, which converts to it by round to nearest even
    bits     the unsigned integer that holds it
    largest  where a GPU's conversion saturates (cvt.satfinite); None: it overflows to infinity
    """

    torch: torch.dtype
    bits: type[np.unsignedinteger[Any]]
    largest: float | None


_FORMATS = {
    tl.bfloat16: _Format(torch.bfloat16, np.uint16, None),
    tl.float8e4nv: _Format(torch.float8_e4m3fn, np.uint8, 448.0),
    tl.float8e5: _Format(torch.float8_e5m2, np.uint8, 57344.0),
    tl.float8e4b8: _Format(torch.float8_e4m3fnuz, np.uint8, 240.0),
    tl.float8e5b16: _Format(torch.float8_e5m2fnuz, np.uint8, 57344.0),
}
# float32 of every byte, for decoding by look-up.
_BYTES = {
    ty: torch.arange(256, dtype=torch.uint8).view(form.torch).float().numpy()
    for ty, form in _FORMATS.items()
    if form.bits is np.uint8
}


def is_narrow(ty: tl.dtype) -> bool:
    """Whether values of this scalar type are held as bits."""
    return ty in _FORMATS


def decode(bits: Bits, ty: tl.dtype) -> Bits:
    """float32 values of stored bits (exact), any shape. Other types pass unchanged."""
    if ty not in _FORMATS:
        return bits
    if ty is tl.bfloat16:
        wide = bits.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return _BYTES[ty].take(bits)


def encode(values: Bits, ty: tl.dtype, *, towards_zero: bool = False) -> Bits:
    """Stored bits of float values, any shape: round to nearest even, fp8 saturated, NaN kept."""
    form = _FORMATS[ty]
    values = np.ascontiguousarray(values, dtype=np.float32)
    if ty is tl.bfloat16:
        return _encode_bf16(values, towards_zero)
    if towards_zero:
        raise NotImplementedError(f"rounding {ty} towards zero is not emulated; use 'rtne'")
    assert form.largest is not None
    values = np.clip(values, -form.largest, form.largest)
    stored = torch.from_numpy(values).to(form.torch).view(torch.uint8)
    return np.asarray(stored.numpy())


def _encode_bf16(values: Bits, towards_zero: bool) -> Bits:
    raw = values.view(np.uint32)
    if towards_zero:
        wide = raw >> 16
    else:
        wide = (raw >> 16) & 1
        wide += 0x7FFF  # half a unit of the last place that is kept, less one for ties to even
        wide += raw
        wide >>= 16
    nan = np.isnan(values)
    if nan.any():
        wide[nan] = 0x7FC0
    return wide.astype(np.uint16)


def round_to_tf32(values: Bits) -> Bits:
    """float32 values as a tensor core reads them for TF32: the low 13 bits are not there."""
    raw = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return (raw & np.uint32(0xFFFFE000)).view(np.float32)
