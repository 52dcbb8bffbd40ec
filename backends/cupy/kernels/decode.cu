// Decode: one query row a request and small groups. The heads of a group share one read of K and V.
//
// A token's head takes `lanes` neighbouring lanes of a warp, 16 bytes a lane (VECTORS times). Every
// lane copies ahead what it will read itself (cp.async, STAGES deep), so the loop has no barrier:
// dot products are reduced by shuffles, each set of lanes keeps a running softmax of its own, and
// these are joined at the end, within the warp, between the warps, and by combine.cu between the
// pieces of a request.
//
// GROUP is the exact size of a group. The mask is not looked at: the only row is the last one, and
// of no tree (prefill.cu takes those), so it sees every key that its window has not left behind.
//
// grid (items, Hkv), block (32 * WARPS), dynamic shared memory: heuristics.py says how much.
#include "async_copy.cuh"
#include "masks.cuh"
#include "paging.cuh"
#include "softmax.cuh"
#include "spec.cuh"
#include "types.cuh"
#include "work.cuh"

constexpr int WARPS = 4;
constexpr int TOKENS = 2;  // of a set of lanes and step
constexpr int STAGES = 3;
constexpr unsigned ALL_LANES = 0xffffffffu;

// 16 bytes of a pool row from `column` on; what lies beyond `width` is zero.
template <typename KV>
__device__ __forceinline__ void fetch(
    uint4* shared, const KV* row, int column, int width, int vectors) {
  constexpr int SIZE = 16 / sizeof(KV);
  const int count = min(max(width - column, 0), SIZE);
  if (vectors) {
    copy_async_16(shared, count ? row + column : row, count * (int)sizeof(KV));
  } else {
    KV* to = reinterpret_cast<KV*>(shared);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) to[i] = i < count ? row[column + i] : KV();
  }
}

// Blocks that a multiprocessor shall hold at least: ptxas takes registers before it spills. A lane
// keeps q and the sums, and up to 64 registers beside them; there are 65536.
template <typename KV, int GROUP, int VECTORS>
constexpr int BLOCKS = 65536 / (WARPS * 32) / (64 + 2 * GROUP * VECTORS * 16 / (int)sizeof(KV));

template <typename KV, int GROUP, int VECTORS, typename S>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS<KV, GROUP, VECTORS>)
    attention_decode_kernel(const S p) {
  constexpr int SIZE = 16 / sizeof(KV);
  constexpr bool QUANTISED = sizeof(KV) == 1;
  extern __shared__ uint4 shared[];
  const WorkItem item = item_at(p.items, blockIdx.x);
  if (item.request < 0) return;
  const int kv_head = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int seq_len = p.seq_lens[item.request], query = p.query_start[item.request];
  const int* table = p.block_table + item.request * p.table_row;
  const int position = seq_len - 1, first = position > p.window_left ? position - p.window_left : 0;

  // Lanes of a token: the least power of two that covers its vectors.
  const int needed = (max(p.head_dim(), p.head_dim_v()) + SIZE * VECTORS - 1) / (SIZE * VECTORS);
  const int lanes = needed <= 1 ? 1 : 1 << (32 - __clz(needed - 1));
  const int sets = 32 / lanes;  // tokens that a warp reads at once
  const int set = lane / lanes, mine = lane % lanes;

  const int begin = first + item.split * item.chunk;
  const int end = item.split == item.num_splits - 1 ? seq_len : min(seq_len, begin + item.chunk);
  const int stride = TOKENS * WARPS * sets;  // tokens of a step
  const int steps = end > begin ? (end - begin + stride - 1) / stride : 0;
  auto token_at = [&](int step, int u) {
    return begin + ((step * TOKENS + u) * WARPS + warp) * sets + set;
  };
  auto place = [&](int stage, int u, int vector, int of_v) {
    return shared + (((stage * TOKENS + u) * VECTORS + vector) * 2 + of_v) * (WARPS * 32) +
           threadIdx.x;
  };
  auto issue = [&](int step) {
    if (step < steps) {
      const int stage = step % STAGES;
#pragma unroll
      for (int u = 0; u < TOKENS; ++u) {
        const int token = token_at(step, u);
        const KV *k = static_cast<const KV*>(p.k), *v = static_cast<const KV*>(p.v);
        if (token < end) {
          const Slot slot = slot_of(p, table, token);
          k += k_index(p, slot, kv_head);
          v += v_index(p, slot, kv_head);
        }
#pragma unroll
        for (int e = 0; e < VECTORS; ++e) {
          const int column = (mine + e * lanes) * SIZE;
          fetch(place(stage, u, e, 0), k, column, token < end ? p.head_dim() : 0, p.k_vectors);
          if (!p.shared_kv())
            fetch(place(stage, u, e, 1), v, column, token < end ? p.head_dim_v() : 0, p.v_vectors);
        }
      }
    }
    copy_async_commit();
  };
  float k_scale = 1.f, v_scale = 1.f;  // of the head, or 1 when every token has its own
  if (QUANTISED && !p.scale_per_token()) {
    k_scale = k_scale_at(p, {0, 0}, kv_head);
    v_scale = v_scale_at(p, {0, 0}, kv_head);
  }
  float token_scale[TOKENS][2], next_scale[TOKENS][2];
  auto load_scales = [&](int step, float (&to)[TOKENS][2]) {
#pragma unroll
    for (int u = 0; u < TOKENS; ++u) {
      to[u][0] = to[u][1] = 1.f;
      const int token = token_at(step, u);
      if (p.scale_per_token() && token < end) {
        const Slot slot = slot_of(p, table, token);
        to[u][0] = k_scale_at(p, slot, kv_head);
        to[u][1] = v_scale_at(p, slot, kv_head);
      }
    }
  };

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) issue(s);
  load_scales(0, token_scale);

  float q[GROUP][VECTORS][SIZE], sum[GROUP][VECTORS][SIZE], slope[GROUP];
  State state[GROUP];
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    const long long at = query * p.q_row + (kv_head * GROUP + g) * p.q_head;
    state[g] = {NEG_INF, 0.f};
    slope[g] = p.slopes() ? p.slopes()[kv_head * GROUP + g] : 0.f;
#pragma unroll
    for (int e = 0; e < VECTORS; ++e)
#pragma unroll
      for (int i = 0; i < SIZE; i += 4) {
        const int column = (mine + e * lanes) * SIZE + i;
        float x[4];
        load_4(p.q, at + column, p.head_dim() - column, p.q_dtype, p.q_vectors, x);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sum[g][e][i + c] = 0.f;
          q[g][e][i + c] = x[c];
        }
      }
  }

  for (int step = 0; step < steps; ++step) {
    issue(step + STAGES - 1);
    load_scales(step + 1, next_scale);
    copy_async_wait<STAGES - 1>();
    const int stage = step % STAGES;
    float score[TOKENS][GROUP];
#pragma unroll
    for (int u = 0; u < TOKENS; ++u) {
#pragma unroll
      for (int g = 0; g < GROUP; ++g) score[u][g] = 0.f;
#pragma unroll
      for (int e = 0; e < VECTORS; ++e) {
        float k[SIZE];
        unpack(*place(stage, u, e, 0), k, KV());
#pragma unroll
        for (int g = 0; g < GROUP; ++g)
#pragma unroll
            for (int i = 0; i < SIZE; ++i) score[u][g] += q[g][e][i] * k[i];
      }
    }
    for (int o = lanes / 2; o > 0; o /= 2)
#pragma unroll
      for (int u = 0; u < TOKENS; ++u)
#pragma unroll
        for (int g = 0; g < GROUP; ++g) score[u][g] += __shfl_xor_sync(ALL_LANES, score[u][g], o);

#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      float top = state[g].m;
#pragma unroll
      for (int u = 0; u < TOKENS; ++u) {
        const int token = token_at(step, u);
        float x = score[u][g] * (k_scale * token_scale[u][0]) * p.scale;
        if (p.softcap() != 0.f) x = capped(p, x);
        if (p.slopes()) x += slope[g] * (float)(token - position);
        score[u][g] = token < end ? x : NEG_INF;
        top = fmaxf(top, score[u][g]);
      }
      const float keep = __expf(state[g].m - base_of(top));
      state[g].m = top;
      state[g].l *= keep;
#pragma unroll
      for (int e = 0; e < VECTORS; ++e)
#pragma unroll
        for (int i = 0; i < SIZE; ++i) sum[g][e][i] *= keep;
#pragma unroll
      for (int u = 0; u < TOKENS; ++u) {
        const float weight = __expf(score[u][g] - base_of(top));
        state[g].l += weight;
        score[u][g] = weight * (v_scale * token_scale[u][1]);
      }
    }
#pragma unroll
    for (int u = 0; u < TOKENS; ++u)
#pragma unroll
      for (int e = 0; e < VECTORS; ++e) {
        float v[SIZE];
        unpack(*place(stage, u, e, !p.shared_kv()), v, KV());
#pragma unroll
        for (int g = 0; g < GROUP; ++g)
#pragma unroll
            for (int i = 0; i < SIZE; ++i) sum[g][e][i] += score[u][g] * v[i];
      }
#pragma unroll
    for (int u = 0; u < TOKENS; ++u) {
      token_scale[u][0] = next_scale[u][0];
      token_scale[u][1] = next_scale[u][1];
    }
  }

  // Join the sets of the warp ...
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    for (int o = lanes; o < 32; o *= 2) {
      const State other = {__shfl_xor_sync(ALL_LANES, state[g].m, o),
                           __shfl_xor_sync(ALL_LANES, state[g].l, o)};
      const State both = joined(state[g], other);
      const float own = __expf(state[g].m - base_of(both.m));
      const float others = __expf(other.m - base_of(both.m));
      state[g] = both;
#pragma unroll
      for (int e = 0; e < VECTORS; ++e)
#pragma unroll
        for (int i = 0; i < SIZE; ++i)
          sum[g][e][i] = sum[g][e][i] * own +
                         __shfl_xor_sync(ALL_LANES, sum[g][e][i], o) * others;
    }
  }
  // ... and the warps, through the memory that the copies no longer need.
  copy_async_wait<0>();
  __syncthreads();
  State* states = reinterpret_cast<State*>(shared);                        // [WARPS, GROUP]
  float* sums = reinterpret_cast<float*>(states + WARPS * GROUP);          // [WARPS, GROUP, Dv]
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    if (set) continue;
    if (mine == 0) states[warp * GROUP + g] = state[g];
#pragma unroll
    for (int e = 0; e < VECTORS; ++e)
#pragma unroll
      for (int i = 0; i < SIZE; ++i) {
        const int column = (mine + e * lanes) * SIZE + i;
        if (column < p.head_dim_v())
          sums[(warp * GROUP + g) * p.head_dim_v() + column] = sum[g][e][i];
      }
  }
  __syncthreads();
  for (int index = threadIdx.x; index < GROUP * p.head_dim_v(); index += WARPS * 32) {
    const int g = index / p.head_dim_v(), column = index - g * p.head_dim_v();
    State whole = states[g];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) whole = joined(whole, states[w * GROUP + g]);
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w)
      total += __expf(states[w * GROUP + g].m - base_of(whole.m)) *
               sums[(w * GROUP + g) * p.head_dim_v() + column];
    const int head = kv_head * GROUP + g;
    if (item.num_splits == 1) {
      const Ending e = ending(whole, p.sinks ? p.sinks[head] : NEG_INF);
      store_from_float(p.out, query * p.out_row + head * p.out_head + column, p.out_dtype,
                       total * e.factor);
      if (column == 0 && p.lse)
        p.lse[(long long)query * p.num_kv_heads * GROUP + head] = e.lse;
    } else {
      const long long at = partial_row(p, item.slot + item.split, kv_head, g);
      p.partial_out[at * p.head_dim_v() + column] = total;
      if (column == 0) {
        p.partial_state[at * 2] = whole.m;
        p.partial_state[at * 2 + 1] = whole.l;
      }
    }
  }
}
