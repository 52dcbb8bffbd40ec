"""Small kernels that Triton's interpreter gets wrong, or accepts although a GPU would not.

    python triton_probes.py shipped|repaired [PROBE ...]

prints a JSON object: for each probe (all by default) "right", "wrong: what came out", or
"Error: message". Run as a process of its own: TRITON_INTERPRET is read when triton is imported.
"""

# ruff: noqa: N803

import json
import os
import sys
import warnings

os.environ["TRITON_INTERPRET"] = "1"
warnings.simplefilter("ignore")  # the interpreter as shipped warns of casts

REPAIRED = sys.argv[1] == "repaired"
if REPAIRED:
    from pagedattn.conformance.emulation.triton import install

    EMULATION = install()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
PROBES = {}


def probe(function):
    PROBES[function.__name__] = function
    return function


def wide(x):
    return x.double() if x.is_floating_point() else x


def equal(got, expected):
    assert got.shape == expected.shape
    same = (wide(got) == wide(expected)) | (got.isnan() & expected.isnan())
    return "right" if same.all() else f"wrong: {got.tolist()} instead of {expected.tolist()}"


def numbers(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


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


@triton.jit
def scalar_kernel(X, OUT, factor, flag, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(X + i) * factor
    if flag:
        x = x + 1.0
    tl.store(OUT + i, x)


@probe
def float_argument_is_float32():
    x, out = torch.tensor([1.0078125] * 4, dtype=BF16), torch.zeros(4)
    scalar_kernel[(1,)](x, out, 1.001, 0, N=4)
    return equal(out, x.float() * torch.tensor(1.001))


@probe
def bool_argument():
    x, out = torch.ones(4), torch.zeros(4)
    scalar_kernel[(1,)](x, out, 2.0, True, N=4)
    return equal(out, torch.full((4,), 3.0))


@triton.jit(do_not_specialize=["stride"])
def annotated_kernel(OUT, count, stride: tl.int64):
    tl.store(OUT, count * stride)


@probe
def annotated_int64_argument():
    out = torch.zeros(1, dtype=torch.int64)
    annotated_kernel[(1,)](out, 2**30, 8)
    return equal(out, torch.tensor([2**33]))


@triton.jit
def loop_kernel(COUNT, OUT):
    total = 0
    for i in range(0, tl.load(COUNT)):
        total += i
    tl.store(OUT, total)


@probe
def loop_with_a_loaded_bound():
    out = torch.zeros(1, dtype=torch.int32)
    loop_kernel[(1,)](torch.tensor([5], dtype=torch.int32), out)
    return equal(out, torch.tensor([10], dtype=torch.int32))


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


@triton.jit
def promise_kernel(OUT, n):
    tl.store(OUT, tl.multiple_of(n, 16))


@probe
def false_promise_of_alignment():
    out = torch.zeros(1, dtype=torch.int32)
    promise_kernel[(1,)](out, 24)
    return equal(out, torch.tensor([24], dtype=torch.int32))


@triton.jit
def chain_kernel(OUT):
    i = tl.program_id(0)
    tl.store(OUT + i + 1, tl.load(OUT + i) + 1)


@probe
def programs_that_count_on_their_order():
    out = torch.zeros(65, dtype=torch.int32)
    chain_kernel[(64,)](out)
    return equal(out, torch.arange(65, dtype=torch.int32))


@triton.jit
def truth_kernel(X, OUT, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, N))
    if x > 0:
        tl.store(OUT, 1.0)


@probe
def truth_of_a_block():
    out = torch.zeros(1)
    truth_kernel[(1,)](torch.tensor([-1.0, 1.0]), out, N=2)
    return equal(out, torch.ones(1))


@probe
def unknown_keyword():
    full_kernel[(1,)](torch.zeros(4, dtype=BF16), N=4, num_wraps=4)
    return "right"


@probe
def launch_options():
    full_kernel[(1,)](torch.zeros(4, dtype=BF16), N=4, num_warps=4, num_stages=2, maxnreg=128)
    return "right"


@triton.jit
def nothing_kernel():
    pass


@probe
def grid_beyond_the_limit():
    nothing_kernel[(1, 70000)]()
    return "right"


@probe
def empty_grid():
    nothing_kernel[(0, 4)]()
    return "right"


@triton.jit
def scale_kernel(X, OUT, factor, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(OUT + i, tl.load(X + i) * factor)


@probe
def replay_of_a_capture():
    x, out = torch.ones(4), torch.zeros(4)
    factor = 2.0

    def launch():
        twice = x + x  # an allocation: the replay fills the same memory
        scale_kernel[(1,)](twice, out, factor, N=4)
        out.add_(1.0)

    replay = EMULATION.capture(launch)
    first = equal(out, torch.full((4,), 5.0))
    x.fill_(10.0)
    factor = 100.0  # a graph does not see it
    out.zero_()
    replay()
    return first if first != "right" else equal(out, torch.full((4,), 41.0))


def outcome(run):
    try:
        return run()
    except Exception as error:
        return f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', ()))}"


if __name__ == "__main__":
    print(json.dumps({name: outcome(PROBES[name]) for name in sys.argv[2:] or PROBES}))
