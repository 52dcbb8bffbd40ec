// Hopper's asynchronous tensor cores: wgmma, the products of a warpgroup of 128 threads. sm_90a.
//
// A product D [64, N] += A [64, 16] B [16, N] reads B from shared memory, and A from there or from
// registers, while the threads go on. Thread 32w + 4g + t holds rows 16w + g and 16w + g + 8:
// d[4j + 2i + c] is row 16w + g + 8i, column 8j + 2t + c; a[2j + i] are columns 8j + 2t and
// 8j + 2t + 1 of that row.
//
// fence_shared() makes this thread's writes to shared memory (and its landed copies) visible to
// products behind the next barrier. wgmma_fence() comes before products whose registers were
// touched. wgmma_commit() groups what was issued; after wgmma_wait<n>() all groups but the n newest
// are done, and their registers are free.
#pragma once

#include "types.cuh"

// An operand in shared memory in the 128-byte swizzle (swizzle.cuh), in rows of 128 bytes.
//   K-major (Q and K: a row is 64 k's of one row of the matrix): `stride` is the bytes between
//   groups of 8 rows; `leading` is not used.
//   transposed (V: a row is 64 columns at one k): `stride` is the bytes between groups of 8 k's,
//   `leading` those between groups of 64 columns.
__device__ __forceinline__ unsigned long long matrix_descriptor(
    const void* shared, unsigned leading, unsigned stride) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(shared);
  return (unsigned long long)(address >> 4 & 0x3fffu) |
         (unsigned long long)(leading >> 4 & 0x3fffu) << 16 |
         (unsigned long long)(stride >> 4 & 0x3fffu) << 32 | 1ull << 62;
}
// The same operand, `bytes` further on.
__device__ __forceinline__ unsigned long long advanced(unsigned long long matrix, unsigned bytes) {
  return matrix + (bytes >> 4);
}

__device__ __forceinline__ constexpr bool is_bf16(f16) { return false; }
__device__ __forceinline__ constexpr bool is_bf16(bf16) { return true; }

#ifdef PAGEDATTN_SIMT
__device__ __forceinline__ void fence_shared() { simt::fence_proxy_async(); }
__device__ __forceinline__ void wgmma_fence() { simt::wgmma_fence(); }
__device__ __forceinline__ void wgmma_commit() { simt::wgmma_commit(); }
template <int N> __device__ __forceinline__ void wgmma_wait() { simt::wgmma_wait(N); }
template <typename A> __device__ __forceinline__ void keep_in_place(A&) {}

// d = a b^T, or d += a b^T: both operands K-major in shared memory.
template <typename T, int R>
__device__ __forceinline__ void wgmma(
    float (&d)[R], unsigned long long a, unsigned long long b, bool add, T) {
  simt::wgmma_shared(d, a, b, add, is_bf16(T()));
}
// d += a b: a in registers, b transposed in shared memory.
template <typename T, int R>
__device__ __forceinline__ void wgmma(
    float (&d)[R], const unsigned (&a)[4], unsigned long long b, T) {
  simt::wgmma_registers(d, a, b, true, is_bf16(T()), /*transpose_b=*/true);
}
#else
__device__ __forceinline__ void fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Keeps the compiler from moving uses of an accumulator across this place.
template <int N> __device__ __forceinline__ void keep_in_place(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int PARTS, int N> __device__ __forceinline__ void keep_in_place(float (&d)[PARTS][N]) {
#pragma unroll
  for (int i = 0; i < PARTS; ++i) keep_in_place(d[i]);
}

// The accumulators as operands %0 to %31 (64 columns) or %0 to %63 (128 columns) of the asm.
#define WGMMA_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_16(i) WGMMA_4(i), WGMMA_4(i + 4), WGMMA_4(i + 8), WGMMA_4(i + 12)
#define WGMMA_N64 WGMMA_16(0), WGMMA_16(16)
#define WGMMA_N128 WGMMA_16(0), WGMMA_16(16), WGMMA_16(32), WGMMA_16(48)
#define WGMMA_D64                                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "               \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_D128                                                                       \
  WGMMA_D64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "   \
  "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// ADD is the operand that says whether D counts; behind it the signs of A and B, and which of them
// are transposed (A in registers never is).
#define WGMMA(SHAPE, TYPE, D, A, B, ADD, TRANSPOSED, ...)                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                          \
               "wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPE "." TYPE " {" D "}, "  \
               A ", " B ", p, 1, 1, " TRANSPOSED ";\n}\n" : __VA_ARGS__)
#define WGMMA_SHARED(SHAPE, TYPE, D, A, B, ADD, ...)                                     \
  WGMMA(SHAPE, TYPE, D, A, B, ADD, "0, 0", __VA_ARGS__ : "l"(a), "l"(b), "r"((int)add))
#define WGMMA_REGISTERS(SHAPE, TYPE, D, A, B, ADD, ...)                                  \
  WGMMA(SHAPE, TYPE, D, A, B, ADD, "1", __VA_ARGS__                                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1))

template <typename T, int R>
__device__ __forceinline__ void wgmma(
    float (&d)[R], unsigned long long a, unsigned long long b, bool add, T) {
  if constexpr (R == 32 && is_bf16(T()))
    WGMMA_SHARED("m64n64k16", "bf16", WGMMA_D64, "%32", "%33", "%34", WGMMA_N64);
  else if constexpr (R == 32)
    WGMMA_SHARED("m64n64k16", "f16", WGMMA_D64, "%32", "%33", "%34", WGMMA_N64);
  else if constexpr (is_bf16(T()))
    WGMMA_SHARED("m64n128k16", "bf16", WGMMA_D128, "%64", "%65", "%66", WGMMA_N128);
  else
    WGMMA_SHARED("m64n128k16", "f16", WGMMA_D128, "%64", "%65", "%66", WGMMA_N128);
}
template <typename T, int R>
__device__ __forceinline__ void wgmma(
    float (&d)[R], const unsigned (&a)[4], unsigned long long b, T) {
#define WGMMA_A64 "{%32, %33, %34, %35}"
#define WGMMA_A128 "{%64, %65, %66, %67}"
  if constexpr (R == 32 && is_bf16(T()))
    WGMMA_REGISTERS("m64n64k16", "bf16", WGMMA_D64, WGMMA_A64, "%36", "%37", WGMMA_N64);
  else if constexpr (R == 32)
    WGMMA_REGISTERS("m64n64k16", "f16", WGMMA_D64, WGMMA_A64, "%36", "%37", WGMMA_N64);
  else if constexpr (is_bf16(T()))
    WGMMA_REGISTERS("m64n128k16", "bf16", WGMMA_D128, WGMMA_A128, "%68", "%69", WGMMA_N128);
  else
    WGMMA_REGISTERS("m64n128k16", "f16", WGMMA_D128, WGMMA_A128, "%68", "%69", WGMMA_N128);
}
#endif
