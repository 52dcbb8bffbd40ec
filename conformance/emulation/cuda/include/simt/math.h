// Device functions on scalars: overloads of min and max, fast math, bit casts, integer intrinsics.
#pragma once

#define SIMT_MIN_MAX(T)                            \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long long)
#undef SIMT_MIN_MAX
#define SIMT_MIN_MAX_MIXED(A, B)                               \
  inline B min(A a, B b) { return min(static_cast<B>(a), b); } \
  inline B min(B a, A b) { return min(a, static_cast<B>(b)); } \
  inline B max(A a, B b) { return max(static_cast<B>(a), b); } \
  inline B max(B a, A b) { return max(a, static_cast<B>(b)); }
SIMT_MIN_MAX_MIXED(int, unsigned)
SIMT_MIN_MAX_MIXED(int, long)
SIMT_MIN_MAX_MIXED(int, long long)
SIMT_MIN_MAX_MIXED(int, unsigned long)
SIMT_MIN_MAX_MIXED(int, unsigned long long)
SIMT_MIN_MAX_MIXED(unsigned, unsigned long)
SIMT_MIN_MAX_MIXED(unsigned, unsigned long long)
SIMT_MIN_MAX_MIXED(long, unsigned long)
SIMT_MIN_MAX_MIXED(long long, unsigned long long)
SIMT_MIN_MAX_MIXED(long long, unsigned long)
#undef SIMT_MIN_MAX_MIXED
// A NaN loses against a number, as on the GPU.
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }
inline double min(float a, double b) { return __builtin_fmin(a, b); }
inline double min(double a, float b) { return __builtin_fmin(a, b); }
inline double max(float a, double b) { return __builtin_fmax(a, b); }
inline double max(double a, float b) { return __builtin_fmax(a, b); }

inline float __expf(float x) { return ::expf(x); }
inline float __exp10f(float x) { return ::powf(10.f, x); }
inline float __logf(float x) { return ::logf(x); }
inline float __log2f(float x) { return ::log2f(x); }
inline float __log10f(float x) { return ::log10f(x); }
inline float __powf(float x, float y) { return ::powf(x, y); }
inline float __sinf(float x) { return ::sinf(x); }
inline float __cosf(float x) { return ::cosf(x); }
inline float __tanf(float x) { return ::tanf(x); }
inline void __sincosf(float x, float *s, float *c) { *s = ::sinf(x), *c = ::cosf(x); }
inline float __saturatef(float x) { return x > 0.f ? (x < 1.f ? x : 1.f) : 0.f; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.f / __builtin_sqrtf(x); }
inline float rsqrtf(float x) { return 1.f / __builtin_sqrtf(x); }
inline double rsqrt(double x) { return 1. / __builtin_sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// Never contracted into a fused multiply-add, as CUDA promises.
__attribute__((noinline)) inline float __fmul_rn(float a, float b) { return a * b; }
__attribute__((noinline)) inline float __fadd_rn(float a, float b) { return a + b; }
__attribute__((noinline)) inline float __fsub_rn(float a, float b) { return a - b; }

#define SIMT_CLASSIFY(T)                                               \
  inline bool isnan(T x) { return __builtin_isnan(x); }                \
  inline bool isinf(T x) { return __builtin_isinf_sign(x) != 0; }      \
  inline bool isfinite(T x) { return __builtin_isfinite(x); }          \
  inline bool signbit(T x) { return __builtin_signbit(x) != 0; }
SIMT_CLASSIFY(float)
SIMT_CLASSIFY(double)
#undef SIMT_CLASSIFY
inline float sinpif(float x) { return static_cast<float>(::sin(M_PI * ::fmod(x, 2.))); }
inline float cospif(float x) { return static_cast<float>(::cos(M_PI * ::fmod(x, 2.))); }
inline void sincospif(float x, float *s, float *c) { *s = sinpif(x), *c = cospif(x); }
inline float rcbrtf(float x) { return 1.f / ::cbrtf(x); }
inline float normcdff(float x) { return 0.5f * ::erfcf(-x * static_cast<float>(M_SQRT1_2)); }

namespace simt {
template <class To, class From> inline To bit_cast(const From &from) {
  static_assert(sizeof(To) == sizeof(From) && std::is_trivially_copyable_v<From>, "bit_cast");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}
}  // namespace simt
inline int __float_as_int(float x) { return simt::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return simt::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return simt::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return simt::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return simt::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return simt::bit_cast<double>(x); }

namespace simt {
// float to integer as cvt does: NaN gives 0, values outside saturate.
template <class To> inline To to_integer(double x) {
  if (x != x) return 0;
  const double low = static_cast<double>(std::numeric_limits<To>::min());
  const double high = static_cast<double>(std::numeric_limits<To>::max());
  if (x <= low) return std::numeric_limits<To>::min();
  if (x >= high) return std::numeric_limits<To>::max();
  return static_cast<To>(x);
}
}  // namespace simt
inline int __float2int_rn(float x) { return simt::to_integer<int>(__builtin_nearbyintf(x)); }
inline int __float2int_rz(float x) { return simt::to_integer<int>(__builtin_truncf(x)); }
inline int __float2int_ru(float x) { return simt::to_integer<int>(__builtin_ceilf(x)); }
inline int __float2int_rd(float x) { return simt::to_integer<int>(__builtin_floorf(x)); }
inline unsigned __float2uint_rn(float x) {
  return simt::to_integer<unsigned>(__builtin_nearbyintf(x));
}
inline unsigned __float2uint_rz(float x) { return simt::to_integer<unsigned>(__builtin_truncf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) {
  return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline int __mul24(int a, int b) { return a * b; }
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> (4 * i) & 0xf, byte = both >> (8 * (nibble & 7)) & 0xff;
    r |= (nibble & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << (8 * i);
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
  return static_cast<unsigned>(both << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
  return static_cast<unsigned>(both >> (shift & 31));
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) {
    c += static_cast<signed char>(a >> (8 * i)) * static_cast<signed char>(b >> (8 * i));
  }
  return c;
}

// Loads and stores with cache hints are plain ones.
template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
template <class T> inline T __ldca(const T *p) { return *p; }
template <class T> inline T __ldcs(const T *p) { return *p; }
template <class T> inline T __ldcv(const T *p) { return *p; }
template <class T> inline void __stcg(T *p, T v) { *p = v; }
template <class T> inline void __stcs(T *p, T v) { *p = v; }
template <class T> inline void __stwt(T *p, T v) { *p = v; }

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { simt::pause(); }
inline long long clock64() { return 0; }
inline bool __isGlobal(const void *p) { return !simt::is_shared(p, 1); }
inline bool __isShared(const void *p) { return simt::is_shared(p, 1); }
inline size_t __cvta_generic_to_shared(const void *p) { return simt::shared_offset(p); }
inline size_t __cvta_generic_to_global(const void *p) { return reinterpret_cast<size_t>(p); }
#define __builtin_assume(condition) ((void)0)
#define __trap() simt::fail("__trap() was called", __FILE__, __LINE__)
