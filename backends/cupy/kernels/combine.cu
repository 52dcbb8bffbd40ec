// Joins the pieces of split requests: out = sum_s exp(m_s - m) o_s / l, l = sum_s exp(m_s - m) l_s.
//
// A warp takes one packed row; the sink, which belongs to no piece, is added here. An entry of
// p.joins is a work item with the pieces' first slot, in the fields of WorkItem (split is 0).
//
// grid (joins, Hkv), block (128).
#include "params.cuh"
#include "softmax.cuh"
#include "types.cuh"
#include "work.cuh"

constexpr unsigned ALL_LANES = 0xffffffffu;

__global__ void __launch_bounds__(128) attention_combine_kernel(const AttentionParams p) {
  const WorkItem item = item_at(p.joins, blockIdx.x);
  if (item.request < 0) return;
  const int kv_head = blockIdx.y, lane = threadIdx.x % 32;
  const int query = p.query_start[item.request];
  const int query_len = p.query_start[item.request + 1] - query;
  const int live_rows = min(query_len * p.group - item.first_row, p.rows);
  for (int row = threadIdx.x / 32; row < live_rows; row += blockDim.x / 32) {
    const int packed = item.first_row + row, head = kv_head * p.group + packed % p.group;
    const long long token = query + packed / p.group;
    State state = {NEG_INF, 0.f};
    for (int s = lane; s < item.num_splits; s += 32) {
      const long long at = partial_row(p, item.slot + s, kv_head, row) * 2;
      state = joined(state, {p.partial_state[at], p.partial_state[at + 1]});
    }
    for (int o = 16; o > 0; o /= 2)
      state = joined(state, {__shfl_xor_sync(ALL_LANES, state.m, o),
                             __shfl_xor_sync(ALL_LANES, state.l, o)});
    const Ending e = ending(state, p.sinks ? p.sinks[head] : NEG_INF);
    if (lane == 0 && p.lse) p.lse[token * p.num_kv_heads * p.group + head] = e.lse;
    const float base = base_of(state.m);
    for (int column = lane; column < p.head_dim_v; column += 32) {
      float total = 0.f;
      for (int s = 0; s < item.num_splits; ++s) {
        const long long at = partial_row(p, item.slot + s, kv_head, row);
        total += __expf(p.partial_state[at * 2] - base) * p.partial_out[at * p.head_dim_v + column];
      }
      store_from_float(p.out, token * p.out_row + head * p.out_head + column, p.out_dtype,
                       total * e.factor);
    }
  }
}
