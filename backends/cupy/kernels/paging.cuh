// Where a key lies: position j of a request is slot j % block_size of block table[j / block_size].
#pragma once

#include "spec.cuh"

struct Slot {
  long long block;
  int offset;
};

// `table` is the request's row of the block table. Only called for keys that some row sees.
template <typename S>
__device__ __forceinline__ Slot slot_of(const S& p, const int* table, int position) {
  const int column = p.block_of(position);
  return {table[column], position - column * p.block_size()};
}

__device__ __forceinline__ long long k_index(const AttentionParams& p, Slot s, int kv_head) {
  return s.block * p.k_block + s.offset * p.k_slot + kv_head * p.k_head;
}
__device__ __forceinline__ long long v_index(const AttentionParams& p, Slot s, int kv_head) {
  return s.block * p.v_block + s.offset * p.v_slot + kv_head * p.v_head;
}
__device__ __forceinline__ float k_scale_at(const AttentionParams& p, Slot s, int kv_head) {
  return p.k_scale[s.block * p.k_scale_block + s.offset * p.k_scale_slot +
                   kv_head * p.k_scale_head];
}
__device__ __forceinline__ float v_scale_at(const AttentionParams& p, Slot s, int kv_head) {
  return p.v_scale[s.block * p.v_scale_block + s.offset * p.v_scale_slot +
                   kv_head * p.v_scale_head];
}
