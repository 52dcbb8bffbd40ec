"""Faults of memory accesses, planted and found: shared, global and local memory, copies."""

from __future__ import annotations

import pytest
import torch
from cuda_fault_support import WANTED, launch, line_of, wrong_orders

from pagedattn.conformance.emulation.cuda import Check, KernelFault, RawModule

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
__global__ void static_overrun(float* o) {
  __shared__ float s[64];
  s[threadIdx.x + 1] = threadIdx.x;
  __syncthreads();
  o[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void dynamic_overrun(float* o) {
  extern __shared__ float d[];
  d[threadIdx.x + 1] = threadIdx.x;
  o[threadIdx.x] = 63 - d[threadIdx.x + 1];
}
__global__ void unwritten_dynamic(float* o) {
  extern __shared__ float d[];
  if (threadIdx.x != 5) d[threadIdx.x] = threadIdx.x;
  __syncthreads();
  o[threadIdx.x] = 63 - d[threadIdx.x];
}
__global__ void unwritten_static(float* o) {
  __shared__ float s[64];
  if (threadIdx.x != 5) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  o[threadIdx.x] = 63 - s[threadIdx.x];
}
__global__ void global_overrun(float* o) { o[threadIdx.x + 1] = 1; }
__global__ void global_underrun(float* o) { o[0] = o[(int)threadIdx.x - 1]; }
__global__ void wild_read(float* o) { o[threadIdx.x] = o[(size_t)0x7fffffff * 4096]; }
__global__ void write_to_const(const float* in) { const_cast<float*>(in)[threadIdx.x] = 0; }
__global__ void misaligned(float* o) {
  const float4 v = *reinterpret_cast<const float4*>(o + 1);
  o[0] = v.x;
}
__global__ void local_overrun(float* o) {
  float v[4] = {1, 2, 3, 4};
  for (int i = 0; i <= (int)threadIdx.x; ++i) o[i] = v[i];
}
__global__ void copy_without_wait(float* o, const float* in) {
  extern __shared__ float4 d4[];
  if (threadIdx.x < 16) simt::cp_async_16(d4 + threadIdx.x, in + threadIdx.x * 4);
  simt::cp_async_commit();
  __syncthreads();
  o[threadIdx.x] = reinterpret_cast<float*>(d4)[threadIdx.x];
}
__global__ void copy_waits_for_too_little(float* o, const float* in) {
  extern __shared__ float4 d4[];
  if (threadIdx.x < 16) simt::cp_async_16(d4 + threadIdx.x, in + threadIdx.x * 4);
  simt::cp_async_commit();
  simt::cp_async_wait(1);
  __syncthreads();
  o[threadIdx.x] = reinterpret_cast<float*>(d4)[threadIdx.x];
}
__global__ void copy_without_barrier(float* o, const float* in) {
  extern __shared__ float4 d4[];
  if (threadIdx.x < 16) simt::cp_async_16(d4 + threadIdx.x, in + threadIdx.x * 4);
  simt::cp_async_commit();
  simt::cp_async_wait(0);
  o[threadIdx.x] = reinterpret_cast<float*>(d4)[threadIdx.x];
}
__global__ void copy_misaligned(float* o, const float* in) {
  extern __shared__ float4 d4[];
  simt::cp_async_16(d4, in + 1);
}
__global__ void copy_past_the_end(float* o, const float* in) {
  extern __shared__ float4 d4[];
  simt::cp_async_16(d4, in + 64);
}
__global__ void atomic_overrun(float* o) {
  atomicAdd(o + 64, 1.f);
}
__global__ void ldmatrix_from_global(float* o) {
  unsigned r[4];
  simt::ldmatrix_x4(r, o);
}
"""


@pytest.fixture(scope="module")
def plain() -> RawModule:
    return RawModule(code=SOURCE, name="faults.cu", checked=False)


@pytest.fixture(scope="module")
def checked() -> RawModule:
    return RawModule(code=SOURCE, name="faults.cu", checked=True)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_overrun_of_dynamic_shared_memory(plain: RawModule, order: int) -> None:
    with pytest.raises(KernelFault, match=r"past the end of dynamic shared.*byte 25[67] of 256"):
        launch(plain.get_function("dynamic_overrun"), order=order)


def test_overrun_of_dynamic_shared_memory_in_checked_mode(checked: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"byte 256 of 256 bytes of dynamic shared") as caught:
        launch(checked.get_function("dynamic_overrun"))
    assert caught.value.thread == (63, 0, 0)
    assert caught.value.place == f"faults.cu:{line_of(SOURCE, 'd[threadIdx.x + 1] = threadIdx.x;')}"


def test_overrun_of_static_shared_memory(checked: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"index 64 is outside an array of type") as caught:
        launch(checked.get_function("static_overrun"))
    assert caught.value.thread == (63, 0, 0)


def test_overrun_of_the_last_static_array_meets_the_canary() -> None:
    source = (
        "__global__ void overrun(float* o) { __shared__ float s[64]; float* p = s;"
        " p[threadIdx.x + 1] = 1; __syncthreads(); o[threadIdx.x] = s[threadIdx.x]; }"
    )
    kernel = RawModule(code=source).get_function("overrun")
    with pytest.raises(KernelFault, match=r"past the end of static shared memory: byte 256 of 256"):
        launch(kernel)


@pytest.mark.parametrize("name", ["unwritten_dynamic", "unwritten_static"])
def test_unwritten_shared_memory_is_nan(plain: RawModule, name: str) -> None:
    out = launch(plain.get_function(name))
    assert out[5].isnan()
    assert torch.equal(out.nan_to_num(58.0), WANTED)


@pytest.mark.parametrize("name", ["unwritten_dynamic", "unwritten_static"])
def test_unwritten_shared_memory_is_named_where_asked_for(name: str) -> None:
    module = RawModule(code=SOURCE, name="faults.cu", checked=Check.UNINITIALISED)
    with pytest.raises(
        KernelFault, match=r"no thread of this block has written; .*byte 20 of"
    ) as found:
        launch(module.get_function(name))
    assert found.value.thread == (5, 0, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("global_overrun", r"write of 4 bytes outside.*byte 256 of the 256 bytes of argument 0"),
        ("global_underrun", r"read of 4 bytes outside.*byte -4 of the 256 bytes of argument 0"),
        ("write_to_const", r"write of 4 bytes to memory that was given as const"),
        ("wild_read", r"read of 4 bytes outside the memory"),
    ],
)
def test_global_memory_is_watched(checked: RawModule, name: str, message: str) -> None:
    with pytest.raises(KernelFault, match=message) as caught:
        launch(checked.get_function(name))
    assert caught.value.place == f"faults.cu:{line_of(SOURCE, f'void {name}(')}"


def test_each_check_is_made_where_asked_for() -> None:
    races = RawModule(code=SOURCE, name="faults.cu", checked=Check.RACES)
    bounds = RawModule(code=SOURCE, name="faults.cu", checked=Check.BOUNDS)
    held = torch.full((65,), -1.0)
    races.get_function("global_overrun")((1,), (64,), (held[:64],))
    assert held.tolist() == [-1.0] + [1.0] * 64
    launch(bounds.get_function("missing_barrier"))
    with pytest.raises(KernelFault, match="race"):
        launch(races.get_function("missing_barrier"))


def test_a_wild_read_is_a_report_even_in_plain_mode(plain: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"not mapped|no memory can have"):
        launch(plain.get_function("wild_read"))
    assert torch.equal(launch(plain.get_function("clean")), WANTED)


def test_misaligned_vector_access(checked: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"misaligned access: type.*float4.*multiple of 16"):
        launch(checked.get_function("misaligned"))


def test_overrun_of_a_local_array(checked: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"index 4 is outside an array of type 'float \[4\]'"):
        launch(checked.get_function("local_overrun"))


def test_copies_that_nobody_waited_for_are_nan(plain: RawModule) -> None:
    data = WANTED.clone()
    assert launch(plain.get_function("copy_without_wait"), data).isnan().all()
    assert launch(plain.get_function("copy_waits_for_too_little"), data).isnan().all()


@pytest.mark.parametrize("name", ["copy_without_wait", "copy_waits_for_too_little"])
def test_checked_mode_names_the_copy_that_nobody_waited_for(checked: RawModule, name: str) -> None:
    for order in range(3):
        with pytest.raises(KernelFault, match=r"cp.async of thread .* is still to fill"):
            launch(checked.get_function(name), torch.zeros(64), order=order)


def test_a_copy_without_barrier_shows_in_some_order(plain: RawModule, checked: RawModule) -> None:
    data = WANTED.clone()
    assert wrong_orders(plain.get_function("copy_without_barrier"), data)
    with pytest.raises(KernelFault, match="race on shared memory"):
        launch(checked.get_function("copy_without_barrier"), data)


def test_copies_check_their_addresses(plain: RawModule, checked: RawModule) -> None:
    data = torch.zeros(64)
    with pytest.raises(KernelFault, match=r"addresses must be multiples of 16"):
        launch(plain.get_function("copy_misaligned"), data)
    with pytest.raises(KernelFault, match=r"byte 256 of the 256 bytes of argument 1") as caught:
        launch(checked.get_function("copy_past_the_end"), data)
    assert caught.value.place == f"faults.cu:{line_of(SOURCE, 'simt::cp_async_16(d4, in + 64);')}"


def test_atomics_check_their_addresses(checked: RawModule) -> None:
    with pytest.raises(KernelFault, match=r"atomic of 4 bytes outside.*byte 256") as caught:
        launch(checked.get_function("atomic_overrun"))
    assert caught.value.place == f"faults.cu:{line_of(SOURCE, 'atomicAdd(o + 64, 1.f);')}"


def test_ldmatrix_reads_shared_memory_only(plain: RawModule) -> None:
    with pytest.raises(KernelFault, match="ldmatrix: the row is not in shared memory"):
        launch(plain.get_function("ldmatrix_from_global"))
