// Models of Hopper's warpgroup products (wgmma.mma_async.sync.aligned.m64nNk16.f32) and of their
// fences. A kernel's wrapper header calls these where PAGEDATTN_SIMT is defined.
//
// A product is under way from its issue until the warp waits for its group: it is computed then,
// from what shared memory holds then, as late as is allowed. Until then its accumulators are NaN.
#pragma once

namespace simt {

// What the instruction says besides its registers.
struct Wgmma {
  unsigned long long a, b;  // matrix descriptors; a: 0 when A is in registers
  int columns;              // N: a multiple of 8, at most 256
  bool registers;           // A is in registers
  bool add;                 // scale-d: D counts
  bool transpose_a, transpose_b;
  bool bf16;
};

// Lane 4g + t of warp w of the group holds d[4j + 2i + c]: row 16w + g + 8i, column 8j + 2t + c,
// and a[2j + i]: of that row columns 8j + 2t and 8j + 2t + 1.
void wgmma_issue(float *d, const unsigned *a, const Wgmma &what, const char *file, int line);

template <int R>
inline void wgmma_shared(float (&d)[R], unsigned long long a, unsigned long long b, bool add,
                         bool bf16, bool transpose_a = false, bool transpose_b = false,
                         SIMT_WHERE) {
  static_assert(R % 4 == 0 && R <= 128, "a product has 8, 16, ... or 256 columns");
  wgmma_issue(d, nullptr, {a, b, R * 2, false, add, transpose_a, transpose_b, bf16}, SIMT_HERE);
}
template <int R>
inline void wgmma_registers(float (&d)[R], const unsigned (&a)[4], unsigned long long b,
                            bool add, bool bf16, bool transpose_b = false, SIMT_WHERE) {
  static_assert(R % 4 == 0 && R <= 128, "a product has 8, 16, ... or 256 columns");
  wgmma_issue(d, a, {0, b, R * 2, true, add, false, transpose_b, bf16}, SIMT_HERE);
}

// wgmma.fence, wgmma.commit_group, wgmma.wait_group
void wgmma_step(Op op, int pending, const char *file, int line);
inline void wgmma_fence(SIMT_WHERE) { wgmma_step(Op::WgmmaFence, 0, SIMT_HERE); }
inline void wgmma_commit(SIMT_WHERE) { wgmma_step(Op::WgmmaCommit, 0, SIMT_HERE); }
inline void wgmma_wait(int pending, SIMT_WHERE) { wgmma_step(Op::WgmmaWait, pending, SIMT_HERE); }

// fence.proxy.async: checked mode wants it between a thread's writes to shared memory and the
// products that read them.
void fence_proxy_async();

}  // namespace simt
