// 16-bit and 8-bit numbers, without CUDA's headers: NVRTC needs no include path at run time.
//
// f16, bf16 and q8<INT8, E4M3 or E5M2> are storage; arithmetic is float.
#pragma once

#ifdef PAGEDATTN_SIMT
#include "simt.h"
#endif

enum Dtype { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, INT8 = 3, E4M3 = 4, E5M2 = 5 };

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
template <Dtype DTYPE> struct q8 { unsigned char bits; };  // an element of an 8-bit cache

template <typename A, typename B> constexpr bool SAME_TYPE = false;
template <typename A> constexpr bool SAME_TYPE<A, A> = true;

__device__ __forceinline__ constexpr Dtype dtype_of(float) { return FLOAT32; }
__device__ __forceinline__ constexpr Dtype dtype_of(f16) { return FLOAT16; }
__device__ __forceinline__ constexpr Dtype dtype_of(bf16) { return BFLOAT16; }

#define NEG_INF __int_as_float(0xff800000)
#define QUIET_NAN __int_as_float(0x7fffffff)

#ifdef PAGEDATTN_SIMT
__device__ __forceinline__ float half_to_float(unsigned short bits) {
  _Float16 x;
  memcpy(&x, &bits, 2);
  return float(x);
}
__device__ __forceinline__ unsigned short float_to_half(float x) {
  const _Float16 y = _Float16(x);
  unsigned short bits;
  memcpy(&bits, &y, 2);
  return bits;
}
__device__ __forceinline__ unsigned short float_to_bfloat(float x) {
  const unsigned u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
#else
__device__ __forceinline__ float half_to_float(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
__device__ __forceinline__ unsigned short float_to_half(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
__device__ __forceinline__ unsigned short float_to_bfloat(float x) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
#endif

// -- 8-bit elements -----------------------------------------------------------------------------

// e4m3 and half differ in the exponent's bias (7 and 15): moving the bits gives x / 256, subnormal
// numbers included. e5m2 is the upper byte of a half.
__device__ __forceinline__ float byte_to_float(unsigned x, int dtype) {
  if (dtype == INT8) return (float)(int)(signed char)x;
  if (dtype == E5M2) return half_to_float((unsigned short)(x << 8));
  if ((x & 0x7fu) == 0x7fu) return QUIET_NAN;
  return half_to_float((unsigned short)((x & 0x80u) << 8 | (x & 0x7fu) << 7)) * 256.f;
}

// x rounded to the nearest value of an 8-bit float with MAN mantissa bits and bias BIAS, ties to
// even, saturated to LARGEST (the code of the largest finite value). NaN stays NaN.
template <int MAN, int BIAS, int LARGEST>
__device__ __forceinline__ unsigned float_to_fp8(float x) {
  const unsigned u = __float_as_uint(x), sign = u >> 24 & 0x80u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  const int exponent = (int)(magnitude >> 23) - 127;
  int code;
  if (exponent < 1 - BIAS) {  // subnormal: multiples of 2^(1 - BIAS - MAN)
    code = (int)rintf(__uint_as_float(magnitude) * __uint_as_float((127 + BIAS - 1 + MAN) << 23));
  } else {
    const unsigned keep = 23 - MAN;
    const unsigned rounded = magnitude + ((1u << (keep - 1)) - 1) + (magnitude >> keep & 1u);
    const unsigned top = rounded >> keep;  // exponent and mantissa together
    const unsigned bias = (unsigned)(127 - BIAS) << MAN;
    code = (int)(top - bias);
  }
  return sign | (unsigned)(code > LARGEST ? LARGEST : code);
}

__device__ __forceinline__ unsigned float_to_byte(float x, int dtype) {
  if (dtype == E4M3) return float_to_fp8<3, 7, 0x7e>(x);
  if (dtype == E5M2) return float_to_fp8<2, 15, 0x7b>(x);
  if (!(x == x)) return 0;
  return (unsigned)(int)rintf(fminf(fmaxf(x, -127.f), 127.f)) & 0xffu;
}

// -- elements whose type is known at run time ---------------------------------------------------

__device__ __forceinline__ float load_as_float(const void* base, long long index, int dtype) {
  if (dtype == FLOAT32) return static_cast<const float*>(base)[index];
  const unsigned short bits = static_cast<const unsigned short*>(base)[index];
  return dtype == FLOAT16 ? half_to_float(bits) : __uint_as_float((unsigned)bits << 16);
}
__device__ __forceinline__ void store_from_float(void* base, long long index, int dtype, float x) {
  if (dtype == FLOAT32) static_cast<float*>(base)[index] = x;
  else static_cast<unsigned short*>(base)[index] =
      dtype == FLOAT16 ? float_to_half(x) : float_to_bfloat(x);
}

// Numbers [index, index + 4) of a row of floats, of which `count` exist; the others are 0.
// `aligned`: index is a multiple of 4 in a row that starts at a multiple of 16 bytes.
__device__ __forceinline__ void load_4(
    const void* base, long long index, int count, int dtype, int aligned, float (&x)[4]) {
  if (!aligned || count < 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = i < count ? load_as_float(base, index + i, dtype) : 0.f;
  } else if (dtype == FLOAT32) {
    const float4 y = *reinterpret_cast<const float4*>(static_cast<const float*>(base) + index);
    x[0] = y.x; x[1] = y.y; x[2] = y.z; x[3] = y.w;
  } else {
    const unsigned short* from = static_cast<const unsigned short*>(base) + index;
    const uint2 y = *reinterpret_cast<const uint2*>(from);
    const unsigned words[2] = {y.x, y.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned short bits = (unsigned short)(words[i / 2] >> (i % 2 * 16));
      x[i] = dtype == FLOAT16 ? half_to_float(bits) : __uint_as_float((unsigned)bits << 16);
    }
  }
}

// -- 16 bytes ------------------------------------------------------------------------------------

// The 16 / sizeof(T) numbers of a vector as float; the last argument only says T.
__device__ __forceinline__ void unpack(const uint4& raw, float (&x)[4], float) {
  x[0] = __uint_as_float(raw.x); x[1] = __uint_as_float(raw.y);
  x[2] = __uint_as_float(raw.z); x[3] = __uint_as_float(raw.w);
}
__device__ __forceinline__ void unpack(const uint4& raw, float (&x)[8], f16) {
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = half_to_float((unsigned short)words[i]);
    x[2 * i + 1] = half_to_float((unsigned short)(words[i] >> 16));
  }
}
__device__ __forceinline__ void unpack(const uint4& raw, float (&x)[8], bf16) {
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
template <Dtype DTYPE>
__device__ __forceinline__ void unpack(const uint4& raw, float (&x)[16], q8<DTYPE>) {
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
  if constexpr (DTYPE == INT8) {
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = (float)((int)(words[i / 4] << (24 - i % 4 * 8)) >> 24);
  } else if constexpr (DTYPE == E5M2) {
#pragma unroll
    for (int i = 0; i < 16; ++i)
      x[i] = half_to_float((unsigned short)(words[i / 4] >> (i % 4 * 8) << 8));
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = byte_to_float(words[i / 4] >> (i % 4 * 8) & 0xffu, E4M3);
  }
}

// Two numbers in the 32 bits that mma.sync takes, the first in the lower half.
__device__ __forceinline__ unsigned pack_pair(float lo, float hi, f16) {
  return (unsigned)float_to_half(lo) | (unsigned)float_to_half(hi) << 16;
}
__device__ __forceinline__ unsigned pack_pair(float lo, float hi, bf16) {
  return (unsigned)float_to_bfloat(lo) | (unsigned)float_to_bfloat(hi) << 16;
}

// Two neighbouring numbers, at an even index.
__device__ __forceinline__ void store_pair(float* to, float lo, float hi) {
  *reinterpret_cast<float2*>(to) = make_float2(lo, hi);
}
template <typename T> __device__ __forceinline__ void store_pair(T* to, float lo, float hi) {
  *reinterpret_cast<unsigned*>(to) = pack_pair(lo, hi, T());
}
