"""The emulated GPU's arithmetic and warp operations give the GPU's values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagedattn.conformance.emulation.cuda import Function, RawModule

SOURCE = r"""
#ifdef PAGEDATTN_SIMT
#include "simt.h"
#else
#error "PAGEDATTN_SIMT must be defined"
#endif
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

__global__ void shuffles(int* o) {
  const int i = threadIdx.x;
  int* row = o + i * 8;
  row[0] = __shfl_sync(~0u, i, 5);
  row[1] = __shfl_sync(~0u, i, 3, 8);
  row[2] = __shfl_xor_sync(~0u, i, 1);
  row[3] = __shfl_xor_sync(~0u, i, 9, 8);
  row[4] = __shfl_down_sync(~0u, i, 2);
  row[5] = __shfl_down_sync(~0u, i, 3, 8);
  row[6] = __shfl_up_sync(~0u, i, 2);
  row[7] = __shfl_up_sync(~0u, i, 3, 8);
}
__global__ void votes(unsigned* o) {
  const unsigned i = threadIdx.x, low = i < 16 ? 0xffffu : 0xffff0000u;
  unsigned* row = o + i * 8;
  row[0] = __ballot_sync(~0u, i % 3 == 0);
  row[1] = __ballot_sync(low, i % 2);
  row[2] = __any_sync(low, i == 20);
  row[3] = __all_sync(low, i < 20);
  row[4] = __reduce_add_sync(~0u, i);
  row[5] = __reduce_max_sync(low, i);
  row[6] = __match_any_sync(~0u, i % 4);
  row[7] = __syncthreads_count(i < 7);
  row[7] += 100 * __syncthreads_or(i == 99) + 1000 * __syncthreads_and(i < 32);
}
__global__ void a_short_warp(float* o, int n) {
  __shared__ float partial[4];
  float v = threadIdx.x + 1;
  for (int d = 16; d > 0; d /= 2) {
    const float other = __shfl_down_sync(~0u, v, threadIdx.x + d < n ? d : 0);
    if (threadIdx.x + d < n) v += other;
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) o[0] = partial[0];
}
template <bool BF16>
__global__ void mma(float* d, const unsigned short* a, const unsigned short* b) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4 * 2;
  const auto pair = [](const unsigned short* p, int step) {
    return p[0] | unsigned(p[step]) << 16;
  };
  const unsigned ra[4] = {pair(a + g * 16 + t, 1), pair(a + (g + 8) * 16 + t, 1),
                          pair(a + g * 16 + t + 8, 1), pair(a + (g + 8) * 16 + t + 8, 1)};
  const unsigned rb[2] = {pair(b + t * 8 + g, 8), pair(b + (t + 8) * 8 + g, 8)};
  float rd[4] = {d[g * 8 + t], d[g * 8 + t + 1], d[(g + 8) * 8 + t], d[(g + 8) * 8 + t + 1]};
  simt::mma_m16n8k16(rd, ra, rb, BF16);
  d[g * 8 + t] = rd[0], d[g * 8 + t + 1] = rd[1];
  d[(g + 8) * 8 + t] = rd[2], d[(g + 8) * 8 + t + 1] = rd[3];
}
template <bool TRANSPOSE>
__global__ void ldmatrix(unsigned short* o, const unsigned short* in) {
  __shared__ __align__(16) unsigned short s[32 * 8];
  for (int i = 0; i < 8; ++i) s[threadIdx.x * 8 + i] = in[threadIdx.x * 8 + i];
  __syncwarp();
  unsigned r[4];
  if (TRANSPOSE) simt::ldmatrix_x4_trans(r, s + threadIdx.x * 8);
  else simt::ldmatrix_x4(r, s + threadIdx.x * 8);
  for (int m = 0; m < 4; ++m) {
    o[m * 64 + threadIdx.x * 2] = r[m] & 0xffff;
    o[m * 64 + threadIdx.x * 2 + 1] = r[m] >> 16;
  }
}
template <bool TOO_EARLY>  // also reads what is still in flight
__global__ void copies(float* o, const float* in) {  // two stages in flight, the second one partial
  __shared__ float4 s[2][32];
  simt::cp_async_16(&s[0][threadIdx.x], in + threadIdx.x * 4);
  simt::cp_async_commit();
  simt::cp_async_16(&s[1][threadIdx.x], in + threadIdx.x * 4, threadIdx.x % 2 ? 4 : 0);
  simt::cp_async_commit();
  simt::cp_async_wait(1);
  __syncwarp();
  const float4 first = s[0][threadIdx.x ^ 1];
  const float early = TOO_EARLY ? s[1][threadIdx.x].x : NAN;
  simt::cp_async_wait(0);
  __syncwarp();
  const float4 second = s[1][threadIdx.x];
  float* row = o + threadIdx.x * 4;
  row[0] = first.w, row[1] = early == early, row[2] = second.x, row[3] = second.w;
}
__global__ void to_16_bits(unsigned short* h, unsigned short* b, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  h[i] = __half_as_ushort(__float2half(x[i]));
  b[i] = __bfloat16_as_ushort(__float2bfloat16(x[i]));
}
__global__ void to_8_bits(unsigned char* e4, unsigned char* e5, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  e4[i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3);
  e5[i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E5M2);
}
__global__ void from_8_bits(float* e4, float* e5) {
  const __nv_fp8_storage_t b = threadIdx.x;
  e4[threadIdx.x] = __half2float(__nv_cvt_fp8_to_halfraw(b, __NV_E4M3));
  e5[threadIdx.x] = __half2float(__nv_cvt_fp8_to_halfraw(b, __NV_E5M2));
}
__global__ void half_arithmetic(__half2* o, const __half2* a, const __half2* b) {
  o[threadIdx.x] = __hfma2(a[threadIdx.x], b[threadIdx.x], __hadd2(a[threadIdx.x], b[threadIdx.x]));
}
__global__ void counters(int* o, float* f, unsigned long long* u) {
  atomicAdd(&o[0], 1);
  atomicMax(&o[1], (int)threadIdx.x);
  atomicMin(&o[2], -(int)blockIdx.x);
  if (atomicCAS(&o[3], 0, 7) == 0) atomicExch(&o[4], 9);
  atomicAdd(f, 0.5f);
  atomicAdd(u, 1ull);
}
__global__ void spin(int* o) {  // the last warp gives way to the first
  __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 64) while (atomicAdd(&flag, 0) == 0) __nanosleep(10);
  if (threadIdx.x == 0) atomicExch(&flag, 1);
  if (threadIdx.x == 64) o[0] = 5;
}
__global__ void coordinates(int* o) {
  const int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  o[b * blockDim.x * blockDim.y * blockDim.z + t] = b * 1000 + t;
}
__global__ void named_barriers(int* o) {
  __shared__ int s[2];
  const int half = threadIdx.x / 64;
  if (threadIdx.x % 64 == 63) s[half] = 10 + half;
  simt::bar_sync(1 + half, 64);
  o[threadIdx.x] = s[half];
}
__constant__ float table[4] = {1.f, 2.f, 4.f, 8.f};
__global__ void constants(float* o) {
  o[threadIdx.x] = table[threadIdx.x & 3] + min(1, 2u) + max(1.f, 0.5);
}
struct Pair { int a; float* to; double c[3]; };
__global__ void structures(const Pair p) { p.to[threadIdx.x] = p.a + p.c[2]; }
"""
NAMES = (
    "shuffles", "votes", "a_short_warp", "mma<false>", "mma<true>", "ldmatrix<false>",
    "ldmatrix<true>", "copies<false>", "copies<true>", "to_16_bits", "to_8_bits", "from_8_bits",
    "half_arithmetic", "counters", "spin", "coordinates", "named_barriers", "constants",
    "structures",
)  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "checked"])
def module(request: pytest.FixtureRequest) -> RawModule:
    return RawModule(
        code=SOURCE, name="models.cu", name_expressions=NAMES, checked=bool(request.param)
    )


orders = pytest.mark.parametrize("order", [0, 1, 2, 5])


def source_lane(i: int, kind: str, by: int, width: int) -> int:
    base, last = i & ~(width - 1), i | (width - 1)
    if kind == "index":
        return base + by % width
    source = {"xor": i ^ by, "down": i + by, "up": i - by}[kind]
    inside = base <= source if kind == "up" else source <= last
    return source if inside else i


@orders
def test_shuffles(module: RawModule, order: int) -> None:
    out = torch.zeros(32, 8, dtype=torch.int32)
    module.get_function("shuffles")((1,), (32,), (out,), order=order)
    calls = [("index", 5, 32), ("index", 3, 8), ("xor", 1, 32), ("xor", 9, 8)]
    calls += [("down", 2, 32), ("down", 3, 8), ("up", 2, 32), ("up", 3, 8)]
    assert out.tolist() == [[source_lane(i, *call) for call in calls] for i in range(32)]


@orders
def test_votes_and_reductions(module: RawModule, order: int) -> None:
    out = np.zeros((32, 8), np.uint32)
    module.get_function("votes")((1,), (32,), (out,), order=order)
    for i in range(32):
        lanes = range(16) if i < 16 else range(16, 32)
        assert out[i, 0] == sum(1 << j for j in range(32) if j % 3 == 0)
        assert out[i, 1] == sum(1 << j for j in lanes if j % 2)
        assert out[i, 2] == (20 in lanes)
        assert out[i, 3] == (i < 16)
        assert out[i, 4] == sum(range(32))
        assert out[i, 5] == max(lanes)
        assert out[i, 6] == sum(1 << j for j in range(32) if j % 4 == i % 4)
        assert out[i, 7] == 7 + 0 + 1000


@orders
def test_a_block_that_is_no_multiple_of_a_warp(module: RawModule, order: int) -> None:
    out = torch.zeros(1)
    module.get_function("a_short_warp")((1,), (20,), (out, np.int32(20)), order=order)
    assert out.item() == sum(range(1, 21))


@orders
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mma_multiplies_matrices(module: RawModule, order: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(16, 16, generator=generator).to(dtype)
    b = torch.randn(16, 8, generator=generator).to(dtype)
    c = torch.randn(16, 8, generator=generator)
    wanted = c + a.float() @ b.float()
    kernel = module.get_function(f"mma<{str(dtype == torch.bfloat16).lower()}>")
    kernel((1,), (32,), (c, a, b), order=order)
    torch.testing.assert_close(c, wanted, rtol=1e-5, atol=1e-5)


@orders
@pytest.mark.parametrize("transpose", [False, True])
def test_ldmatrix_moves_rows_or_columns(module: RawModule, order: int, transpose: bool) -> None:
    data = np.arange(256, dtype=np.uint16)
    out = np.zeros((4, 8, 8), np.uint16)
    module.get_function(f"ldmatrix<{str(transpose).lower()}>")(
        (1,), (32,), (out, data), order=order
    )
    matrices = data.reshape(4, 8, 8)
    assert np.array_equal(out, matrices.transpose(0, 2, 1) if transpose else matrices)


@orders
def test_asynchronous_copies_land_when_waited_for(module: RawModule, order: int) -> None:
    data, out = torch.arange(1.0, 129.0), torch.zeros(32, 4)
    name = "copies<false>" if module.checks else "copies<true>"  # there it would be a fault
    module.get_function(name)((1,), (32,), (out, data), order=order)
    for i in range(32):
        other = data[(i ^ 1) * 4 + 3].item()
        partial = data[i * 4].item() if i % 2 else 0.0
        assert out[i].tolist() == [other, 0.0, partial, 0.0]


def numbers() -> torch.Tensor:
    """Values of every size, halfway cases, both zeros and infinities."""
    generator = torch.Generator().manual_seed(3)
    spread = torch.randn(2000, generator=generator) * 2.0 ** torch.randint(
        -30, 20, (2000,), generator=generator
    )
    halfway = torch.arange(-600, 600).float() / 32
    ends = torch.tensor([0.0, -0.0, 65504.0, 65519.9, 65520.0, 448.0, 464.0, 464.1, 480.0, 57344.0])
    tiny = 2.0 ** torch.arange(-27.0, -5.0)
    return torch.cat([spread, halfway, ends, -ends, tiny, tiny * 1.5, tiny * 3.5, tiny / 3])


def test_16_bit_floats_round_as_torch_does(module: RawModule) -> None:
    x = torch.cat([numbers(), torch.tensor([float("inf"), float("-inf")])])
    h, b = (np.zeros(len(x), np.uint16) for _ in range(2))
    module.get_function("to_16_bits")((-(-len(x) // 64),), (64,), (h, b, x, np.int32(len(x))))
    assert np.array_equal(h, x.half().view(torch.int16).numpy().view(np.uint16))
    assert np.array_equal(b, x.bfloat16().view(torch.int16).numpy().view(np.uint16))


def test_8_bit_floats_round_to_even_and_saturate(module: RawModule) -> None:
    x = numbers()
    e4, e5 = (np.zeros(len(x), np.uint8) for _ in range(2))
    module.get_function("to_8_bits")((-(-len(x) // 64),), (64,), (e4, e5, x, np.int32(len(x))))
    wanted4 = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    wanted5 = x.clamp(-57344, 57344).to(torch.float8_e5m2).view(torch.uint8).numpy()
    assert np.array_equal(e4, wanted4)
    assert np.array_equal(e5, wanted5)


def test_every_8_bit_float_reads_back(module: RawModule) -> None:
    e4, e5 = torch.zeros(256), torch.zeros(256)
    module.get_function("from_8_bits")((1,), (256,), (e4, e5))
    codes = torch.arange(256).to(torch.uint8)
    torch.testing.assert_close(e4, codes.view(torch.float8_e4m3fn).float(), equal_nan=True)
    torch.testing.assert_close(e5, codes.view(torch.float8_e5m2).float(), equal_nan=True)


def test_half_pairs_round_every_operation(module: RawModule) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(64, generator=generator).half() for _ in range(2))
    out = torch.zeros_like(a)
    module.get_function("half_arithmetic")((1,), (32,), (out.view(torch.int32), a, b))
    total = (a + b).double()
    assert torch.equal(out, (a.double() * b.double() + total).half())


@orders
def test_atomics(module: RawModule, order: int) -> None:
    out, total = torch.zeros(5, dtype=torch.int32), torch.zeros(1)
    count = np.zeros(1, np.uint64)
    module.get_function("counters")((3,), (40,), (out, total, count), order=order)
    assert out.tolist() == [120, 39, -2, 7, 9]
    assert total.item() == 60
    assert count[0] == 120


@orders
def test_a_loop_that_waits_by_atomics_ends(module: RawModule, order: int) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    module.get_function("spin")((1,), (96,), (out,), order=order)
    assert out.item() == 5


@orders
def test_coordinates_in_three_dimensions(module: RawModule, order: int) -> None:
    out = torch.zeros(2 * 3 * 2, 4 * 3 * 5, dtype=torch.int32)
    module.get_function("coordinates")((2, 3, 2), (4, 3, 5), (out,), order=order)
    assert torch.equal(out, torch.arange(12).int()[:, None] * 1000 + torch.arange(60).int())


@orders
def test_named_barriers(module: RawModule, order: int) -> None:
    out = torch.zeros(128, dtype=torch.int32)
    module.get_function("named_barriers")((1,), (128,), (out,), order=order)
    assert out.tolist() == [10] * 64 + [11] * 64


def test_constants_and_mixed_arguments_of_min(module: RawModule) -> None:
    out = torch.zeros(4)
    module.get_function("constants")((1,), (4,), (out,))
    assert out.tolist() == [3.0, 4.0, 6.0, 10.0]


def test_structures_are_passed_by_value(module: RawModule) -> None:
    out = torch.zeros(4)
    layout = np.dtype([("a", "i4"), ("to", "u8"), ("c", "f8", 3)], align=True)
    value = np.array((3, out.data_ptr(), (0.0, 0.0, 0.5)), dtype=layout)[()]
    kernel: Function = module.get_function("structures")
    kernel((1,), (4,), (value,))
    assert out.tolist() == [3.5] * 4


def test_less_common_functions() -> None:
    """Pairs compare and compound, all lanes match, atomics of other scopes, half turns."""
    code = r"""
        #include <cuda_fp16.h>
        __global__ void k(float* o) {
          __shared__ int n;
          const int i = threadIdx.x;
          if (i == 0) n = 0;
          __syncthreads();
          atomicAdd_block(&n, 1);
          atomicMax_system(&n, 0);
          __syncthreads();
          __half2 a = __floats2half2_rn(1, 3), b = __floats2half2_rn(2, 2);
          a += b;  // 3, 5
          a *= b;  // 6, 10
          a -= b;  // 4, 8
          a /= b;  // 2, 4
          const __half2 larger = __hgt2(a, b);
          int same, other;
          const unsigned all = __match_all_sync(0xffffffffu, 7, &same);
          const unsigned none = __match_all_sync(0xffffffffu, i, &other);
          const float v[] = {
              float(n), float(a.x), float(a.y), float(larger.x), float(larger.y),
              float(__hbge2(a, b)), float(__hbgt2(a, b)), float((-a).y), float(h2rcp(a).x),
              float(all == 0xffffffffu && same), float(none || other), sinpif(0.5f), cospif(3.f),
              float(isnan(v[0] / 0.f - v[0] / 0.f)), float(isinf(-1.f / (i * 0.f))),
              float(isfinite(1.f)), normcdff(0.f), rcbrtf(8.f)};
          if (i == 31)
            for (int j = 0; j < 18; ++j) o[j] = v[j];
        }"""
    out = torch.zeros(18)
    RawModule(code=code, checked=False).get_function("k")((1,), (32,), (out,))
    wanted = [32, 2, 4, 0, 1, 1, 0, -4, 0.5, 1, 0, 1, -1, 1, 1, 1, 0.5, 0.5]
    assert out.tolist() == wanted
