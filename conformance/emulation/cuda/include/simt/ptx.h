// Models of what kernels reach through inline PTX. A kernel's wrapper header calls these where
// PAGEDATTN_SIMT is defined, and issues the instruction where it is not.
#pragma once

namespace simt {

// mma.sync.aligned.m16n8k16.row.col.f32.{f16|bf16}.{f16|bf16}.f32: d += a * b, for a whole warp.
// Lane l = 4*g + t holds a: rows g (a[0], a[2]) and g+8 (a[1], a[3]), columns 2t, 2t+1 (+8 in a[2],
// a[3]); b: column g, rows 2t, 2t+1 (+8 in b[1]); d: rows g (d[0], d[1]) and g+8, columns 2t, 2t+1.
void mma_16x8x16(float *d, const unsigned *a, const unsigned *b, bool bf16, const char *file,
                 int line);
inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bool bf16,
                         SIMT_WHERE) {
  mma_16x8x16(d, a, b, bf16, SIMT_HERE);
}

// ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16: lane i gives the 16-byte row i % 8 of
// matrix i / 8; r[m] of lane l receives elements 2*(l%4), 2*(l%4)+1 of row l/4 of matrix m
// (transposed: of column l/4).
void ldmatrix(unsigned *r, const void *row, int count, bool transpose, const char *file, int line);
inline void ldmatrix_x4(unsigned (&r)[4], const void *row, SIMT_WHERE) {
  ldmatrix(r, row, 4, false, SIMT_HERE);
}
inline void ldmatrix_x2(unsigned (&r)[2], const void *row, SIMT_WHERE) {
  ldmatrix(r, row, 2, false, SIMT_HERE);
}
inline void ldmatrix_x1(unsigned (&r)[1], const void *row, SIMT_WHERE) {
  ldmatrix(r, row, 1, false, SIMT_HERE);
}
inline void ldmatrix_x4_trans(unsigned (&r)[4], const void *row, SIMT_WHERE) {
  ldmatrix(r, row, 4, true, SIMT_HERE);
}
inline void ldmatrix_x2_trans(unsigned (&r)[2], const void *row, SIMT_WHERE) {
  ldmatrix(r, row, 2, true, SIMT_HERE);
}

// cp.async: `size` bytes of shared memory, of which the first src_bytes come from global memory and
// the rest is zero. From here on the destination holds NaN; the data lands when this thread waits
// for its group, and not before: code that forgets the wait, or the barrier after it, sees NaN.
void cp_async(void *smem, const void *gmem, int size, int src_bytes, const char *file, int line);
inline void cp_async_16(void *smem, const void *gmem, int src_bytes = 16, SIMT_WHERE) {
  cp_async(smem, gmem, 16, src_bytes, SIMT_HERE);
}
inline void cp_async_8(void *smem, const void *gmem, int src_bytes = 8, SIMT_WHERE) {
  cp_async(smem, gmem, 8, src_bytes, SIMT_HERE);
}
inline void cp_async_4(void *smem, const void *gmem, int src_bytes = 4, SIMT_WHERE) {
  cp_async(smem, gmem, 4, src_bytes, SIMT_HERE);
}
void cp_async_commit();
// Lands all groups but the `pending` latest.
void cp_async_wait(int pending);
// Lands every copy, committed or not (cp.async.wait_all).
void cp_async_wait_all();

// bar.sync id, threads
inline void bar_sync(int id, int threads, SIMT_WHERE) { named_barrier(id, threads, SIMT_HERE); }

// ex2.approx.ftz.f32, lg2.approx.ftz.f32, rcp.approx.ftz.f32, tanh.approx.f32 (exact here)
inline float ex2(float x) { return ::exp2f(x); }
inline float lg2(float x) { return ::log2f(x); }
inline float rcp(float x) { return 1.f / x; }
inline float tanh_approx(float x) { return ::tanhf(x); }

}  // namespace simt
