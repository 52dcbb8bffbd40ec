// Barriers, shuffles, votes and reductions.
#pragma once

inline void __syncthreads(SIMT_WHERE) { simt::barrier(0, SIMT_HERE); }
inline int __syncthreads_count(int predicate, SIMT_WHERE) {
  return simt::barrier(predicate != 0, SIMT_HERE);
}
inline int __syncthreads_or(int predicate, SIMT_WHERE) {
  return simt::barrier(predicate != 0, SIMT_HERE) != 0;
}
inline int __syncthreads_and(int predicate, SIMT_WHERE) {
  return simt::barrier(predicate == 0, SIMT_HERE) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_WHERE) {
  simt::exchange(mask, nullptr, 0, simt::Op::SyncWarp, SIMT_HERE);
}
inline unsigned __activemask() { return simt::active_mask(); }

namespace simt {
template <class T>
inline T shuffle(unsigned mask, T value, int source, const char *file, int line) {
  static_assert(sizeof(T) <= 16 && std::is_trivially_copyable_v<T>,
                "a shuffle moves up to 16 bytes");
  const Slot *slots = exchange(mask, &value, sizeof(T), Op::Shuffle, file, line);
  if (source < 0 || source > 31 || !(mask & running.lanes & 1u << source))
    no_such_lane(source, file, line);
  __builtin_memcpy(&value, slots[source], sizeof(T));
  return value;
}
}  // namespace simt

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, SIMT_WHERE) {
  const int base = static_cast<int>(simt::lane()) & ~(width - 1);
  return simt::shuffle(mask, value, base + (source & (width - 1)), SIMT_HERE);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32, SIMT_WHERE) {
  // A source in a later group of `width` lanes gives the caller's value, an earlier one is read.
  const int self = static_cast<int>(simt::lane()), source = self ^ flip;
  return simt::shuffle(mask, value, source <= (self | (width - 1)) ? source : self, SIMT_HERE);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_WHERE) {
  const int self = static_cast<int>(simt::lane()), source = self + static_cast<int>(delta);
  return simt::shuffle(mask, value, source <= (self | (width - 1)) ? source : self, SIMT_HERE);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_WHERE) {
  const int self = static_cast<int>(simt::lane()), source = self - static_cast<int>(delta);
  return simt::shuffle(mask, value, source >= (self & ~(width - 1)) ? source : self, SIMT_HERE);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_WHERE) {
  const unsigned char yes = predicate != 0;
  const simt::Slot *slots = simt::exchange(mask, &yes, 1, simt::Op::Vote, SIMT_HERE);
  unsigned result = 0;
  for (unsigned i = 0; i < 32; ++i) {
    if (mask & simt::running.lanes & 1u << i && slots[i][0]) result |= 1u << i;
  }
  return result;
}
inline int __any_sync(unsigned mask, int predicate, SIMT_WHERE) {
  return __ballot_sync(mask, predicate, SIMT_HERE) != 0;
}
inline int __all_sync(unsigned mask, int predicate, SIMT_WHERE) {
  return __ballot_sync(mask, !predicate, SIMT_HERE) == 0;
}
template <class T> inline unsigned __match_any_sync(unsigned mask, T value, SIMT_WHERE) {
  const simt::Slot *slots = simt::exchange(mask, &value, sizeof(T), simt::Op::Match, SIMT_HERE);
  unsigned result = 0;
  for (unsigned i = 0; i < 32; ++i) {
    if (mask & simt::running.lanes & 1u << i && __builtin_memcmp(slots[i], &value, sizeof(T)) == 0)
      result |= 1u << i;
  }
  return result;
}

template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int *same, SIMT_WHERE) {
  const unsigned equal = __match_any_sync(mask, value, SIMT_HERE);
  *same = equal == (mask & simt::running.lanes);
  return *same ? equal : 0;
}

namespace simt {
template <class T, class F>
inline T reduce(unsigned mask, T value, F combine, const char *file, int line) {
  static_assert(sizeof(T) == 4 && std::is_integral_v<T>, "__reduce_*_sync takes 32-bit integers");
  const Slot *slots = exchange(mask, &value, sizeof(T), Op::Reduce, file, line);
  bool first = true;
  for (unsigned i = 0; i < 32; ++i) {
    if (!(mask & running.lanes & 1u << i)) continue;
    T other;
    __builtin_memcpy(&other, slots[i], sizeof(T));
    value = first ? other : combine(value, other);
    first = false;
  }
  return value;
}
}  // namespace simt
template <class T> inline T __reduce_add_sync(unsigned mask, T value, SIMT_WHERE) {
  return simt::reduce(mask, value, [](T a, T b) { return static_cast<T>(a + b); }, SIMT_HERE);
}
template <class T> inline T __reduce_max_sync(unsigned mask, T value, SIMT_WHERE) {
  return simt::reduce(mask, value, [](T a, T b) { return a < b ? b : a; }, SIMT_HERE);
}
template <class T> inline T __reduce_min_sync(unsigned mask, T value, SIMT_WHERE) {
  return simt::reduce(mask, value, [](T a, T b) { return b < a ? b : a; }, SIMT_HERE);
}
template <class T> inline T __reduce_or_sync(unsigned mask, T value, SIMT_WHERE) {
  return simt::reduce(mask, value, [](T a, T b) { return static_cast<T>(a | b); }, SIMT_HERE);
}
template <class T> inline T __reduce_and_sync(unsigned mask, T value, SIMT_WHERE) {
  return simt::reduce(mask, value, [](T a, T b) { return static_cast<T>(a & b); }, SIMT_HERE);
}
