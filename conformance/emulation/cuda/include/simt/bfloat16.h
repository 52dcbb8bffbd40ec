// __nv_bfloat16 and __nv_bfloat162: the upper half of a float, rounded to nearest even.
#pragma once

struct __nv_bfloat16_raw {
  unsigned short x;
};

struct alignas(2) __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(const __nv_bfloat16_raw &raw) : bits(raw.x) {}
  __nv_bfloat16(float x) {
    const unsigned u = __float_as_uint(x);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? 0x7fff : static_cast<unsigned short>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
  __nv_bfloat16(double x) : __nv_bfloat16(static_cast<float>(x)) {}
  __nv_bfloat16(int x) : __nv_bfloat16(static_cast<float>(x)) {}
  __nv_bfloat16(unsigned x) : __nv_bfloat16(static_cast<float>(x)) {}
  operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
  operator __nv_bfloat16_raw() const { return {bits}; }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  __nv_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) : x(x), y(y) {}
};
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __bfloat162float(__nv_bfloat16 h) { return h; }
inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rz(float x) {
  return __nv_bfloat16_raw{static_cast<unsigned short>(__float_as_uint(x) >> 16)};
}
inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __int2bfloat16_rn(int x) { return __nv_bfloat16(x); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline short __bfloat16_as_short(__nv_bfloat16 h) { return static_cast<short>(h.bits); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return __nv_bfloat16_raw{u}; }
inline __nv_bfloat16 __short_as_bfloat16(short s) {
  return __nv_bfloat16_raw{static_cast<unsigned short>(s)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 h) { return {float(h.x), float(h.y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
  return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)};
}
inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {__nv_bfloat16(x), __nv_bfloat16(x)}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 h) { return {h, h}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 h) { return h.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 h) { return h.y; }
inline float __low2float(__nv_bfloat162 h) { return h.x; }
inline float __high2float(__nv_bfloat162 h) { return h.y; }
SIMT_ARITHMETIC(__nv_bfloat16, __nv_bfloat162)
#undef SIMT_ARITHMETIC
