"""Faults of barriers, warp operations and control flow, planted and found (of memory accesses:
test_emulation_cuda_memory.py)."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from cuda_fault_support import WANTED, launch, line_of, wrong_orders

from pagedattn.conformance.emulation.cuda import KernelFault, RawModule

SOURCE = r"""
#include "simt.h"
// o[i] becomes 63 - i: by every kernel here that is right
__global__ void clean(float* o) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  o[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void missing_barrier(float* o) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  o[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void missing_barrier_before_reuse(float* o) {
  __shared__ float s[64];
  for (int round = 0; round < 2; ++round) {
    s[threadIdx.x] = threadIdx.x + round;
    __syncthreads();
    o[threadIdx.x] = s[63 - threadIdx.x] - round;  // the next round writes what others still read
  }
}
__global__ void missing_syncwarp(float* o) {
  __shared__ float s[64];
  const int other = threadIdx.x ^ 31;
  s[threadIdx.x] = threadIdx.x;
  o[63 - threadIdx.x] = s[other] + (threadIdx.x - other);
}
__global__ void divergent_barrier(float* o) {
  if (threadIdx.x < 32) __syncthreads();
  o[threadIdx.x] = 63 - threadIdx.x;
}
__global__ void two_barriers(float* o) {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
  o[threadIdx.x] = 63 - threadIdx.x;
}
__global__ void early_return(float* o) {
  if (threadIdx.x >= 60) return;
  __syncthreads();
  o[threadIdx.x] = 63 - threadIdx.x;
}
__global__ void half_warp_shuffles(float* o) {
  float v = threadIdx.x;
  if (threadIdx.x % 32 < 16) v = __shfl_xor_sync(0xffffffffu, v, 1);
  o[threadIdx.x] = v;
}
__global__ void mask_omits_caller(float* o) {
  o[threadIdx.x] = __shfl_xor_sync(0xffffu, (float)threadIdx.x, 1);
}
__global__ void shuffle_from_outside(float* o) {
  if (threadIdx.x < 16) o[threadIdx.x] = __shfl_sync(0xffffu, (float)threadIdx.x, 20);
}
__global__ void different_operations(float* o) {
  if (threadIdx.x % 2)
    o[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.f, 1);
  else
    o[threadIdx.x] = __ballot_sync(0xffffffffu, 1);
}
__global__ void division_by_zero(int* o, int zero) { o[0] = 7 / zero; }
__global__ void endless(float* o) { while (*reinterpret_cast<volatile float*>(o) == 0.f) {} }
__device__ int depth(int n, int* sink) {
  volatile int big[256];
  big[n & 255] = n;
  *sink += big[0];
  return depth(n + 1, sink) + big[n & 255];
}
__global__ void stack_overflow(int* o) { o[0] = depth(0, o); }
__global__ void trap(float* o) { if (threadIdx.x == 3) __trap(); }
"""


@pytest.fixture(scope="module")
def plain() -> RawModule:
    return RawModule(code=SOURCE, name="faults.cu", checked=False)


@pytest.fixture(scope="module")
def checked() -> RawModule:
    return RawModule(code=SOURCE, name="faults.cu", checked=True)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_a_right_kernel_has_no_fault(plain: RawModule, checked: RawModule, order: int) -> None:
    assert torch.equal(launch(plain.get_function("clean"), order=order), WANTED)
    assert torch.equal(launch(checked.get_function("clean"), order=order), WANTED)


@pytest.mark.parametrize("name", ["missing_barrier", "missing_syncwarp"])
def test_a_missing_barrier_shows_in_some_order(plain: RawModule, name: str) -> None:
    assert wrong_orders(plain.get_function(name))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing_barrier", "reads what was written by|writes what is still read by"),
        ("missing_syncwarp", "reads what was written by|writes what is still read by"),
        ("missing_barrier_before_reuse", "reads what was written by|writes what is still read by"),
    ],
)
def test_checked_mode_names_the_race(checked: RawModule, name: str, message: str) -> None:
    for order in range(4):
        with pytest.raises(KernelFault, match=message) as caught:
            launch(checked.get_function(name), order=order)
        assert caught.value.place.startswith("faults.cu:")
        assert re.search(
            r"of \d+ bytes of static shared memory \(byte \d+ of s\)", str(caught.value)
        )


def test_divergence_is_a_deadlock_that_says_who_waits_where(plain: RawModule) -> None:
    with pytest.raises(KernelFault) as caught:
        launch(plain.get_function("divergent_barrier"))
    line = line_of(SOURCE, "if (threadIdx.x < 32) __syncthreads();")
    assert f"32 of 64 threads wait at __syncthreads() faults.cu:{line}" in str(caught.value)
    assert "32 of 64 threads have exited (thread (32,0,0) to (63,0,0))" in str(caught.value)
    assert caught.value.block == (0, 0, 0)


def test_a_deadlock_names_threads_with_gaps(plain: RawModule) -> None:
    with pytest.raises(KernelFault) as caught:
        launch(plain.get_function("half_warp_shuffles"))
    assert "(thread (0,0,0) to (15,0,0), (32,0,0) to (47,0,0))" in str(caught.value)
    assert "(thread (16,0,0) to (31,0,0), (48,0,0) to (63,0,0))" in str(caught.value)


def test_an_early_return_is_a_deadlock(plain: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"60 of 64 threads wait.*4 of 64 threads have exited"):
        launch(plain.get_function("early_return"))


def test_threads_at_different_barriers(plain: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"meet at different barriers.*faults.cu:\d+.*faults"):
        launch(plain.get_function("two_barriers"))


def test_half_a_warp_in_a_full_shuffle(plain: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"wait at a warp shuffle with mask 0xffffffff faults.cu"):
        launch(plain.get_function("half_warp_shuffles"))


def test_a_mask_without_its_caller(plain: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"mask 0x0000ffff is called by lane 16") as caught:
        launch(plain.get_function("mask_omits_caller"))
    assert caught.value.thread == (16, 0, 0)
    assert caught.value.place == f"faults.cu:{line_of(SOURCE, '__shfl_xor_sync(0xffffu')}"


def test_a_shuffle_from_a_lane_outside(plain: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"reads lane 20, which takes no part"):
        launch(plain.get_function("shuffle_from_outside"))


def test_lanes_at_different_operations(plain: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"different operations.*a warp vote.*a warp shuffle"):
        launch(plain.get_function("different_operations"))


def test_integer_division_by_zero(plain: RawModule) -> None:
    out = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(KernelFault, match="integer division by zero"):
        plain.get_function("division_by_zero")((1,), (1,), (out, np.int32(0)))


def test_stack_overflow(plain: RawModule) -> None:
    out = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(KernelFault, match="stack overflow"):
        plain.get_function("stack_overflow")((1,), (1,), (out,))


def test_a_trap_names_its_thread(plain: RawModule) -> None:
    with pytest.raises(KernelFault, match="__trap") as caught:
        launch(plain.get_function("trap"))
    assert caught.value.thread == (3, 0, 0)
    assert caught.value.place == f"faults.cu:{line_of(SOURCE, '__trap()')}"


def test_an_endless_loop_is_ended(plain: RawModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDATTN_SIMT_TIMEOUT", "1")
    with pytest.raises(KernelFault, match="no end after 1 s of CPU time"):
        plain.get_function("endless")((1,), (64,), (torch.zeros(64),))


def test_the_process_goes_on_after_every_fault(plain: RawModule, checked: RawModule) -> None:
    for module in (plain, checked):
        for name in ("divergent_barrier", "half_warp_shuffles", "trap", "early_return"):
            with pytest.raises(KernelFault):
                launch(module.get_function(name))
            assert torch.equal(launch(module.get_function("clean")), WANTED)
