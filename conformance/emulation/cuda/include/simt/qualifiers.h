// The words that CUDA adds to C++.
//
// __shared__ is thread_local: the only storage class that a block-scope array and an
// `extern __shared__` array both accept. One block runs at a time, so a module's whole TLS segment
// is the shared memory of that block, which the runtime can poison and watch.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__ __attribute__((used))  // the host may write it: no constant for the compiler
#define __managed__
#define __shared__ thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))  // allowed in more places than alignas
#define __grid_constant__

// Functions of the emulation that move a kernel's data: the compiler's access hooks of checked mode
// must not see them, because they report what they touch themselves.
#define SIMT_QUIET __attribute__((no_sanitize_thread, no_sanitize_undefined))
