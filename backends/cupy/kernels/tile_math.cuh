// The two products of attention on tiles in shared memory, S = Q K^T and O += P V.
//
// 16-bit numbers go through the tensor cores, float through plain multiply-adds with the same
// fragment layout (mma.cuh), so that the kernel around them is one. Warp w of four owns keys
// [w * 8 * NS, (w + 1) * 8 * NS) of S and column units w, w + 4, w + 8, ... of O, 16 columns each.
#pragma once

#include "mma.cuh"
#include "types.cuh"

// s[i][j] += rows 16i..16i+15 of q times keys 8j..8j+7 of k, both [., stride], `width` columns.
template <int MT, int NS, typename T>
__device__ __forceinline__ void multiply_scores(
    float (&s)[MT][NS][4], const T* q, const T* k, int stride, int width, int lane) {
#pragma unroll 2
  for (int d = 0; d < width; d += 32) {
    unsigned b[2][NS][2];  // [half of the 32 columns][tile of 8 keys]
    if constexpr (NS == 1) {
      unsigned r[4];
      load_matrices(r, k + (lane % 8) * stride + d + lane / 8 * 8);
      b[0][0][0] = r[0]; b[0][0][1] = r[1]; b[1][0][0] = r[2]; b[1][0][1] = r[3];
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < NS; j += 2) {
          unsigned r[4];
          load_matrices(r, k + (j * 8 + lane / 16 * 8 + lane % 8) * stride + d + h * 16 +
                               lane / 8 % 2 * 8);
          b[h][j][0] = r[0]; b[h][j][1] = r[1]; b[h][j + 1][0] = r[2]; b[h][j + 1][1] = r[3];
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        unsigned a[4];
        load_matrices(a, q + (i * 16 + lane % 16) * stride + d + h * 16 + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < NS; ++j) mma_16x8x16(s[i][j], a, b[h][j][0], b[h][j][1], T());
      }
  }
}

template <int MT, int NS>
__device__ __forceinline__ void multiply_scores(
    float (&s)[MT][NS][4], const float* q, const float* k, int stride, int width, int lane) {
  const int g = lane / 4, t = lane % 4;
  for (int d = 0; d < width; d += 4) {
    float4 b[NS][2];
#pragma unroll
    for (int j = 0; j < NS; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        b[j][c] = *reinterpret_cast<const float4*>(k + (j * 8 + 2 * t + c) * stride + d);
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float4 a = *reinterpret_cast<const float4*>(q + (i * 16 + r * 8 + g) * stride + d);
#pragma unroll
        for (int j = 0; j < NS; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            s[i][j][r * 2 + c] +=
                a.x * b[j][c].x + a.y * b[j][c].y + a.z * b[j][c].z + a.w * b[j][c].w;
      }
  }
}

// o[i][u] += rows 16i..16i+15 of w [., w_stride] (N keys) times the warp's columns of v.
template <int N, int MT, int DU, typename T>
__device__ __forceinline__ void multiply_values(
    float (&o)[MT][DU][2][4], const T* w, int w_stride, const T* v, int v_stride, int units,
    int warp, int lane) {
#pragma unroll
  for (int key = 0; key < N; key += 16) {
    unsigned a[MT][4];
#pragma unroll
    for (int i = 0; i < MT; ++i)
      load_matrices(a[i], w + (i * 16 + lane % 16) * w_stride + key + lane / 16 * 8);
#pragma unroll
    for (int u = 0; u < DU; ++u) {
      if (u * 4 + warp >= units) continue;
      unsigned b[4];
      load_matrices_transposed(
          b, v + (key + lane % 16) * v_stride + (u * 4 + warp) * 16 + lane / 16 * 8);
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        mma_16x8x16(o[i][u][0], a[i], b[0], b[1], T());
        mma_16x8x16(o[i][u][1], a[i], b[2], b[3], T());
      }
    }
  }
}

template <int N, int MT, int DU>
__device__ __forceinline__ void multiply_values(
    float (&o)[MT][DU][2][4], const float* w, int w_stride, const float* v, int v_stride,
    int units, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  for (int key = 0; key < N; key += 2) {
    float2 a[MT][2];
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        a[i][r] = *reinterpret_cast<const float2*>(w + (i * 16 + r * 8 + g) * w_stride + key);
#pragma unroll
    for (int u = 0; u < DU; ++u) {
      if (u * 4 + warp >= units) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* from = v + key * v_stride + (u * 4 + warp) * 16 + h * 8 + 2 * t;
        const float2 x = *reinterpret_cast<const float2*>(from);
        const float2 y = *reinterpret_cast<const float2*>(from + v_stride);
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            o[i][u][h][r * 2] += a[i][r].x * x.x + a[i][r].y * y.x;
            o[i][u][h][r * 2 + 1] += a[i][r].x * x.y + a[i][r].y * y.y;
          }
      }
    }
  }
}
