// Prefill, chunked prefill, trees, mixed steps, and decode with large groups: tiles of packed rows.
//
// A block of four warps takes a tile of 16 * MT packed rows (work.cuh) through the keys that at
// least one of them sees, 32 * NS at a time. The warps share the keys of S = Q K^T, exchange the
// rows' maxima, leave the weights P in shared memory and share the columns of O += P V. Heads wider
// than 128, and than 256, take fewer rows (heuristics.py), so that O keeps its registers: widths go
// from 1 to 576. V is copied while S is computed, the next K while O is.
//
// grid (items, Hkv), block (128), dynamic shared memory: heuristics.py says how much.
#include "async_copy.cuh"
#include "masks.cuh"
#include "paging.cuh"
#include "softmax.cuh"
#include "spec.cuh"
#include "tile_load.cuh"
#include "tile_math.cuh"
#include "types.cuh"
#include "work.cuh"

constexpr int WARPS = 4;
constexpr int BLOCKS = 2;  // at least, of a multiprocessor: ptxas takes registers before it spills
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ int round_up(int x, int unit) { return (x + unit - 1) / unit * unit; }

// T is what tiles hold, KV the cache: T is q's dtype, but float when a float cache has another one.
template <typename T, typename KV, int MT, int NS, int DU, typename S>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    attention_prefill_kernel(const S p) {
  constexpr int M = 16 * MT, N = 32 * NS, PAD = 16 / sizeof(T), ROWS = 2 * MT;
  extern __shared__ uint4 shared[];
  const WorkItem item = item_at(p.items, blockIdx.x);
  if (item.request < 0) return;
  const int kv_head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int seq_len = p.seq_lens[item.request], query = p.query_start[item.request];
  const int query_len = p.query_start[item.request + 1] - query;
  const int* table = p.block_table + item.request * p.table_row;
  const Visible<S> visible = visible_of(p, item.request, seq_len, query_len);

  // Shared memory: Q [M, stride], K [N, stride], V [N, v_stride] (or a second K, of which V is a
  // part), P [M, N + PAD], exchange [WARPS, M], slopes [M].
  const int width = round_up(p.head_dim(), 32), stride = width + PAD;
  const int v_width = round_up(p.head_dim_v(), 16);
  const int v_stride = p.shared_kv() ? stride : v_width + PAD;
  T* const q_tile = reinterpret_cast<T*>(shared);
  T* const k_tile = q_tile + M * stride;
  T* const v_tile = k_tile + N * stride;
  T* const weights = v_tile + N * v_stride;
  float* const exchange = reinterpret_cast<float*>(weights + M * (N + PAD));
  float* const slopes = exchange + WARPS * M;

  // This thread's rows are g and g + 8 of every 16. Rows beyond the last repeat it, and are not
  // stored.
  const int live_rows = min(query_len * p.group - item.first_row, M);
  const int first_row = item.first_row / p.group;
  const int last_row = (item.first_row + live_rows - 1) / p.group;
  int rows[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    rows[r] = min((item.first_row + r / 2 * 16 + r % 2 * 8 + g) / p.group, last_row);
  if (p.slopes() && threadIdx.x < M)
    slopes[threadIdx.x] = p.slopes()[kv_head * p.group + (item.first_row + threadIdx.x) % p.group];
  const int first = visible.begin(visible.own + first_row);
  const int last = visible.end(visible.own + last_row);
  // Tiles begin at multiples of N, so that a row meets the same sums in whatever tile it runs.
  const int begin = first / N * N + item.split * item.chunk;
  const int end = item.split == item.num_splits - 1 ? last : min(last, begin + item.chunk);

  for (int row = warp; row < M; row += WARPS) {
    const int packed = item.first_row + row;
    const long long at = (query + packed / p.group) * p.q_row +
                         (kv_head * p.group + packed % p.group) * p.q_head;
    load_row_of(p.q_dtype, q_tile + row * stride, row < live_rows ? p.q : nullptr, at, p.head_dim(),
                width, p.q_vectors, lane, 32);
  }
  float o[MT][DU][2][4] = {};
  float m[ROWS], l[ROWS];  // l: of this thread's own keys, summed over the warps at the end
#pragma unroll
  for (int r = 0; r < ROWS; ++r) { m[r] = NEG_INF; l[r] = 0.f; }
  const int units = v_width / 16;

  if (begin < end)
    load_keys<T, KV, N, KEYS>(p, table, kv_head, k_tile, stride, width, begin, first, last);
  copy_async_commit();
  int flip = 0;  // shared_kv: K alternates between the two tiles
  for (int start = begin; start < end; start += N, flip ^= 1) {
    T* const k_now = p.shared_kv() && flip ? v_tile : k_tile;
    T* const k_next = p.shared_kv() && !flip ? v_tile : k_tile;
    T* const v_now = p.shared_kv() ? k_now : v_tile;
    copy_async_wait<0>();
    __syncthreads();  // K is here (and Q, slopes); nobody reads V and P of the step before any more
    if (!p.shared_kv())
      load_keys<T, KV, N, VALUES>(p, table, kv_head, v_tile, v_stride, v_width, start, first, last);
    copy_async_commit();

    float s[MT][NS][4] = {};
    multiply_scores(s, q_tile, k_now + warp * 8 * NS * stride, stride, width, lane);
    // Score (i, j, c) is that of row rows[2i + c / 2] and key own_key + 8j + c % 2.
    const int own_key = start + warp * NS * 8 + 2 * t;
#define FOR_EACH_SCORE                                                                \
  _Pragma("unroll") for (int i = 0; i < MT; ++i)                                      \
  _Pragma("unroll") for (int j = 0; j < NS; ++j)                                      \
  _Pragma("unroll") for (int c = 0; c < 4; ++c)
    FOR_EACH_SCORE s[i][j][c] *= p.scale;
    if (p.softcap() != 0.f) { FOR_EACH_SCORE s[i][j][c] = capped(p, s[i][j][c]); }
    if (p.slopes()) {
      FOR_EACH_SCORE {
        const int distance = own_key + 8 * j + c % 2 - visible.own - rows[2 * i + c / 2];
        s[i][j][c] += bias(p, slopes[i * 16 + c / 2 * 8 + g], distance);
      }
    }
    if (!visible.all(first_row, last_row, start, start + N)) {
      FOR_EACH_SCORE {
        if (!visible(rows[2 * i + c / 2], own_key + 8 * j + c % 2)) s[i][j][c] = NEG_INF;
      }
    }
    float top[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) top[r] = NEG_INF;
    FOR_EACH_SCORE top[2 * i + c / 2] = fmaxf(top[2 * i + c / 2], s[i][j][c]);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(ALL_LANES, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(ALL_LANES, top[r], 2));
      if (t == 0) exchange[warp * M + r / 2 * 16 + r % 2 * 8 + g] = top[r];
    }
    __syncthreads();
    float keep[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      top[r] = m[r];
#pragma unroll
      for (int w = 0; w < WARPS; ++w)
        top[r] = fmaxf(top[r], exchange[w * M + r / 2 * 16 + r % 2 * 8 + g]);
      keep[r] = __expf(m[r] - base_of(top[r]));
      m[r] = top[r];
      l[r] *= keep[r];
    }
    FOR_EACH_SCORE {
      s[i][j][c] = __expf(s[i][j][c] - base_of(m[2 * i + c / 2]));
      l[2 * i + c / 2] += s[i][j][c];
      if (c % 2)
        store_pair(weights + (i * 16 + c / 2 * 8 + g) * (N + PAD) + own_key - start + 8 * j,
                   s[i][j][c - 1], s[i][j][c]);
    }
#undef FOR_EACH_SCORE
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
      for (int u = 0; u < DU; ++u)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int c = 0; c < 4; ++c) o[i][u][h][c] *= keep[i * 2 + c / 2];
    copy_async_wait<0>();
    __syncthreads();  // V and P are here; nobody reads K any more (unless V is a part of it)
    if (start + N < end)
      load_keys<T, KV, N, KEYS>(p, table, kv_head, k_next, stride, width, start + N, first, last);
    copy_async_commit();
    multiply_values<N>(o, weights, N + PAD, v_now, v_stride, units, warp, lane);
  }

  // The sums of the four lanes of a row, then of the warps.
  copy_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    l[r] += __shfl_xor_sync(ALL_LANES, l[r], 1);
    l[r] += __shfl_xor_sync(ALL_LANES, l[r], 2);
    if (t == 0) exchange[warp * M + r / 2 * 16 + r % 2 * 8 + g] = l[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int in_tile = r / 2 * 16 + r % 2 * 8 + g, packed = item.first_row + in_tile;
    if (in_tile >= live_rows) continue;
    State state = {m[r], 0.f};
#pragma unroll
    for (int w = 0; w < WARPS; ++w) state.l += exchange[w * M + in_tile];
    const int head = kv_head * p.group + packed % p.group;
    const long long token = query + packed / p.group;
    const bool whole = item.num_splits == 1;
    const long long partial = partial_row(p, item.slot + item.split, kv_head, in_tile);
    Ending e = {1.f, 0.f};
    if (whole) e = ending(state, p.sinks ? p.sinks[head] : NEG_INF);
    if (warp == 0 && t == 0) {
      if (!whole) {
        p.partial_state[partial * 2] = state.m;
        p.partial_state[partial * 2 + 1] = state.l;
      } else if (p.lse) {
        p.lse[token * p.num_kv_heads * p.group + head] = e.lse;
      }
    }
#pragma unroll
    for (int u = 0; u < DU; ++u)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = (u * 4 + warp) * 16 + h * 8 + 2 * t + c;
          if (column >= p.head_dim_v()) continue;
          const float x = o[r / 2][u][h][r % 2 * 2 + c] * e.factor;
          if (whole)
            store_from_float(p.out, token * p.out_row + head * p.out_head + column, p.out_dtype, x);
          else
            p.partial_out[partial * p.head_dim_v() + column] = x;
        }
  }
}
