"""Conversions and constants."""

# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from triton_probing import BF16, E4M3, E5M2, equal, numbers, probe


@triton.jit
def cast_kernel(X, OUT, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(OUT + i, tl.load(X + i).to(OUT.dtype.element_ty))


def cast(x, dtype, expected=None):
    out = torch.zeros(x.numel(), dtype=dtype)
    cast_kernel[(1,)](x, out, N=x.numel())
    return equal(out, x.to(dtype) if expected is None else expected.to(dtype))


def ties(bits):
    """Numbers halfway between two neighbours of a format with `bits` bits of mantissa, and next
    to halfway on both sides, with both signs."""
    half = 1.0 + (torch.arange(16) * 2 + 1) * 2.0 ** -(bits + 1)
    near = torch.cat([half, half * (1 + 2**-20), half * (1 - 2**-20)])
    return torch.cat([near, -near, torch.zeros(32)])


@probe
def bf16_cast_rounds_to_nearest_even():
    return cast(ties(7), BF16)


@probe
def bf16_cast_keeps_nan_and_infinity():
    nan = torch.tensor([0x7F800001, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    return cast(torch.cat([nan, torch.tensor([float("inf"), 3.4e38])]), BF16)


@probe
def bf16_to_float32():
    return cast(numbers(64, dtype=BF16), torch.float32)


@probe
def bf16_from_int():
    return cast(torch.arange(-300, 212, dtype=torch.int32), BF16)


@probe
def bf16_to_float16():
    return cast(numbers(64, dtype=BF16), torch.float16)


@probe
def e4m3_cast_rounds_to_nearest_even():
    return cast(ties(3), E4M3)


@probe
def e5m2_cast_rounds_to_nearest_even():
    return cast(ties(2), E5M2)


@probe
def e4m3_cast_of_subnormals():
    return cast(torch.arange(-32, 32) * 2.0**-11, E4M3)


@probe
def e4m3_cast_saturates():
    x = torch.tensor([500.0, -1e9, float("inf"), 448.0])
    return cast(x, E4M3, x.clamp(-448, 448))


@probe
def e5m2_cast_saturates():
    x = torch.tensor([6e4, -1e9, float("inf"), 57344.0])
    return cast(x, E5M2, x.clamp(-57344, 57344))


@probe
def e4m3_to_float32_every_byte():
    return cast(torch.arange(256, dtype=torch.uint8).view(E4M3), torch.float32)


@probe
def e5m2_to_float32_every_byte():
    return cast(torch.arange(256, dtype=torch.uint8).view(E5M2), torch.float32)


@probe
def e4m3_to_bf16_every_byte():
    return cast(torch.arange(256, dtype=torch.uint8).view(E4M3), BF16)


@probe
def float_to_int8():
    return cast(torch.tensor([-127.0, -1.9, 1.9, 127.0]), torch.int8)


@triton.jit
def full_kernel(OUT, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(OUT + i, tl.full([N], 1.5, tl.bfloat16))


@probe
def bf16_constant():
    out = torch.zeros(4, dtype=BF16)
    full_kernel[(1,)](out, N=4)
    return equal(out, torch.full((4,), 1.5, dtype=BF16))
