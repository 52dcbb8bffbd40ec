// Tensor cores: mma.sync and the ldmatrix loads that feed it.
//
// Fragments of m16n8k16, lane = 4 * g + t: c[0..1] are row g, columns 2t and 2t+1; c[2..3] are row
// g + 8. ldmatrix reads four 8 x 8 matrices of 16-bit numbers; lanes 8i..8i+7 hold the addresses
// of the rows of matrix i, 16 bytes each.
#pragma once

#include "types.cuh"

#ifdef PAGEDATTN_SIMT
__device__ __forceinline__ void mma_16x8x16(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, f16) {
  const unsigned b[2] = {b0, b1};
  simt::mma_m16n8k16(c, a, b, false);
}
__device__ __forceinline__ void mma_16x8x16(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bf16) {
  const unsigned b[2] = {b0, b1};
  simt::mma_m16n8k16(c, a, b, true);
}
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
  simt::ldmatrix_x4(r, row);
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void* row) {
  simt::ldmatrix_x4_trans(r, row);
}
#else
#define MMA_16X8X16(TYPE)                                                                    \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "                         \
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                      \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
__device__ __forceinline__ void mma_16x8x16(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, f16) {
  MMA_16X8X16("f16");
}
__device__ __forceinline__ void mma_16x8x16(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bf16) {
  MMA_16X8X16("bf16");
}
#undef MMA_16X8X16
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void* row) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
#endif
