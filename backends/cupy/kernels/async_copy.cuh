// Copies of 16 bytes from global to shared memory that run while the thread computes (cp.async).
//
// A thread groups what it has issued with commit(); wait<n>() returns when at most its n newest
// groups are still under way. Other threads see the data only after a barrier behind that.
#pragma once

#ifdef PAGEDATTN_SIMT
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, int bytes) {
  simt::cp_async_16(shared, global, bytes);
}
__device__ __forceinline__ void copy_async_commit() { simt::cp_async_commit(); }
template <int N> __device__ __forceinline__ void copy_async_wait() { simt::cp_async_wait(N); }
#else
// The first `bytes` (0 to 16) come from `global`, the rest is set to zero.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, int bytes) {
  const unsigned target = (unsigned)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(global),
               "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif
