// __half and __half2: storage in 16 bits, arithmetic in float rounded to nearest even, which is
// what the hardware gives for one operation (a product of two halves is exact in float).
#pragma once

#if defined(__aarch64__) && __GNUC__ < 13  // there, g++ has this type under its older name only
#define _Float16 __fp16
#endif

struct __half_raw {
  unsigned short x;
};
struct __half2_raw {
  unsigned short x, y;
};

struct alignas(2) __half {
  unsigned short bits;
  __half() = default;
  __half(const __half_raw &raw) : bits(raw.x) {}
  __half(float x) : bits(simt::bit_cast<unsigned short>(static_cast<_Float16>(x))) {}
  __half(double x) : bits(simt::bit_cast<unsigned short>(static_cast<_Float16>(x))) {}
  __half(int x) : __half(static_cast<float>(x)) {}
  __half(unsigned x) : __half(static_cast<float>(x)) {}
  operator float() const { return static_cast<float>(simt::bit_cast<_Float16>(bits)); }
  operator __half_raw() const { return {bits}; }
};
struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  __half2(__half x, __half y) : x(x), y(y) {}
};
using half = __half;
using half2 = __half2;

inline float __half2float(__half h) { return h; }
inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __float2half_rz(float x) {
  __half h(x);
  if (__builtin_fabsf(float(h)) > __builtin_fabsf(x)) --h.bits;
  return h;
}
inline __half __double2half(double x) { return __half(x); }
inline __half __int2half_rn(int x) { return __half(x); }
inline int __half2int_rn(__half h) { return __float2int_rn(h); }
inline int __half2int_rz(__half h) { return __float2int_rz(h); }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline short __half_as_short(__half h) { return static_cast<short>(h.bits); }
inline __half __ushort_as_half(unsigned short u) { return __half_raw{u}; }
inline __half __short_as_half(short s) { return __half_raw{static_cast<unsigned short>(s)}; }
inline float2 __half22float2(__half2 h) { return {float(h.x), float(h.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline __half2 __half2half2(__half h) { return {h, h}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half __low2half(__half2 h) { return h.x; }
inline __half __high2half(__half2 h) { return h.y; }
inline float __low2float(__half2 h) { return h.x; }
inline float __high2float(__half2 h) { return h.y; }

// One list of functions serves both 16-bit types: S the scalar, V the pair.
#define SIMT_ARITHMETIC(S, V)                                                                \
  inline S __hadd(S a, S b) { return S(float(a) + float(b)); }                               \
  inline S __hsub(S a, S b) { return S(float(a) - float(b)); }                               \
  inline S __hmul(S a, S b) { return S(float(a) * float(b)); }                               \
  inline S __hdiv(S a, S b) { return S(float(a) / float(b)); }                               \
  inline S __hfma(S a, S b, S c) {                                                           \
    return S(static_cast<double>(float(a)) * float(b) + float(c));                           \
  }                                                                                          \
  inline S __hneg(S a) {                                                                     \
    a.bits ^= 0x8000u;                                                                       \
    return a;                                                                                \
  }                                                                                          \
  inline S __habs(S a) {                                                                     \
    a.bits &= 0x7fffu;                                                                       \
    return a;                                                                                \
  }                                                                                          \
  inline S __hmax(S a, S b) { return S(__builtin_fmaxf(a, b)); }                             \
  inline S __hmin(S a, S b) { return S(__builtin_fminf(a, b)); }                             \
  inline bool __hisnan(S a) { return float(a) != float(a); }                                 \
  inline int __hisinf(S a) {                                                                 \
    return float(a) == __builtin_inff() ? 1 : float(a) == -__builtin_inff() ? -1 : 0;        \
  }                                                                                          \
  inline bool __heq(S a, S b) { return float(a) == float(b); }                               \
  inline bool __hne(S a, S b) { return float(a) != float(b); }                               \
  inline bool __hlt(S a, S b) { return float(a) < float(b); }                                \
  inline bool __hle(S a, S b) { return float(a) <= float(b); }                               \
  inline bool __hgt(S a, S b) { return float(a) > float(b); }                                \
  inline bool __hge(S a, S b) { return float(a) >= float(b); }                               \
  inline S hexp(S a) { return S(::expf(a)); }                                                \
  inline S hexp2(S a) { return S(::exp2f(a)); }                                              \
  inline S hlog(S a) { return S(::logf(a)); }                                                \
  inline S hsqrt(S a) { return S(::sqrtf(a)); }                                              \
  inline S hrcp(S a) { return S(1.f / float(a)); }                                           \
  inline S hrsqrt(S a) { return S(1.f / ::sqrtf(a)); }                                       \
  inline S operator+(S a, S b) { return __hadd(a, b); }                                      \
  inline S operator-(S a, S b) { return __hsub(a, b); }                                      \
  inline S operator*(S a, S b) { return __hmul(a, b); }                                      \
  inline S operator/(S a, S b) { return __hdiv(a, b); }                                      \
  inline S operator-(S a) { return __hneg(a); }                                              \
  inline S &operator+=(S &a, S b) { return a = __hadd(a, b); }                               \
  inline S &operator-=(S &a, S b) { return a = __hsub(a, b); }                               \
  inline S &operator*=(S &a, S b) { return a = __hmul(a, b); }                               \
  inline S &operator/=(S &a, S b) { return a = __hdiv(a, b); }                               \
  inline bool operator==(S a, S b) { return __heq(a, b); }                                   \
  inline bool operator!=(S a, S b) { return __hne(a, b); }                                   \
  inline bool operator<(S a, S b) { return __hlt(a, b); }                                    \
  inline bool operator<=(S a, S b) { return __hle(a, b); }                                   \
  inline bool operator>(S a, S b) { return __hgt(a, b); }                                    \
  inline bool operator>=(S a, S b) { return __hge(a, b); }                                   \
  inline V __hadd2(V a, V b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }                \
  inline V __hsub2(V a, V b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }                \
  inline V __hmul2(V a, V b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }                \
  inline V __h2div(V a, V b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }                \
  inline V __hfma2(V a, V b, V c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline V __hneg2(V a) { return {__hneg(a.x), __hneg(a.y)}; }                               \
  inline V __habs2(V a) { return {__habs(a.x), __habs(a.y)}; }                               \
  inline V __hmax2(V a, V b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                \
  inline V __hmin2(V a, V b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                \
  inline V __lowhigh2highlow(V a) { return {a.y, a.x}; }                                     \
  inline V h2exp(V a) { return {hexp(a.x), hexp(a.y)}; }                                     \
  inline V operator+(V a, V b) { return __hadd2(a, b); }                                     \
  inline V operator-(V a, V b) { return __hsub2(a, b); }                                     \
  inline V operator*(V a, V b) { return __hmul2(a, b); }                                     \
  inline V operator/(V a, V b) { return __h2div(a, b); }                                     \
  inline V &operator+=(V &a, V b) { return a = __hadd2(a, b); }                              \
  inline V &operator-=(V &a, V b) { return a = __hsub2(a, b); }                              \
  inline V &operator*=(V &a, V b) { return a = __hmul2(a, b); }                              \
  inline V &operator/=(V &a, V b) { return a = __h2div(a, b); }                              \
  inline V operator-(V a) { return __hneg2(a); }                                             \
  inline V h2exp2(V a) { return {hexp2(a.x), hexp2(a.y)}; }                                  \
  inline V h2log(V a) { return {hlog(a.x), hlog(a.y)}; }                                     \
  inline V h2sqrt(V a) { return {hsqrt(a.x), hsqrt(a.y)}; }                                  \
  inline V h2rcp(V a) { return {hrcp(a.x), hrcp(a.y)}; }                                     \
  inline V h2rsqrt(V a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }                               \
  inline V __heq2(V a, V b) { return {S(__heq(a.x, b.x)), S(__heq(a.y, b.y))}; }             \
  inline bool __hbeq2(V a, V b) { return __heq(a.x, b.x) && __heq(a.y, b.y); }               \
  inline V __hne2(V a, V b) { return {S(__hne(a.x, b.x)), S(__hne(a.y, b.y))}; }             \
  inline bool __hbne2(V a, V b) { return __hne(a.x, b.x) && __hne(a.y, b.y); }               \
  inline V __hlt2(V a, V b) { return {S(__hlt(a.x, b.x)), S(__hlt(a.y, b.y))}; }             \
  inline bool __hblt2(V a, V b) { return __hlt(a.x, b.x) && __hlt(a.y, b.y); }               \
  inline V __hle2(V a, V b) { return {S(__hle(a.x, b.x)), S(__hle(a.y, b.y))}; }             \
  inline bool __hble2(V a, V b) { return __hle(a.x, b.x) && __hle(a.y, b.y); }               \
  inline V __hgt2(V a, V b) { return {S(__hgt(a.x, b.x)), S(__hgt(a.y, b.y))}; }             \
  inline bool __hbgt2(V a, V b) { return __hgt(a.x, b.x) && __hgt(a.y, b.y); }               \
  inline V __hge2(V a, V b) { return {S(__hge(a.x, b.x)), S(__hge(a.y, b.y))}; }             \
  inline bool __hbge2(V a, V b) { return __hge(a.x, b.x) && __hge(a.y, b.y); }
SIMT_ARITHMETIC(__half, __half2)
