// uint3, dim3 and the vector types, with CUDA's alignments.
#pragma once

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;

#define SIMT_VECTORS(NAME, T)                                                        \
  struct NAME##1 { T x; };                                                           \
  struct alignas(2 * sizeof(T)) NAME##2 { T x, y; };                                 \
  struct NAME##3 { T x, y, z; };                                                     \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) NAME##4 { T x, y, z, w; }; \
  inline NAME##1 make_##NAME##1(T x) { return {x}; }                                 \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                         \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                 \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

SIMT_VECTORS(char, signed char)
SIMT_VECTORS(uchar, unsigned char)
SIMT_VECTORS(short, short)
SIMT_VECTORS(ushort, unsigned short)
SIMT_VECTORS(int, int)
SIMT_VECTORS(uint, unsigned int)
SIMT_VECTORS(long, long)
SIMT_VECTORS(ulong, unsigned long)
SIMT_VECTORS(longlong, long long)
SIMT_VECTORS(ulonglong, unsigned long long)
SIMT_VECTORS(float, float)
SIMT_VECTORS(double, double)
#undef SIMT_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
