"""Arguments, grids, orders, captures and threads of launches."""

# ruff: noqa: N803

import sys
import threading

import torch
import triton
import triton.language as tl
from triton_probes_casts import full_kernel
from triton_probing import BF16, EMULATION, equal, probe


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


@triton.jit
def fill_kernel(OUT, value):
    tl.store(OUT + tl.program_id(0), value)


@probe
def launches_of_two_threads():
    """Each sees its own grid and its own tensors."""
    sys.setswitchinterval(1e-5)
    outs = [torch.zeros(100), torch.zeros(30)]
    found = []

    def launch(out):
        for value in range(1, 9):
            fill_kernel[(len(out),)](out, float(value))
            found.append(equal(out, torch.full_like(out, float(value))))

    threads = [threading.Thread(target=launch, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "right" if found == ["right"] * 16 else f"wrong: {found}"
