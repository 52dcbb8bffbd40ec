// Bringing rows of q, K and V into shared memory as tiles of T, padded with zeros.
//
// A row takes `lanes` neighbouring lanes, 16 bytes a lane at a time. Keys outside [first, last) are
// zero whatever the pool holds there: their weight is 0, and 0 * NaN would be NaN.
#pragma once

#include "async_copy.cuh"
#include "paging.cuh"
#include "spec.cuh"
#include "types.cuh"

// The lanes of a row of `vectors` vectors: a power of two, at most a warp.
__device__ __forceinline__ int lanes_for(int vectors) {
  return vectors <= 1 ? 1 : vectors > 16 ? 32 : 1 << (32 - __clz(vectors - 1));
}

// 16 numbers as T, to 16-byte aligned shared memory.
__device__ __forceinline__ void store_16(float* to, const float (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    reinterpret_cast<float4*>(to)[i] =
        make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}
template <typename T> __device__ __forceinline__ void store_16(T* to, const float (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint4 words;
    words.x = pack_pair(x[8 * i], x[8 * i + 1], T());
    words.y = pack_pair(x[8 * i + 2], x[8 * i + 3], T());
    words.z = pack_pair(x[8 * i + 4], x[8 * i + 5], T());
    words.w = pack_pair(x[8 * i + 6], x[8 * i + 7], T());
    reinterpret_cast<uint4*>(to)[i] = words;
  }
}

// 16 bytes of shared memory from the first `count` numbers at `from`; the rest is zero.
template <typename T>
__device__ __forceinline__ void load_vector(T* to, const T* from, int count, int vectors) {
  constexpr int SIZE = 16 / sizeof(T);
  if (count == 0) {
    *reinterpret_cast<uint4*>(to) = make_uint4(0u, 0u, 0u, 0u);
  } else if (vectors) {
    copy_async_16(to, from, count * (int)sizeof(T));
  } else {
#pragma unroll
    for (int i = 0; i < SIZE; ++i) to[i] = i < count ? from[i] : T();
  }
}

// One row of `width` numbers at `from` (null: none), `padded` columns wide in shared memory.
template <typename T>
__device__ __forceinline__ void load_row(
    T* to, const T* from, int width, int padded, int vectors, int lane, int lanes) {
  constexpr int SIZE = 16 / sizeof(T);
  for (int column = lane * SIZE; column < padded; column += lanes * SIZE)
    load_vector(to + column, from ? from + column : nullptr,
                from ? min(max(width - column, 0), SIZE) : 0, vectors);
}

// The same from numbers of another type, times `scale`, rounded to T.
template <typename T, typename From>
__device__ __forceinline__ void load_converted_row(
    T* to, const From* from, float scale, int width, int padded, int vectors, int lane, int lanes) {
  for (int column = lane * 16; column < padded; column += lanes * 16) {
    const int count = from ? min(max(width - column, 0), 16) : 0;
    float x[16];
    if constexpr (sizeof(From) == 1) {
      const unsigned char* bytes = reinterpret_cast<const unsigned char*>(from) + column;
      uint4 raw = make_uint4(0u, 0u, 0u, 0u);
      if (vectors && count == 16) {
        raw = *reinterpret_cast<const uint4*>(bytes);
      } else if (count) {
        unsigned words[4] = {0u, 0u, 0u, 0u};
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (i < count) words[i / 4] |= (unsigned)bytes[i] << (i % 4 * 8);
        raw = make_uint4(words[0], words[1], words[2], words[3]);
      }
      unpack(raw, x, From());
    } else {
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        float y[4];
        load_4(from, column + i, count - i, dtype_of(From()), vectors, y);
#pragma unroll
        for (int c = 0; c < 4; ++c) x[i + c] = y[c];
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] *= scale;
    store_16(to + column, x);
  }
}

// The same from numbers of a float dtype known at run time, `index` of them behind `base` (null:
// none). Tiles of 16 bits are of that very dtype.
template <typename T>
__device__ __forceinline__ void load_row_of(
    int dtype, T* to, const void* base, long long index, int width, int padded, int vectors,
    int lane, int lanes) {
  if (sizeof(T) == 2 || dtype == FLOAT32)
    load_row(to, base ? static_cast<const T*>(base) + index : nullptr, width, padded, vectors, lane,
             lanes);
  else if (dtype == FLOAT16)
    load_converted_row(to, base ? static_cast<const f16*>(base) + index : nullptr, 1.f, width,
                       padded, vectors, lane, lanes);
  else
    load_converted_row(to, base ? static_cast<const bf16*>(base) + index : nullptr, 1.f, width,
                       padded, vectors, lane, lanes);
}

enum Which { KEYS, VALUES };

// Keys [start, start + N) of a request, in the cache as KV, into `to` [N, stride].
template <typename T, typename KV, int N, Which WHICH, typename S>
__device__ __forceinline__ void load_keys(
    const S& p, const int* table, int kv_head, T* to, int stride, int padded, int start, int first,
    int last) {
  const int width = WHICH == KEYS ? p.head_dim() : p.head_dim_v();
  const int vectors = WHICH == KEYS ? p.k_vectors : p.v_vectors;
  const KV* pool = static_cast<const KV*>(WHICH == KEYS ? p.k : p.v);
  constexpr bool SAME = SAME_TYPE<T, KV>;
  constexpr int SIZE = SAME ? 16 / sizeof(T) : 16;
  const int lanes = lanes_for((padded + SIZE - 1) / SIZE);
  const int lane = threadIdx.x % lanes;
  for (int row = threadIdx.x / lanes; row < N; row += blockDim.x / lanes) {
    const int key = start + row;
    const bool live = key >= first && key < last;
    Slot slot = {0, 0};
    if (live) slot = slot_of(p, table, key);
    const long long at = WHICH == KEYS ? k_index(p, slot, kv_head) : v_index(p, slot, kv_head);
    const KV* from = live ? pool + at : nullptr;
    if constexpr (SAME) {
      load_row(to + row * stride, from, width, padded, vectors, lane, lanes);
    } else {
      float scale = 1.f;
      if (sizeof(KV) == 1 && live)
        scale = WHICH == KEYS ? k_scale_at(p, slot, kv_head) : v_scale_at(p, slot, kv_head);
      load_converted_row(to + row * stride, from, scale, width, padded, vectors, lane, lanes);
    }
  }
}
