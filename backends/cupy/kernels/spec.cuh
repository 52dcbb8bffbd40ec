// What an instantiation knows of a spec beforehand: the params, some of them constants.
//
// A field that may be known is a function here, which hides the field: it gives the constant where
// there is one, else what the host has filled in. What stands behind a constant "no" is not
// compiled, so that a loop holds only branches that may be taken.
//
//   D        the width of K and of V; 0: any, also two different ones
//   BLOCK    block_size; 0: any
//   OPTIONS  a set of Option. One in it may be there, and is looked for at run time; all others are
//            known to be absent. A larger set is therefore as right as a smaller one.
//
// instances.py takes these from the spec that op.py fills the fields from.
#pragma once

#include "params.cuh"

constexpr int UNBOUNDED = 0x7fffffff;

enum MaskKind { CAUSAL = 0, FULL = 1, TREE = 2 };

enum Option : unsigned {
  NONE = 0,
  WINDOW = 1 << 0,         // a left bound
  BIDIRECTIONAL = 1 << 1,  // mask == FULL, which alone has a right bound
  TREES = 1 << 2,          // mask == TREE
  SOFTCAP = 1 << 3,
  SLOPES = 1 << 4,         // ALiBi
  TOKEN_SCALES = 1 << 5,   // one for each token and head
  SHARED_KV = 1 << 6,
  ANY = (1 << 7) - 1
};

template <int D, int BLOCK, unsigned OPTIONS>
struct Spec : AttentionParams {
  using Fields = AttentionParams;
  static constexpr int HEAD_DIM = D;

  static __device__ __forceinline__ constexpr bool may(Option option) {
    return (OPTIONS & option) != 0;
  }
  __device__ __forceinline__ int head_dim() const { return D ? D : Fields::head_dim; }
  __device__ __forceinline__ int head_dim_v() const { return D ? D : Fields::head_dim_v; }
  __device__ __forceinline__ int block_size() const { return BLOCK ? BLOCK : Fields::block_size; }
  // position / block_size, exact below 2^31: multiplier = ceil(2^shift / block_size).
  __device__ __forceinline__ int block_of(int position) const {
    if constexpr (BLOCK != 0)
      return (int)((unsigned)position / BLOCK);
    else
      return (int)((unsigned long long)(unsigned)position * block_multiplier >> block_shift);
  }
  __device__ __forceinline__ bool bidirectional() const {
    return may(BIDIRECTIONAL) && mask == FULL;
  }
  __device__ __forceinline__ bool trees() const { return may(TREES) && mask == TREE; }
  __device__ __forceinline__ float softcap() const { return may(SOFTCAP) ? Fields::softcap : 0.f; }
  __device__ __forceinline__ const float* slopes() const {
    return may(SLOPES) ? Fields::slopes : nullptr;
  }
  __device__ __forceinline__ bool scale_per_token() const {
    return may(TOKEN_SCALES) && Fields::scale_per_token;
  }
  __device__ __forceinline__ bool shared_kv() const { return may(SHARED_KV) && Fields::shared_kv; }
};
