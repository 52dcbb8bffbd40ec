// Prefill on Hopper: prefill.cu's work with wgmma, for 16-bit caches of q's dtype.
//
// A warpgroup takes 64 packed rows (work.cuh), a block one or two warpgroups through the keys that
// at least one of its rows sees, N at a time. A thread holds two rows of S = Q K^T and of O: the
// softmax needs shuffles alone, and its weights stay in registers as the operand of O += P V, which
// runs while the next keys' scores go through the softmax. K is brought one step before V.
//
// grid (items, Hkv), block (128 * GROUPS), dynamic shared memory: heuristics.py says how much.
#include "async_copy.cuh"
#include "masks.cuh"
#include "paging.cuh"
#include "softmax.cuh"
#include "spec.cuh"
#include "swizzle.cuh"
#include "types.cuh"
#include "wgmma.cuh"
#include "work.cuh"

constexpr unsigned ALL_LANES = 0xffffffffu;

template <typename T, int N, int GROUPS, typename S>
__global__ void __launch_bounds__(128 * GROUPS, 1)
    attention_prefill_wgmma_kernel(const S p) {
  constexpr int D = S::HEAD_DIM, M = 64 * GROUPS, Q_BYTES = 64 * D * 2, KV_BYTES = N * D * 2;
  constexpr int COLUMNS = D < 128 ? D : 128, PARTS = D / COLUMNS;  // of O, in one product
  extern __shared__ uint4 shared[];
  const WorkItem item = item_at(p.items, blockIdx.x);
  if (item.request < 0) return;
  const int kv_head = blockIdx.y, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int seq_len = p.seq_lens[item.request], query = p.query_start[item.request];
  const int query_len = p.query_start[item.request + 1] - query;
  const int* table = p.block_table + item.request * p.table_row;
  const Visible<S> visible = visible_of(p, item.request, seq_len, query_len);

  // Shared memory: Q [GROUPS][64, D], K [2][N, D], V [2][N, D].
  char* const q_tiles = swizzle_aligned(shared);
  char* const k_tiles = q_tiles + GROUPS * Q_BYTES;
  char* const v_tiles = k_tiles + 2 * KV_BYTES;

  // Of the tile's M rows this thread holds in_tile and in_tile + 8. Rows beyond the last repeat it,
  // and are not stored.
  const int live_rows = min(query_len * p.group - item.first_row, M);
  const int first_row = item.first_row / p.group;
  const int last_row = (item.first_row + live_rows - 1) / p.group;
  const int in_tile = threadIdx.x / 32 * 16 + g;
  int rows[2];
  float slope[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int packed = item.first_row + in_tile + 8 * r;
    rows[r] = min(packed / p.group, last_row);
    slope[r] = p.slopes() ? p.slopes()[kv_head * p.group + packed % p.group] : 0.f;
  }
  const int first = visible.begin(visible.own + first_row);
  const int last = visible.end(visible.own + last_row);
  // Tiles begin at multiples of N, so that a row meets the same sums in whatever tile it runs.
  const int begin = first / N * N + item.split * item.chunk;
  const int end = item.split == item.num_splits - 1 ? last : min(last, begin + item.chunk);

  auto load_k = [&](int start, int stage) {
    if (start < end)
      load_swizzled_keys<T, D, N, KEYS>(p, table, kv_head, k_tiles + stage * KV_BYTES, start, first,
                                        last);
  };
  auto load_v = [&](int start, int stage) {
    if (start < end)
      load_swizzled_keys<T, D, N, VALUES>(p, table, kv_head, v_tiles + stage * KV_BYTES, start,
                                          first, last);
  };
  for (int index = threadIdx.x; index < M * D / 8; index += blockDim.x) {
    const int row = index / (D / 8), vector = index % (D / 8), packed = item.first_row + row;
    const long long at = (query + packed / p.group) * p.q_row +
                         (kv_head * p.group + packed % p.group) * p.q_head + vector * 8;
    load_vector(
        reinterpret_cast<T*>(q_tiles + row / 64 * Q_BYTES + swizzled<64>(row % 64, vector)),
        static_cast<const T*>(p.q) + (row < live_rows ? at : 0), row < live_rows ? 8 : 0,
        p.q_vectors);
  }
  load_k(begin, 0);
  copy_async_commit();
  load_v(begin, 0);
  load_k(begin + N, 1);
  copy_async_commit();

  const unsigned long long q_matrix = matrix_descriptor(
      q_tiles + threadIdx.x / 128 * Q_BYTES, SWIZZLED_GROUP, SWIZZLED_GROUP);
  const unsigned long long k_matrix = matrix_descriptor(k_tiles, SWIZZLED_GROUP, SWIZZLED_GROUP);
  const unsigned long long v_matrix = matrix_descriptor(v_tiles, N * SWIZZLED_ROW, SWIZZLED_GROUP);

  float o[PARTS][COLUMNS / 2] = {};
  float s[N / 2];  // score 4j + 2r + c is that of row rows[r] and key 8j + 2t + c of the step
  unsigned weights[N / 16][4];
  float m[2] = {NEG_INF, NEG_INF}, l[2] = {0.f, 0.f}, keep[2];  // l: of this thread's own keys

  auto multiply_scores = [&](int stage) {
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      const int slab = d / 64, inside = d % 64 * 2;
      wgmma(s, advanced(q_matrix, slab * 64 * SWIZZLED_ROW + inside),
            advanced(k_matrix, stage * KV_BYTES + slab * N * SWIZZLED_ROW + inside), d > 0, T());
    }
    wgmma_commit();
  };
  auto multiply_values = [&](int stage) {
#pragma unroll
    for (int key = 0; key < N; key += 16)
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
        wgmma(o[part], weights[key / 16],
              advanced(v_matrix, stage * KV_BYTES + key * SWIZZLED_ROW +
                                     part * (COLUMNS / 64) * N * SWIZZLED_ROW),
              T());
    wgmma_commit();
  };
  // From products to weights, and by how much what was summed before shrinks.
  auto online_softmax = [&](int start) {
    const int own_key = start + 2 * t;
#define FOR_EACH_SCORE _Pragma("unroll") for (int i = 0; i < N / 2; ++i)
    FOR_EACH_SCORE s[i] *= p.scale;
    if (p.softcap() != 0.f) { FOR_EACH_SCORE s[i] = capped(p, s[i]); }
    if (p.slopes()) {
      FOR_EACH_SCORE s[i] += bias(p, slope[i / 2 % 2],
                                  own_key + i / 4 * 8 + i % 2 - visible.own - rows[i / 2 % 2]);
    }
    if (!visible.all(first_row, last_row, start, start + N)) {
      FOR_EACH_SCORE {
        if (!visible(rows[i / 2 % 2], own_key + i / 4 * 8 + i % 2)) s[i] = NEG_INF;
      }
    }
    float top[2] = {m[0], m[1]};
    FOR_EACH_SCORE top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(ALL_LANES, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(ALL_LANES, top[r], 2));
      keep[r] = __expf(m[r] - base_of(top[r]));
      m[r] = top[r];
      l[r] *= keep[r];
    }
    FOR_EACH_SCORE {
      s[i] = __expf(s[i] - base_of(m[i / 2 % 2]));
      l[i / 2 % 2] += s[i];
    }
#undef FOR_EACH_SCORE
  };
  auto rescale = [&] {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; ++i) o[part][i] *= keep[i / 2 % 2];
  };
  auto pack_weights = [&] {
#pragma unroll
    for (int i = 0; i < N / 4; ++i)
      weights[i / 4][i % 4] = pack_pair(s[2 * i], s[2 * i + 1], T());
  };

  if (begin < end) {
    copy_async_wait<1>();
    fence_shared();
    __syncthreads();  // Q and the first K are here
    wgmma_fence();
    multiply_scores(0);
    wgmma_wait<0>();
    keep_in_place(s);
    online_softmax(begin);
    pack_weights();
  }
  int stage = 0, start = begin;
  for (; start + N < end; start += N, stage ^= 1) {
    copy_async_wait<0>();
    fence_shared();
    __syncthreads();  // V and the next K are here; nobody reads this K and the V before any more
    load_v(start + N, stage ^ 1);
    load_k(start + 2 * N, stage);
    copy_async_commit();
    wgmma_fence();
    multiply_scores(stage ^ 1);
    multiply_values(stage);
    wgmma_wait<1>();
    keep_in_place(s);
    online_softmax(start + N);
    wgmma_wait<0>();
    keep_in_place(o);
    rescale();
    pack_weights();
  }
  copy_async_wait<0>();
  if (start < end) {
    fence_shared();
    __syncthreads();  // the last V is here
    wgmma_fence();
    multiply_values(stage);
    wgmma_wait<0>();
    keep_in_place(o);
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    l[r] += __shfl_xor_sync(ALL_LANES, l[r], 1);
    l[r] += __shfl_xor_sync(ALL_LANES, l[r], 2);
    const int row = in_tile + 8 * r, packed = item.first_row + row;
    if (row >= live_rows) continue;
    const State state = {m[r], l[r]};
    const int head = kv_head * p.group + packed % p.group;
    const long long token = query + packed / p.group;
    const bool whole = item.num_splits == 1;
    const long long partial = partial_row(p, item.slot + item.split, kv_head, row);
    Ending e = {1.f, 0.f};
    if (whole) e = ending(state, p.sinks ? p.sinks[head] : NEG_INF);
    if (t == 0) {
      if (!whole) {
        p.partial_state[partial * 2] = state.m;
        p.partial_state[partial * 2 + 1] = state.l;
      } else if (p.lse) {
        p.lse[token * p.num_kv_heads * p.group + head] = e.lse;
      }
    }
#pragma unroll
    for (int i = 0; i < D / 4; ++i) {
      const int column = i / 2 * 8 + 2 * t + i % 2;
      const float x = o[column / COLUMNS][i / 2 * 4 % (COLUMNS / 2) + 2 * r + i % 2] * e.factor;
      if (whole)
        store_from_float(p.out, token * p.out_row + head * p.out_head + column, p.out_dtype, x);
      else
        p.partial_out[partial * D + column] = x;
    }
  }
}
