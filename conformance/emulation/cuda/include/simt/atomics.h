// Atomics. Threads of a block take turns and blocks run one after the other, so a plain
// read-modify-write is atomic; checked mode is told that it is one. The running thread may lose its
// turn here: a loop that waits for another thread of the block by an atomic gets on.
#pragma once

namespace simt {
template <Access access = Access::Atomic, class T, class F>
__attribute__((noinline)) SIMT_QUIET inline T read_modify_write(T *p, F change) {
  touch(p, sizeof(T), access, __builtin_return_address(0));
  const T old = *p;
  *p = change(old);
  return old;
}
template <class T> struct Same {
  using Type = T;
};
template <class T> using Value = typename Same<T>::Type;  // keeps the argument out of deduction
}  // namespace simt

template <class T> inline T atomicAdd(T *p, simt::Value<T> v) {
  return simt::read_modify_write(p, [=](T old) { return static_cast<T>(old + v); });
}
template <class T> inline T atomicSub(T *p, simt::Value<T> v) {
  return simt::read_modify_write(p, [=](T old) { return static_cast<T>(old - v); });
}
template <class T> inline T atomicMax(T *p, simt::Value<T> v) {
  return simt::read_modify_write(p, [=](T old) { return old < v ? v : old; });
}
template <class T> inline T atomicMin(T *p, simt::Value<T> v) {
  return simt::read_modify_write(p, [=](T old) { return v < old ? v : old; });
}
template <class T> inline T atomicAnd(T *p, simt::Value<T> v) {
  return simt::read_modify_write(p, [=](T old) { return static_cast<T>(old & v); });
}
template <class T> inline T atomicOr(T *p, simt::Value<T> v) {
  return simt::read_modify_write(p, [=](T old) { return static_cast<T>(old | v); });
}
template <class T> inline T atomicXor(T *p, simt::Value<T> v) {
  return simt::read_modify_write(p, [=](T old) { return static_cast<T>(old ^ v); });
}
inline unsigned atomicInc(unsigned *p, unsigned limit) {
  return simt::read_modify_write(p, [=](unsigned old) { return old >= limit ? 0u : old + 1u; });
}
inline unsigned atomicDec(unsigned *p, unsigned limit) {
  return simt::read_modify_write(
      p, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1u; });
}
template <class T> inline T atomicExch(T *p, simt::Value<T> v) {
  // The first value of a lock may be given this way: no read of what nobody wrote.
  const T old = simt::read_modify_write<simt::Access::AtomicWrite>(p, [=](T) { return v; });
  simt::pause();
  return old;
}
template <class T> inline T atomicCAS(T *p, simt::Value<T> compare, simt::Value<T> v) {
  const T old = simt::read_modify_write(
      p, [=](T old) { return __builtin_memcmp(&old, &compare, sizeof(T)) == 0 ? v : old; });
  simt::pause();
  return old;
}

// Of another scope: all the same here.
#define SIMT_SCOPES(NAME)                                                            \
  template <class T> inline T NAME##_block(T *p, simt::Value<T> v) { return NAME(p, v); }  \
  template <class T> inline T NAME##_system(T *p, simt::Value<T> v) { return NAME(p, v); }
SIMT_SCOPES(atomicAdd)
SIMT_SCOPES(atomicSub)
SIMT_SCOPES(atomicMax)
SIMT_SCOPES(atomicMin)
SIMT_SCOPES(atomicAnd)
SIMT_SCOPES(atomicOr)
SIMT_SCOPES(atomicXor)
SIMT_SCOPES(atomicExch)
#undef SIMT_SCOPES
template <class T> inline T atomicCAS_block(T *p, simt::Value<T> compare, simt::Value<T> v) {
  return atomicCAS(p, compare, v);
}
template <class T> inline T atomicCAS_system(T *p, simt::Value<T> compare, simt::Value<T> v) {
  return atomicCAS(p, compare, v);
}
