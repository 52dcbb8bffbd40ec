"""Checked mode on shared memory: what is no race, and races of atomics, volatile and plain accesses
(missing barriers between plain accesses: test_emulation_cuda_faults.py)."""

from __future__ import annotations

import pytest
import torch
from cuda_fault_support import line_of

from pagedattn.conformance.emulation.cuda import Check, KernelFault, RawModule

SOURCE = r"""
// Right: o[i] becomes 2016 for each of 64 threads.
__global__ void butterfly(float* o) {
  __shared__ float s[64];
  const int i = threadIdx.x;
  s[i] = i;
  __syncwarp();
  for (int d = 16; d; d /= 2) {
    const float other = s[i ^ d];
    __syncwarp();
    s[i] += other;
    __syncwarp();
  }
  __syncthreads();
  o[i] = s[i] + s[i ^ 32];
}
__global__ void tree(float* o) {
  __shared__ float s[64];
  const int i = threadIdx.x;
  s[i] = i;
  __syncthreads();
  for (int d = 32; d; d /= 2) {
    if (i < d) s[i] += s[i + d];
    __syncthreads();
  }
  o[i] = s[0];
}
__global__ void warp_counters(float* o) {
  __shared__ int n[2];
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) n[warp] = 0;
  __syncwarp();
  atomicAdd(&n[warp], 31 + 2 * warp);
  __syncwarp();
  if (n[warp] != 32 * (31 + 2 * warp)) __trap();
  __syncthreads();
  o[threadIdx.x] = n[0] + n[1] - 32;
}
__global__ void block_list(float* o) {
  __shared__ int count, list[64];
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  list[atomicAdd(&count, 1)] = threadIdx.x;
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += list[i];
  o[threadIdx.x] = sum;
}
__global__ void volatile_flag(float* o) {
  __shared__ volatile int ready;
  __shared__ volatile float value;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x == 32) {
    value = 2016;
    __threadfence_block();
    ready = 1;
  }
  while (!ready) __nanosleep(10);
  o[threadIdx.x] = value;
}
__global__ void lock_set_by_exchange(float* o) {
  __shared__ int lock;
  if (threadIdx.x == 0) atomicExch(&lock, 0);
  __syncthreads();
  atomicCAS(&lock, 1, 2);
  __syncthreads();
  o[threadIdx.x] = 2016 + lock;
}
// Wrong.
__global__ void zeroed_too_late(float* o) {
  __shared__ int n;
  if (threadIdx.x == 0) n = 0;
  atomicAdd(&n, 1);
  __syncthreads();
  o[threadIdx.x] = n;
}
__global__ void counted_too_late(float* o) {
  __shared__ int n;
  if (threadIdx.x == 0) n = 0;
  __syncthreads();
  atomicAdd(&n, 1);
  o[threadIdx.x] = n;
}
__global__ void polled_value(float* o) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  o[threadIdx.x] = reinterpret_cast<volatile float*>(s)[63 - threadIdx.x];
}
__global__ void third_reader(float* o) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  const float v = s[threadIdx.x] + s[threadIdx.x ^ 1] + s[(threadIdx.x + 32) % 64];
  __syncwarp();
  s[threadIdx.x] = v;  // the other warp may still read it
  o[threadIdx.x] = v;
}
__global__ void never_zeroed(float* o) {
  __shared__ int bins[4];
  atomicAdd(&bins[threadIdx.x % 4], 1);
  __syncthreads();
  o[threadIdx.x] = bins[0];
}
__global__ void volatile_read(float* o, const float* x) {
  o[threadIdx.x] = *reinterpret_cast<const volatile float*>(x + threadIdx.x);
}
__global__ void volatile_write(float* o, const float* x) {
  *reinterpret_cast<volatile float*>(const_cast<float*>(x)) = o[0];
}
"""
RIGHT = [
    "butterfly", "tree", "warp_counters", "block_list", "volatile_flag", "lock_set_by_exchange",
]  # fmt: skip
HALVES = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct Pair {
  Pair() = default;
  Pair(float x, float y) : x(x), y(y) {}
  float x, y;
};
template <class T> __global__ void swap_halves(float* o) {
  __shared__ T s[64];
  s[threadIdx.x] = T(float(threadIdx.x));
  __syncthreads();
  o[threadIdx.x] = s[threadIdx.x ^ 1];
}
__global__ void swap_pairs(float* o) {
  __shared__ Pair s[64];
  s[threadIdx.x] = Pair(threadIdx.x, 0.f);
  __syncthreads();
  o[threadIdx.x] = s[threadIdx.x ^ 1].x;
}
"""
EVERYTHING = Check.BOUNDS | Check.RACES | Check.UNINITIALISED


@pytest.fixture(scope="module")
def module() -> RawModule:
    return RawModule(code=SOURCE, name="races.cu", checked=EVERYTHING)


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_are_silent(module: RawModule, name: str, order: int) -> None:
    out = torch.zeros(64)
    module.get_function(name)((1,), (64,), (out,), order=order)
    assert torch.equal(out, torch.full((64,), 2016.0))


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zeroed_too_late", r"\(by an atomic .*\(byte 0 of n\)"),
        ("counted_too_late", r"\(by an atomic .*\(byte 0 of n\)"),
        ("polled_value", r"reads \(by a volatile access\) what was written by|writes "),
        ("third_reader", r"writes what is still read by|reads what was written by"),
    ],
)
def test_races_are_named(name: str, message: str, order: int) -> None:
    module = RawModule(code=SOURCE, name="races.cu", checked=Check.RACES)
    with pytest.raises(KernelFault, match=message) as caught:
        module.get_function(name)((1,), (64,), (torch.zeros(64),), order=order)
    assert caught.value.place.startswith("races.cu:")
    assert f"{caught.value.thread}".replace(" ", "") in caught.value.message
    first, second = caught.value.message.split(" with no barrier")[0].rsplit("thread ", 2)[1:]
    assert first.split(" ")[0] != second  # of two different threads


def test_an_atomic_on_what_nobody_wrote(module: RawModule) -> None:
    with pytest.raises(KernelFault, match="atomic of shared memory that no thread") as caught:
        module.get_function("never_zeroed")((1,), (64,), (torch.zeros(64),))
    assert caught.value.place == f"races.cu:{line_of(SOURCE, 'atomicAdd(&bins')}"


def test_volatile_accesses_are_reads_and_writes(module: RawModule) -> None:
    x, out = torch.arange(64.0), torch.zeros(64)
    module.get_function("volatile_read")((1,), (64,), (out, x))
    assert torch.equal(out, x)
    with pytest.raises(KernelFault, match="write of 4 bytes to memory that was given as const"):
        module.get_function("volatile_write")((1,), (64,), (out, x))


@pytest.mark.parametrize(
    "name", ["swap_halves<__half>", "swap_halves<__nv_bfloat16>", "swap_pairs"]
)
def test_shared_variables_of_classes_need_no_first_value(name: str) -> None:
    module = RawModule(code=HALVES, name_expressions=[name], checked=EVERYTHING)
    out = torch.zeros(64)
    module.get_function(name)((1,), (64,), (out,))
    assert out.tolist() == [i ^ 1 for i in range(64)]


@pytest.mark.parametrize("code", ["", "#include <cuda_fp16.h>", '#include "simt.h"'])
def test_a_short_source_is_named_as_itself(code: str) -> None:
    """Few file names in the debug information are where tools take the first for the second."""
    kernel = "\n__global__ void k(float* o) { o[threadIdx.x + 1] = 1; }"
    module = RawModule(code=code + kernel, name="mine.cu", checked=True)
    with pytest.raises(KernelFault) as caught:
        module.get_function("k")((1,), (64,), (torch.zeros(64),))
    assert caught.value.place == "mine.cu:2"
