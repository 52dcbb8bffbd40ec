// Which keys a row sees, and what is done to a score before the softmax.
//
// Query row i of a request sits at position p = seq_len - query_len + i, which may be negative.
#pragma once

#include "spec.cuh"
#include "types.cuh"

// Key j is visible to the row at position p iff j < seq_len and low <= j - p <= high; with a tree,
// of the step's own keys only those whose bit is set.
template <typename S>
struct Visible {
  int seq_len;
  int low;
  int high;
  int own;                    // the step's first own key
  int query_len;
  const unsigned char* tree;  // the request's bits, or null

  // No row sees a key behind itself, and so none behind the last key.
  static constexpr bool CAUSAL_ALONE = !S::may(BIDIRECTIONAL) && !S::may(TREES);

  __device__ __forceinline__ int begin(int position) const {
    return position > -low ? position + low : 0;
  }
  __device__ __forceinline__ int end(int position) const {
    return position >= seq_len - high ? seq_len : position + high + 1;
  }
  // `row` counts the request's query rows.
  __device__ __forceinline__ bool operator()(int row, int key) const {
    const int distance = key - (own + row);
    bool seen = distance <= high;
    if (S::may(WINDOW)) seen = seen && distance >= low;
    if (!CAUSAL_ALONE) seen = seen && key < seq_len;
    if (tree && seen && key >= own) seen = bit(row, key - own);
    return seen;
  }
  // Whether every row of [first, last] sees every key of [start, end).
  __device__ __forceinline__ bool all(int first, int last, int start, int end) const {
    const int lowest = start - (own + last), highest = end - 1 - (own + first);
    bool seen = !tree && highest <= high;
    if (S::may(WINDOW)) seen = seen && lowest >= low;
    if (!CAUSAL_ALONE) seen = seen && end <= seq_len;
    return seen;
  }
  // Bit row * query_len + column of the request's bytes, lowest bit first.
  __device__ __forceinline__ bool bit(int row, int column) const {
    const long long index = (long long)row * query_len + column;
    return tree[index >> 3] >> (index & 7) & 1;
  }
};

template <typename S>
__device__ __forceinline__ Visible<S> visible_of(
    const S& p, int request, int seq_len, int query_len) {
  Visible<S> v;
  v.seq_len = seq_len;
  v.query_len = query_len;
  v.own = seq_len - query_len;
  v.low = S::may(WINDOW) ? -p.window_left : -UNBOUNDED;
  v.high = p.bidirectional() ? p.window_right : 0;
  v.tree = nullptr;
  if (p.trees() && p.tree_indptr[request] != p.tree_indptr[request + 1]) {
    v.tree = p.tree_mask + p.tree_indptr[request];
    v.high = UNBOUNDED;
  }
  return v;
}

// softcap after scale, before everything else.
template <typename S> __device__ __forceinline__ float capped(const S& p, float score) {
  return p.softcap() * tanhf(score / p.softcap());
}

// The ALiBi bias; `distance` is key position - row position.
template <typename S>
__device__ __forceinline__ float bias(const S& p, float slope, int distance) {
  return slope * (float)(p.bidirectional() ? -abs(distance) : distance);
}
