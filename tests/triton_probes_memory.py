"""Loads, stores and atomics, in bounds and out of them."""

# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from triton_probing import E4M3, equal, probe


@triton.jit
def copy_kernel(X, OUT, shift, COUNT: tl.constexpr, OTHER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if OTHER:
        x = tl.load(X + shift + i, mask=i < COUNT, other=0)
    else:
        x = tl.load(X + shift + i, mask=i < COUNT)
    tl.store(OUT + i, x)


def copy(x, *, shift=0, count=8, other=True):
    out = torch.zeros(8, dtype=x.dtype)
    copy_kernel[(1,)](x, out, shift, COUNT=count, OTHER=other, N=8)
    return out


@probe
def load_past_the_end():
    return equal(copy(torch.arange(32.0)[:8], shift=3), torch.arange(3.0, 11.0))


@probe
def load_before_the_start():
    return equal(copy(torch.arange(32.0)[8:16], shift=-1), torch.arange(7.0, 15.0))


@probe
def masked_lanes_may_point_anywhere():
    expected = torch.tensor([1.0, 2.0, 3.0, 0, 0, 0, 0, 0])
    return equal(copy(torch.tensor([1.0, 2.0, 3.0]), count=3), expected)


@probe
def nothing_is_loaded_of_an_empty_tensor():
    return equal(copy(torch.zeros(0), count=0), torch.zeros(8))


@probe
def masked_load_without_other():
    nan = float("nan")
    expected = torch.tensor([0.0, 1.0, nan, nan, nan, nan, nan, nan])
    return equal(copy(torch.arange(8.0), count=2, other=False), expected)


@probe
def masked_integer_load_without_other():
    expected = torch.tensor([0, 1] + [2**31 - 1] * 6, dtype=torch.int32)
    return equal(copy(torch.arange(8, dtype=torch.int32), count=2, other=False), expected)


@probe
def masked_e4m3_load_without_other():
    expected = torch.tensor([1.0, 1.0] + [float("nan")] * 6).to(E4M3)
    return equal(copy(torch.ones(8).to(E4M3), count=2, other=False).float(), expected.float())


@triton.jit
def write_kernel(OUT, shift, ATOMIC: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if ATOMIC:
        tl.atomic_add(OUT + shift + i, 1.0)
    else:
        tl.store(OUT + shift + i, 1.0)


@probe
def store_past_the_end():
    memory = torch.zeros(32)
    write_kernel[(1,)](memory[:8], 1, ATOMIC=False, N=8)
    return equal(memory[1:9], torch.ones(8))


@probe
def atomic_past_the_end():
    memory = torch.zeros(32)
    write_kernel[(1,)](memory[:8], 1, ATOMIC=True, N=8)
    return equal(memory[1:9], torch.ones(8))


@probe
def atomic_add():
    memory = torch.zeros(8)
    write_kernel[(3,)](memory, 0, ATOMIC=True, N=8)
    return equal(memory, torch.full((8,), 3.0))


@triton.jit
def two_tensors_kernel(X, Y, OUT, distance: tl.int64):
    tl.store(OUT, tl.load(X + distance))


@probe
def load_from_another_tensor():
    x, y, out = torch.zeros(4), torch.ones(4), torch.zeros(1)
    two_tensors_kernel[(1,)](x, y, out, (y.data_ptr() - x.data_ptr()) // 4)
    return equal(out, torch.ones(1))


@triton.jit
def wide_kernel(X, OUT):
    tl.store(OUT, tl.load((X + 1).to(tl.pointer_type(tl.int32))))


@probe
def misaligned_load():
    out = torch.zeros(1, dtype=torch.int32)
    wide_kernel[(1,)](torch.ones(8, dtype=torch.int8), out)
    return equal(out, torch.tensor([0x01010101], dtype=torch.int32))
