// Tiles of 16-bit numbers in the 128-byte swizzle that wgmma reads without bank conflicts.
//
// A tile [ROWS, D] is D / 64 slabs of ROWS rows of 128 bytes. Vector v (16 bytes) of a row lies at
// v ^ row % 8, which the hardware undoes when slabs start at multiples of 1024 bytes.
#pragma once

#include "tile_load.cuh"

constexpr int SWIZZLED_ROW = 128;     // bytes
constexpr int SWIZZLED_GROUP = 1024;  // of 8 rows

// Bytes from the tile's start to 16-byte vector `vector` of a row.
template <int ROWS> __device__ __forceinline__ int swizzled(int row, int vector) {
  return (vector / 8 * ROWS + row) * SWIZZLED_ROW + ((vector ^ row) & 7) * 16;
}

// The first multiple of 1024 bytes at or behind `shared`.
__device__ __forceinline__ char* swizzle_aligned(void* shared) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(shared);
  return static_cast<char*>(shared) + (-address & (SWIZZLED_GROUP - 1));
}

// Keys [start, start + N) of a request into the tile `to` [N, D]; zeros outside [first, last).
template <typename T, int D, int N, Which WHICH, typename S>
__device__ __forceinline__ void load_swizzled_keys(
    const S& p, const int* table, int kv_head, char* to, int start, int first, int last) {
  constexpr int SIZE = 16 / sizeof(T), VECTORS = D / SIZE;
  const T* const pool = static_cast<const T*>(WHICH == KEYS ? p.k : p.v);
  const int vectors = WHICH == KEYS ? p.k_vectors : p.v_vectors;
  const int vector = threadIdx.x % VECTORS;
  for (int row = threadIdx.x / VECTORS; row < N; row += blockDim.x / VECTORS) {
    const int key = start + row;
    const bool live = key >= first && key < last;
    Slot slot = {0, 0};
    if (live) slot = slot_of(p, table, key);
    const long long at = WHICH == KEYS ? k_index(p, slot, kv_head) : v_index(p, slot, kv_head);
    load_vector(reinterpret_cast<T*>(to + swizzled<N>(row, vector)), pool + at + vector * SIZE,
                live ? SIZE : 0, vectors);
  }
}
