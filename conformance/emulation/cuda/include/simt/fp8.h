// fp8: e4m3 (no infinities, 448 the largest) and e5m2 (57344 the largest finite).
#pragma once

using __nv_fp8_storage_t = unsigned char;
using __nv_fp8x2_storage_t = unsigned short;
using __nv_fp8x4_storage_t = unsigned int;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace simt {
inline float fp8_to_float(unsigned char b, __nv_fp8_interpretation_t kind) {
  const int mantissa_bits = kind == __NV_E4M3 ? 3 : 2, bias = kind == __NV_E4M3 ? 7 : 15;
  const int exponent = (b & 0x7f) >> mantissa_bits, mantissa = b & ((1 << mantissa_bits) - 1);
  const float sign = b & 0x80 ? -1.f : 1.f;
  if (kind == __NV_E4M3 && (b & 0x7f) == 0x7f) return __builtin_nanf("");
  if (kind == __NV_E5M2 && exponent == 31)
    return mantissa ? __builtin_nanf("") : sign * __builtin_inff();
  const int power = (exponent ? exponent : 1) - bias - mantissa_bits;
  return sign * __builtin_ldexpf(static_cast<float>(mantissa + (exponent ? 1 << mantissa_bits : 0)),
                                 power);
}
// Round to nearest even; beyond the largest finite value the largest one, or without saturation
// NaN (e4m3) and infinity (e5m2).
inline unsigned char float_to_fp8(double x, __nv_saturation_t saturation,
                                  __nv_fp8_interpretation_t kind) {
  const int mantissa_bits = kind == __NV_E4M3 ? 3 : 2, bias = kind == __NV_E4M3 ? 7 : 15;
  const unsigned char largest = kind == __NV_E4M3 ? 0x7e : 0x7b;
  const unsigned char overflow = saturation == __NV_SATFINITE ? largest
                                 : kind == __NV_E4M3          ? 0x7f
                                                              : 0x7c;
  const unsigned char sign = __builtin_signbit(x) ? 0x80 : 0;
  const double magnitude = __builtin_fabs(x);
  if (x != x) return 0x7f;
  if (magnitude == 0.) return sign;
  int exponent;
  __builtin_frexp(magnitude, &exponent);
  const int lowest = 1 - bias, e = exponent - 1 < lowest ? lowest : exponent - 1;
  const double steps = __builtin_nearbyint(__builtin_ldexp(magnitude, mantissa_bits - e));
  if (__builtin_isinf(magnitude)) return sign | overflow;
  const long code = static_cast<long>(steps) + (static_cast<long>(e - lowest) << mantissa_bits);
  return sign | (code > largest ? overflow : static_cast<unsigned char>(code));
}
}  // namespace simt

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t s,
                                                __nv_fp8_interpretation_t k) {
  return simt::float_to_fp8(x, s, k);
}
inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t s,
                                                 __nv_fp8_interpretation_t k) {
  return simt::float_to_fp8(x, s, k);
}
inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, __nv_saturation_t s,
                                                  __nv_fp8_interpretation_t k) {
  return simt::float_to_fp8(float(__half(x)), s, k);
}
inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x, __nv_saturation_t s,
                                                      __nv_fp8_interpretation_t k) {
  return simt::float_to_fp8(float(__nv_bfloat16(x)), s, k);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t s,
                                                     __nv_fp8_interpretation_t k) {
  return static_cast<unsigned short>(simt::float_to_fp8(v.x, s, k) | simt::float_to_fp8(v.y, s, k)
                                                                         << 8);
}
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t b, __nv_fp8_interpretation_t k) {
  return __half(simt::fp8_to_float(b, k));
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t b, __nv_fp8_interpretation_t k) {
  return {__nv_cvt_fp8_to_halfraw(b & 0xff, k).x, __nv_cvt_fp8_to_halfraw(b >> 8, k).x};
}

#define SIMT_FP8(SUFFIX, KIND)                                                                  \
  struct __nv_fp8_##SUFFIX {                                                                    \
    __nv_fp8_storage_t __x;                                                                     \
    __nv_fp8_##SUFFIX() = default;                                                              \
    explicit __nv_fp8_##SUFFIX(float x) : __x(simt::float_to_fp8(x, __NV_SATFINITE, KIND)) {}   \
    explicit __nv_fp8_##SUFFIX(double x) : __x(simt::float_to_fp8(x, __NV_SATFINITE, KIND)) {}  \
    explicit __nv_fp8_##SUFFIX(__half x) : __nv_fp8_##SUFFIX(float(x)) {}                       \
    explicit __nv_fp8_##SUFFIX(__nv_bfloat16 x) : __nv_fp8_##SUFFIX(float(x)) {}                \
    explicit operator float() const { return simt::fp8_to_float(__x, KIND); }                   \
    explicit operator __half() const { return __half(simt::fp8_to_float(__x, KIND)); }          \
    explicit operator __nv_bfloat16() const {                                                   \
      return __nv_bfloat16(simt::fp8_to_float(__x, KIND));                                      \
    }                                                                                           \
  };                                                                                            \
  struct alignas(2) __nv_fp8x2_##SUFFIX {                                                       \
    __nv_fp8x2_storage_t __x;                                                                   \
    __nv_fp8x2_##SUFFIX() = default;                                                            \
    explicit __nv_fp8x2_##SUFFIX(float2 v)                                                      \
        : __x(__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, KIND)) {}                             \
    explicit operator float2() const {                                                          \
      return {simt::fp8_to_float(__x & 0xff, KIND), simt::fp8_to_float(__x >> 8, KIND)};        \
    }                                                                                           \
    explicit operator __half2() const {                                                         \
      const float2 v(*this);                                                                    \
      return {__half(v.x), __half(v.y)};                                                        \
    }                                                                                           \
  };                                                                                            \
  struct alignas(4) __nv_fp8x4_##SUFFIX {                                                       \
    __nv_fp8x4_storage_t __x;                                                                   \
    __nv_fp8x4_##SUFFIX() = default;                                                            \
    explicit __nv_fp8x4_##SUFFIX(float4 v)                                                      \
        : __x(__nv_cvt_float2_to_fp8x2({v.x, v.y}, __NV_SATFINITE, KIND) |                      \
              unsigned(__nv_cvt_float2_to_fp8x2({v.z, v.w}, __NV_SATFINITE, KIND)) << 16) {}    \
    explicit operator float4() const {                                                          \
      return {simt::fp8_to_float(__x & 0xff, KIND), simt::fp8_to_float(__x >> 8 & 0xff, KIND),  \
              simt::fp8_to_float(__x >> 16 & 0xff, KIND), simt::fp8_to_float(__x >> 24, KIND)}; \
    }                                                                                           \
  };
SIMT_FP8(e4m3, __NV_E4M3)
SIMT_FP8(e5m2, __NV_E5M2)
#undef SIMT_FP8
