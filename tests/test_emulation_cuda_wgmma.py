"""The model of wgmma: right products from every layout, and each fault, planted, is found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from pagedattn.conformance.emulation.cuda import Function, KernelFault, RawModule

SOURCE = r"""
#include "simt.h"
typedef unsigned long long u64;

enum Fault {
  NONE, NO_WAIT, WAITS_FOR_TOO_LITTLE, NO_FENCE, NO_PROXY_FENCE, NO_BARRIER, NO_COMMIT, NO_LANE,
  NO_WARP, OTHER_WARP, OTHER_LANE, REUSED_TOO_EARLY, REGISTERS_UNFENCED
};

// The image, which tests lay out, at a multiple of 1024 bytes.
__device__ uint4* copied(const uint4* image, int vectors, bool fenced) {
  extern __shared__ uint4 raw[];
  const unsigned address = (unsigned)__cvta_generic_to_shared(raw);
  uint4* to = raw + (-address & 1023) / 16;
  for (int i = threadIdx.x; i < vectors; i += blockDim.x) to[i] = image[i];
  if (fenced) simt::fence_proxy_async();
  return to;
}
__device__ u64 at(const uint4* shared, u64 matrix) {
  return matrix + ((unsigned)__cvta_generic_to_shared(shared) >> 4);
}
template <int R> __device__ void store(float* out, const float (&d)[R]) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int i = 0; i < R; ++i)
    out[(row + i / 2 % 2 * 8) * R * 2 + column + i / 4 * 8 + i % 2] = d[i];
}

// out [64, N] = A [64, 16 K] B [16 K, N]; a step of 16 is a_step and b_step bytes further on.
template <int N, bool BF16, bool TA, bool TB>
__global__ void shared_product(
    float* out, const uint4* image, int vectors, u64 a, u64 b, int a_step, int b_step, int steps) {
  const uint4* shared = copied(image, vectors, true);
  __syncthreads();
  float d[N / 2];
  simt::wgmma_fence();
  for (int k = 0; k < steps; ++k)
    simt::wgmma_shared(d, at(shared, a) + k * a_step / 16, at(shared, b) + k * b_step / 16, k > 0,
                       BF16, TA, TB);
  simt::wgmma_commit();
  simt::wgmma_wait(0);
  store(out, d);
}
template <int N, bool BF16, bool TB>
__global__ void register_product(
    float* out, const unsigned* rows, const uint4* image, int vectors, u64 b, int b_step,
    int steps) {
  const uint4* shared = copied(image, vectors, true);
  __syncthreads();
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
  unsigned a[8][4];
  for (int k = 0; k < steps; ++k)
    for (int i = 0; i < 4; ++i)
      a[k][i] = rows[(row + i % 2 * 8) * steps * 8 + k * 8 + i / 2 * 4 + pair];
  float d[N / 2];
  for (int i = 0; i < N / 2; ++i) d[i] = 1.f;
  simt::wgmma_fence();
  for (int k = 0; k < steps; ++k)
    simt::wgmma_registers(d, a[k], at(shared, b) + k * b_step / 16, true, BF16, TB);
  simt::wgmma_commit();
  simt::wgmma_wait(0);
  store(out, d);
}

// out [64, 64] = A [64, 64] B [64, 64]^T, and what is wrong with it.
template <int FAULT>
__global__ void faulty(float* out, const uint4* image, int vectors, u64 a, u64 b) {
  uint4* shared = copied(image, vectors, FAULT != NO_PROXY_FENCE);
  if (FAULT != NO_BARRIER) __syncthreads();
  if (FAULT == NO_LANE && threadIdx.x == 77) return;
  if (FAULT == NO_WARP && threadIdx.x / 32 == 2) return;
  if (FAULT == OTHER_WARP && threadIdx.x / 32 == 3) b += 2;
  if (FAULT == OTHER_LANE && threadIdx.x == 5) b += 2;
  float d[32];
  if (FAULT != NO_FENCE) simt::wgmma_fence();
  for (int k = 0; k < 4; ++k) {
    simt::wgmma_shared(d, at(shared, a) + k * 2, at(shared, b) + k * 2, k > 0, false);
    if (FAULT == WAITS_FOR_TOO_LITTLE) simt::wgmma_commit();
  }
  if (FAULT != NO_COMMIT) simt::wgmma_commit();
  if (FAULT == REUSED_TOO_EARLY) {
    __syncthreads();
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) shared[i] = uint4{};
  }
  if (FAULT == WAITS_FOR_TOO_LITTLE) simt::wgmma_wait(2);
  else if (FAULT != NO_WAIT) simt::wgmma_wait(0);
  if (FAULT == REGISTERS_UNFENCED) {
    for (int i = 0; i < 32; ++i) d[i] *= 2.f;
    simt::wgmma_shared(d, at(shared, a), at(shared, b), true, false);
    simt::wgmma_commit();
    simt::wgmma_wait(0);
  }
  store(out, d);
}
"""

FAULTS = [
    "NONE", "NO_WAIT", "WAITS_FOR_TOO_LITTLE", "NO_FENCE", "NO_PROXY_FENCE", "NO_BARRIER",
    "NO_COMMIT", "NO_LANE", "NO_WARP", "OTHER_WARP", "OTHER_LANE", "REUSED_TOO_EARLY",
    "REGISTERS_UNFENCED",
]  # fmt: skip
SHARED = [
    f"shared_product<{n}, {bf16}, {ta}, {tb}>"
    for n, bf16, ta, tb in [
        (64, "false", "false", "false"), (128, "true", "false", "false"),
        (64, "true", "true", "true"), (128, "false", "false", "true"),
    ]
]  # fmt: skip
REGISTERS = ["register_product<64, false, true>", "register_product<128, true, true>",
             "register_product<128, true, false>"]  # fmt: skip
NAMES = (*SHARED, *REGISTERS, *(f"faulty<{fault}>" for fault in FAULTS))
BYTES = 1024 + 2 * 16384


@pytest.fixture(scope="module")
def plain() -> RawModule:
    return RawModule(code=SOURCE, name="wgmma.cu", name_expressions=NAMES, checked=False)


@pytest.fixture(scope="module")
def checked() -> RawModule:
    return RawModule(code=SOURCE, name="wgmma.cu", name_expressions=NAMES, checked=True)


@pytest.fixture(params=["plain", "checked"])
def module(request: pytest.FixtureRequest) -> RawModule:
    made: RawModule = request.getfixturevalue(str(request.param))
    return made


# -- layouts, drawn as the PTX manual draws them ---------------------------------------------------

MODES = {16: 0, 128: 1, 64: 2, 32: 3}
"""Bytes of a row of the pattern -> the descriptor's mode. 16: no swizzle."""


def descriptor(leading: int, stride: int, row_bytes: int) -> int:
    return leading >> 4 << 16 | stride >> 4 << 32 | MODES[row_bytes] << 62


def slabs(matrix: torch.Tensor, row_bytes: int) -> torch.Tensor:
    """matrix [rows, columns] of 16-bit numbers as slabs of `row_bytes` wide columns, each of them
    its rows one after the other, with the 16-byte vectors of 8 rows permuted."""
    rows, columns = matrix.shape
    width = row_bytes // 2
    tiles = matrix.view(torch.int16).reshape(rows, columns // width, width // 8, 8)
    tiles = tiles.transpose(0, 1).clone()  # [slab, row, vector, 8]
    flip = {16: 8, 32: 4, 64: 2, 128: 1}[row_bytes]  # rows that share a permutation
    moved = torch.empty_like(tiles)
    for row, vector in itertools.product(range(rows), range(width // 8)):
        moved[:, row, vector ^ (row % 8) // flip] = tiles[:, row, vector]
    return moved.reshape(-1)


def launch(kernel: Function, columns: int, *args: object, order: int = 0) -> torch.Tensor:
    out = torch.full((64, columns), -1.0)
    kernel((1,), (128,), (out, *args), BYTES, order=order)
    return out


def operands(columns: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    a = torch.randn(64, k, generator=generator).to(dtype)
    return a, torch.randn(k, columns, generator=generator).to(dtype)


def words(*parts: torch.Tensor) -> tuple[torch.Tensor, np.int32]:
    image = torch.cat([part.view(torch.int16).reshape(-1) for part in parts])
    return image, np.int32(image.numel() * 2 // 16)


def side(
    matrix: torch.Tensor, *, transposed: bool, row_bytes: int
) -> tuple[torch.Tensor, int, int]:
    """(image, descriptor, bytes of 16 k's) of an operand [rows, k]."""
    rows, k = matrix.shape
    if not transposed:  # a slab is row_bytes of k, its rows those of the operand
        step = 32 if row_bytes > 16 else 2 * rows * 16
        leading = rows * 16  # read without a swizzle alone
        return slabs(matrix, row_bytes), descriptor(leading, 8 * row_bytes, row_bytes), step
    slab = k * row_bytes  # row_bytes of the operand's rows, a row of it a k
    leading, stride = (8 * 16, slab) if row_bytes == 16 else (slab, 8 * row_bytes)
    image = slabs(matrix.T.contiguous(), row_bytes)
    return image, descriptor(leading, stride, row_bytes), 16 * row_bytes


@pytest.mark.parametrize("order", [0, 1, 3])
@pytest.mark.parametrize("row_bytes", [16, 32, 64, 128])
@pytest.mark.parametrize("name", SHARED)
def test_products_from_shared_memory(
    module: RawModule, name: str, row_bytes: int, order: int
) -> None:
    n, bf16, ta, tb = name.partition("<")[2].strip(">").split(", ")
    columns, dtype = int(n), torch.bfloat16 if bf16 == "true" else torch.float16
    k = row_bytes // 2 if row_bytes > 16 else 64  # one slab of the pattern
    a, b = operands(columns, k, dtype)
    a_image, a_matrix, a_step = side(a, transposed=ta == "true", row_bytes=row_bytes)
    b_image, b_matrix, b_step = side(b.T.contiguous(), transposed=tb == "true", row_bytes=row_bytes)
    image, vectors = words(a_image, b_image)
    b_matrix += a_image.numel() * 2 >> 4
    args = (image, vectors, np.uint64(a_matrix), np.uint64(b_matrix))
    steps = (np.int32(a_step), np.int32(b_step), np.int32(k // 16))
    out = launch(module.get_function(name), columns, *args, *steps, order=order)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", [0, 1, 3])
@pytest.mark.parametrize("row_bytes", [16, 32, 64, 128])
@pytest.mark.parametrize("name", REGISTERS)
def test_products_from_registers(module: RawModule, name: str, row_bytes: int, order: int) -> None:
    n, bf16, tb = name.partition("<")[2].strip(">").split(", ")
    columns, dtype = int(n), torch.bfloat16 if bf16 == "true" else torch.float16
    k = row_bytes // 2 if row_bytes > 16 else 64
    a, b = operands(columns, k, dtype)
    image, matrix, step = side(b.T.contiguous(), transposed=tb == "true", row_bytes=row_bytes)
    image, vectors = words(image)
    rows = a.view(torch.int16).reshape(-1).view(torch.int32).view(torch.uint32)
    args = (rows, image, vectors, np.uint64(matrix), np.int32(step), np.int32(k // 16))
    out = launch(module.get_function(name), columns, *args, order=order)
    torch.testing.assert_close(out, 1 + a.float() @ b.float(), rtol=1e-4, atol=1e-4)


# -- faults ----------------------------------------------------------------------------------------

A, B = operands(64, 64, torch.float16)
IMAGE, VECTORS = words(slabs(A, 128), slabs(B.T.contiguous(), 128))
MATRIX = descriptor(0, 1024, 128)
SECOND = 64 * 128 >> 4


def faulty(
    module: RawModule, fault: str, *, a: int = MATRIX, b: int = MATRIX + SECOND, order: int = 0
) -> torch.Tensor:
    return launch(
        module.get_function(f"faulty<{fault}>"),
        64,
        IMAGE,
        VECTORS,
        np.uint64(a),
        np.uint64(b),
        order=order,
    )


def is_right(out: torch.Tensor) -> bool:
    return torch.allclose(out, A.float() @ B.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_a_right_kernel_has_no_fault(module: RawModule, order: int) -> None:
    assert is_right(faulty(module, "NONE", order=order))


@pytest.mark.parametrize("order", [0, 1, 3])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("NO_FENCE", r"without wgmma\.fence since the kernel began"),
        ("REGISTERS_UNFENCED", r"without wgmma\.fence since .* wait_group returned"),
        ("NO_LANE", r"31 of 128 threads wait at wgmma\.fence"),
        ("NO_WARP", "took no part in a product: warp 2, in m64n64k16"),
        ("OTHER_WARP", "warps of a warpgroup differ in their product number 0"),
        ("OTHER_LANE", "lanes of a warp give wgmma different operands"),
    ],
)
def test_a_fault_is_named(module: RawModule, fault: str, message: str, order: int) -> None:
    with pytest.raises(KernelFault, match=message):
        faulty(module, fault, order=order)


@pytest.mark.parametrize("order", [0, 1, 3])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("NO_WAIT", r"accumulator is touched while the product of wgmma\.cu:\d+ is under way"),
        ("WAITS_FOR_TOO_LITTLE", "accumulator is touched while"),
        ("NO_COMMIT", "accumulator is touched while"),
        ("NO_PROXY_FENCE", r"wrote to shared memory with no fence\.proxy\.async behind the write"),
        ("NO_BARRIER", "race on shared memory"),
        ("REUSED_TOO_EARLY", "race on shared memory"),
    ],
)
def test_checked_mode_names_the_fault(
    checked: RawModule, fault: str, message: str, order: int
) -> None:
    with pytest.raises(KernelFault, match=message):
        faulty(checked, fault, order=order)


@pytest.mark.parametrize("fault", ["NO_WAIT", "WAITS_FOR_TOO_LITTLE", "NO_COMMIT"])
def test_a_product_that_nobody_waited_for_is_named(plain: RawModule, fault: str) -> None:
    with pytest.raises(KernelFault, match=r"warp 0 ends while a product is under way: commit_gr"):
        faulty(plain, fault)


def test_operands_reused_too_early_give_wrong_numbers(plain: RawModule) -> None:
    assert not is_right(faulty(plain, "REUSED_TOO_EARLY", order=1))


@pytest.mark.parametrize(
    "wrong",
    [
        descriptor(0, 512, 128), descriptor(0, 2048, 128), descriptor(0, 1024, 64),
        descriptor(0, 1024, 16), MATRIX + 1, MATRIX + (128 >> 4),
    ],
)  # fmt: skip
def test_a_wrong_descriptor_gives_wrong_numbers(module: RawModule, wrong: int) -> None:
    assert not is_right(faulty(module, "NONE", a=wrong))


def test_descriptors_out_of_reach_are_named(module: RawModule) -> None:
    with pytest.raises(KernelFault, match="leads outside shared memory"):
        faulty(module, "NONE", b=MATRIX + (200_000 >> 4))
    with pytest.raises(KernelFault, match="base offset"):
        faulty(module, "NONE", b=(MATRIX + SECOND) | 1 << 49)


def test_a_warpgroup_has_128_threads(plain: RawModule) -> None:
    kernel = plain.get_function("faulty<NONE>")
    args = (torch.zeros(64, 64), IMAGE, VECTORS, np.uint64(MATRIX), np.uint64(MATRIX))
    with pytest.raises(KernelFault, match="a block of 96 threads: warpgroups are 128"):
        kernel((1,), (96,), args, BYTES)
