"""8-bit numbers, written from their definition: the nearest representable value, ties to even.

Independent of pagedattn.write: the values of a format are listed by decoding its 256 bytes, and
encoding looks the nearest one up in float64.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

__all__ = ["acceptable", "decode", "encode", "largest", "middles", "token_scales"]

BOUNDARY = 1e-6
"""A quotient this close (relatively) to the middle between two values may be rounded to either:
float32 implementations divide, or multiply by the reciprocal."""


@cache
def _codes(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(values ascending, their bytes) of every finite number of `dtype`, zero once, int8 from -127
    to 127."""
    every = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    values = every.view(dtype).double()
    keep = values.isfinite() & ~((values == 0) & (every != 0))
    if dtype is torch.int8:
        keep &= values >= -127
    order = values[keep].argsort()
    return values[keep][order], every[keep][order]


def largest(dtype: torch.dtype) -> float:
    """The largest magnitude that a stored value may have."""
    return float(_codes(dtype)[0][-1])


def encode(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 codes of x / scale, saturated; NaN becomes the code of 0 (int8) or of NaN."""
    return _nearest(x.double() / scale.double(), dtype)[0]


def acceptable(
    x: Tensor, scale: Tensor, dtype: torch.dtype, stored: Tensor, *, exact: bool = False
) -> Tensor:
    """bool, where the uint8 codes `stored` are a correct rounding of x / scale.

    exact: the quotient can be had without rounding (scale is a power of two): no BOUNDARY."""
    quotient = x.double() / scale.double()
    nearest, _ = _nearest(quotient, dtype)
    zero = (decode(stored, dtype) == 0) & (decode(nearest, dtype) == 0)  # either sign of zero
    if exact:
        return (stored == nearest) | zero
    lower, _ = _nearest(quotient * (1 - BOUNDARY), dtype)
    upper, _ = _nearest(quotient * (1 + BOUNDARY), dtype)
    return (stored == nearest) | (stored == lower) | (stored == upper) | zero


def middles(dtype: torch.dtype) -> Tensor:
    """float32 numbers in the middle between two neighbours of `dtype`; 16-bit floats hold them."""
    values = _codes(dtype)[0]
    return ((values[1:] + values[:-1]) / 2).float()


def _nearest(quotient: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    values, codes = _codes(dtype)
    x = quotient.nan_to_num(0.0, posinf=values[-1].item(), neginf=values[0].item())
    right = torch.searchsorted(values, x.contiguous()).clamp(1, len(values) - 1)
    left = right - 1
    to_left, to_right = x - values[left], values[right] - x
    tie_goes_right = codes[right] % 2 == 0  # exactly one neighbour has an even last bit
    choose_right = (to_right < to_left) | ((to_right == to_left) & tie_goes_right)
    index = torch.where(choose_right, right, left)
    return codes[index], values[index]


def decode(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values of uint8 codes."""
    return codes.contiguous().view(dtype).double()


def token_scales(x: Tensor, dtype: torch.dtype) -> Tensor:
    """PER_TOKEN_HEAD scales of x [n, H, D]: max|x| / largest, 1 where that is 0; f32 [n, H]."""
    scale = (x.double().abs().amax(-1) / largest(dtype)).float()
    return torch.where(scale == 0, torch.ones_like(scale), scale)
