// CUDA C++ on a CPU: the vocabulary of a raw kernel, for a host compiler.
//
// A kernel's source includes this file where NVRTC or nvcc would give it the CUDA headers:
//
//     #ifdef PAGEDATTN_SIMT
//     #include "simt.h"
//     #else
//     #include <cuda_fp16.h>
//     #endif
//
// PAGEDATTN_SIMT is 1 here and undefined elsewhere. Inline PTX is what a CPU cannot run: a kernel
// keeps it in one wrapper header whose other branch calls the models of simt/ptx.h.
#ifndef PAGEDATTN_SIMT_H
#define PAGEDATTN_SIMT_H
#ifndef PAGEDATTN_SIMT
#define PAGEDATTN_SIMT 1
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "simt/qualifiers.h"
#include "simt/vectors.h"
#include "simt/runtime.h"
#include "simt/math.h"
#include "simt/half.h"
#include "simt/bfloat16.h"
#include "simt/fp8.h"
#include "simt/warp.h"
#include "simt/atomics.h"
#include "simt/ptx.h"
#include "simt/wgmma.h"
#include "simt/entry.h"

#endif
