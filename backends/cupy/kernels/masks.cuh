// Which keys a row sees, and what is done to a score before the softmax.
//
// Query row i of a request sits at position p = seq_len - query_len + i, which may be negative.
#pragma once

#include "params.cuh"
#include "types.cuh"

constexpr int UNBOUNDED = 0x7fffffff;

enum MaskKind { CAUSAL = 0, FULL = 1, TREE = 2 };

// Key j is visible to the row at position p iff j < seq_len and low <= j - p <= high; with a tree,
// of the step's own keys only those whose bit is set.
struct Visible {
  int seq_len;
  int low;
  int high;
  int own;                    // the step's first own key
  int query_len;
  const unsigned char* tree;  // the request's bits, or null

  __device__ __forceinline__ int begin(int position) const {
    return position > -low ? position + low : 0;
  }
  __device__ __forceinline__ int end(int position) const {
    return position >= seq_len - high ? seq_len : position + high + 1;
  }
  // `row` counts the request's query rows.
  __device__ __forceinline__ bool operator()(int row, int key) const {
    const int distance = key - (own + row);
    bool seen = key < seq_len && distance >= low && distance <= high;
    if (tree && seen && key >= own) seen = bit(row, key - own);
    return seen;
  }
  // Whether every row of [first, last] sees every key of [start, end).
  __device__ __forceinline__ bool all(int first, int last, int start, int end) const {
    const int lowest = start - (own + last), highest = end - 1 - (own + first);
    return !tree && end <= seq_len && lowest >= low && highest <= high;
  }
  // Bit row * query_len + column of the request's bytes, lowest bit first.
  __device__ __forceinline__ bool bit(int row, int column) const {
    const long long index = (long long)row * query_len + column;
    return tree[index >> 3] >> (index & 7) & 1;
  }
};

__device__ __forceinline__ Visible visible_of(
    const AttentionParams& p, int request, int seq_len, int query_len) {
  Visible v;
  v.seq_len = seq_len;
  v.query_len = query_len;
  v.own = seq_len - query_len;
  v.low = -p.window_left;
  v.high = p.mask == FULL ? p.window_right : 0;
  v.tree = nullptr;
  if (p.mask == TREE && p.tree_indptr[request] != p.tree_indptr[request + 1]) {
    v.tree = p.tree_mask + p.tree_indptr[request];
    v.high = UNBOUNDED;
  }
  return v;
}

// softcap after scale, before everything else.
__device__ __forceinline__ float capped(const AttentionParams& p, float score) {
  return p.softcap * tanhf(score / p.softcap);
}

// The ALiBi bias; `distance` is key position - row position.
__device__ __forceinline__ float bias(const AttentionParams& p, float slope, int distance) {
  return slope * (float)(p.mask == FULL ? -abs(distance) : distance);
}
