// Work items: the host cuts a step into pieces, a thread block computes one for one KV head.
//
// The query rows of a request and the heads of a KV head's group are packed: packed row
// i * group + g is query row i, head kv_head * group + g. All of them read the same keys.
#pragma once

#include "params.cuh"

constexpr int ITEM_INTS = 8;

struct WorkItem {
  int request;     // negative: nothing to do (the grid of a captured graph is the largest one)
  int first_row;   // packed row
  int split;       // this piece's number among
  int num_splits;  // the pieces that the keys of these rows are cut into
  int chunk;       // keys of a piece
  int slot;        // of the first piece's partial result
};

__device__ __forceinline__ WorkItem item_at(const int* items, int index) {
  const int* x = items + (long long)index * ITEM_INTS;
  return {x[0], x[1], x[2], x[3], x[4], x[5]};
}

// Row of partial_out and partial_state that a piece writes for a packed row of its tile.
__device__ __forceinline__ long long partial_row(
    const AttentionParams& p, int slot, int kv_head, int row) {
  return ((long long)slot * p.num_kv_heads + kv_head) * p.rows + row;
}
