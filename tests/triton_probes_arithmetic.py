"""Sums, products, extremes and dot products."""

# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from triton_probing import BF16, E4M3, E5M2, equal, numbers, probe


@triton.jit
def binary_kernel(X, Y, OUT, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(X + i), tl.load(Y + i)
    if OP == "add":
        z = x + y
    elif OP == "mul":
        z = x * y
    elif OP == "sub":
        z = x - y
    elif OP == "less":
        z = tl.where(x < y, x, y)
    elif OP == "maximum":
        z = tl.maximum(x, y)
    else:
        z = tl.minimum(x, y)
    tl.store(OUT + i, z)


def binary(op, dtype, expected, x=None, y=None):
    x = numbers(64, dtype=dtype) if x is None else x
    y = numbers(64, dtype=dtype, seed=1) if y is None else y
    out = torch.zeros(x.numel(), dtype=dtype)
    binary_kernel[(1,)](x, y, out, OP=op, N=x.numel())
    return equal(out, expected(x, y))


@probe
def bf16_add():
    return binary("add", BF16, torch.add)


@probe
def bf16_sub():
    return binary("sub", BF16, torch.sub)


@probe
def bf16_mul():
    return binary("mul", BF16, torch.mul)


@probe
def bf16_less():
    return binary("less", BF16, torch.minimum)


@probe
def bf16_maximum():
    return binary("maximum", BF16, torch.maximum)


@probe
def maximum_skips_nan():
    x, y = torch.tensor([float("nan"), 1.0]), torch.tensor([2.0, float("nan")])
    return binary("maximum", torch.float32, torch.fmax, x, y)


@probe
def minimum_skips_nan():
    x, y = torch.tensor([float("nan"), 1.0]), torch.tensor([2.0, float("nan")])
    return binary("minimum", torch.float32, torch.fmin, x, y)


@triton.jit
def reduce_kernel(X, OUT, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(X + m[:, None] * N + n[None, :])
    if OP == "sum":
        tl.store(OUT + m, tl.sum(x, 1))
    else:
        tl.store(OUT + m, tl.max(x, 1))


def reduce(op, x, expected):
    out = torch.zeros(x.shape[0], dtype=expected.dtype)
    reduce_kernel[(1,)](x, out, OP=op, M=x.shape[0], N=x.shape[1])
    return equal(out, expected)


@probe
def bf16_sum():
    x = torch.arange(16).reshape(2, 8).to(BF16)
    return reduce("sum", x, x.sum(1))


@probe
def bf16_max():
    x = numbers(4, 8, dtype=BF16)
    return reduce("max", x, x.amax(1))


@probe
def sum_of_16_bit_floats_rounds_every_step():
    x = torch.tensor([[2048.0, 1.0, 1.0, 1.0]], dtype=torch.float16)
    return reduce("sum", x, torch.tensor([2050.0], dtype=torch.float16))


@probe
def max_skips_nan():
    x = torch.tensor([[float("nan"), 1.0], [float("nan"), float("nan")]])
    return reduce("max", x, torch.tensor([1.0, float("nan")]))


@triton.jit
def dot_kernel(A, B, OUT, PRECISION: tl.constexpr, M: tl.constexpr, K: tl.constexpr):
    m, k = tl.arange(0, M), tl.arange(0, K)
    a = tl.load(A + m[:, None] * K + k[None, :])
    b = tl.load(B + k[:, None] * M + m[None, :])
    c = tl.dot(a, b, input_precision=PRECISION, out_dtype=OUT.dtype.element_ty)
    tl.store(OUT + m[:, None] * M + m[None, :], c)


def dot(dtype, *, precision="tf32", width=32, a=None, expected=None):
    a = numbers(16, width).to(dtype) if a is None else a
    b = (numbers(width, 16, seed=1) * 2).to(dtype)
    out = torch.zeros(16, 16, dtype=torch.int32 if dtype == torch.int8 else torch.float32)
    dot_kernel[(1,)](a, b, out, PRECISION=precision, M=16, K=width)
    exact = (expected or (lambda a, b: a.double() @ b.double()))(a, b)
    worst = (out.double() - exact).abs().max().item()
    return "right" if worst <= 1e-5 else f"wrong: off by {worst:.1e}"


@probe
def bf16_dot():
    return dot(BF16)


@probe
def fp16_dot():
    return dot(torch.float16)


@probe
def e4m3_dot():
    return dot(E4M3)


@probe
def e5m2_dot():
    return dot(E5M2)


@probe
def int8_dot():
    return dot(torch.int8)


@probe
def float32_dot_in_tf32():
    def short(x):
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32).double()

    return dot(torch.float32, expected=lambda a, b: short(a) @ short(b))


@probe
def float32_dot_in_ieee():
    return dot(torch.float32, precision="ieee")


@probe
def dot_below_the_least_tile():
    return dot(torch.float16, width=8)
