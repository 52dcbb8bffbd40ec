// What the host hands to a kernel, by value. params.py reads these structs: they are the one
// definition of the layout. Strides count elements. Shape letters: T rows of q, B requests, Hq and
// Hkv heads, D and Dv head widths, N blocks, M columns of the block table.
#pragma once

struct AttentionParams {
  const void* q;               // [T, Hq, D]
  const void* k;               // [N, block_size, Hkv, D]
  const void* v;               // [N, block_size, Hkv, Dv]; k when shared_kv
  void* out;                   // [T, Hq, Dv]
  float* lse;                  // [T, Hq], or null
  const float* sinks;          // [Hq], or null
  const float* slopes;         // [Hq], or null
  const float* k_scale;        // null without quantisation; strides of 0 repeat a value
  const float* v_scale;
  const int* block_table;      // [B, M]
  const int* query_start;      // [B + 1]
  const int* seq_lens;         // [B]
  const unsigned char* tree_mask;  // null unless mask == TREE
  const long long* tree_indptr;    // [B + 1]
  const int* items;            // [grid, ITEM_INTS], see work.cuh
  const int* joins;            // [grid, ITEM_INTS], see combine.cu
  float* partial_out;          // [slots, Hkv, rows, Dv] and
  float* partial_state;        // [slots, Hkv, rows, 2]: of the split requests

  long long q_row;
  long long q_head;
  long long out_row;
  long long out_head;
  long long k_block;
  long long k_slot;
  long long k_head;
  long long v_block;
  long long v_slot;
  long long v_head;
  long long k_scale_block;
  long long k_scale_slot;
  long long k_scale_head;
  long long v_scale_block;
  long long v_scale_slot;
  long long v_scale_head;
  long long table_row;

  int num_kv_heads;            // Hkv
  int group;                   // Hq / Hkv
  int head_dim;                // D
  int head_dim_v;              // Dv
  int block_size;
  unsigned block_multiplier;   // position / block_size without a division, see spec.cuh
  int block_shift;
  int rows;                    // packed rows of a work item
  int q_dtype;                 // enum Dtype
  int out_dtype;
  int scale_per_token;         // 1: one scale for each token and head
  int mask;                    // enum MaskKind of spec.cuh
  int window_left;             // UNBOUNDED (spec.cuh) when there is none
  int window_right;
  int k_vectors;               // 1: every row of the pool starts at a multiple of 16 bytes
  int v_vectors;
  int q_vectors;
  int shared_kv;               // 1: V is the first Dv columns of K
  float scale;
  float softcap;               // 0: off
};

struct WriteParams {
  const void* k;               // [T, Hkv, D]
  const void* v;               // [T, Hkv, Dv], or null when shared_kv
  void* k_pool;                // [N, block_size, Hkv, D]
  void* v_pool;
  float* k_scale;
  float* v_scale;
  const long long* slots;      // [num_slots], negative: skip

  long long k_row;
  long long k_head;
  long long v_row;
  long long v_head;
  long long k_pool_block;
  long long k_pool_slot;
  long long k_pool_head;
  long long v_pool_block;
  long long v_pool_slot;
  long long v_pool_head;
  long long k_scale_block;
  long long k_scale_slot;
  long long k_scale_head;
  long long v_scale_block;
  long long v_scale_slot;
  long long v_scale_head;

  int num_slots;
  int num_kv_heads;
  int head_dim;
  int head_dim_v;
  int block_size;
  int dtype;                   // enum Dtype of k and v
  int pool_dtype;              // of the pools
  int scale_per_token;         // 1: the scales are computed here
  int vectors;                 // 1: every row starts at a multiple of 16 bytes on both sides
};
