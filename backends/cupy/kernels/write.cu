// write(): row i of k and v goes to slot slots[i]; a warp stores one row of one head.
//
// grid (ceil(rows * Hkv * (1 or 2) / 4)), block (128).
#include "params.cuh"
#include "types.cuh"

constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ __forceinline__ int size_of(int dtype) {
  return dtype == FLOAT32 ? 4 : dtype < INT8 ? 2 : 1;
}

// What a warp stores: one head's row of k or v, and where.
struct WriteTask {
  const char* from;
  char* to;
  float* scale;  // null without quantisation
  int width;
};

// False when the warp has nothing to store. `size` and `stored` are bytes of an element.
__device__ __forceinline__ bool task_of(
    const WriteParams& p, int size, int stored, WriteTask* task) {
  const int pools = p.v ? 2 : 1;
  const long long index = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const long long row = index / (p.num_kv_heads * pools);
  if (row >= p.num_slots) return false;
  const long long slot = p.slots[row];
  if (slot < 0) return false;
  const int rest = (int)(index - row * (p.num_kv_heads * pools));
  const int head = rest % p.num_kv_heads;
  const long long block = slot / p.block_size, offset = slot - block * p.block_size;
  if (rest < p.num_kv_heads) {
    task->from = static_cast<const char*>(p.k) + (row * p.k_row + head * p.k_head) * size;
    task->to = static_cast<char*>(p.k_pool) +
               (block * p.k_pool_block + offset * p.k_pool_slot + head * p.k_pool_head) * stored;
    task->scale = p.k_scale + (block * p.k_scale_block + offset * p.k_scale_slot +
                               head * p.k_scale_head);
    task->width = p.head_dim;
  } else {
    task->from = static_cast<const char*>(p.v) + (row * p.v_row + head * p.v_head) * size;
    task->to = static_cast<char*>(p.v_pool) +
               (block * p.v_pool_block + offset * p.v_pool_slot + head * p.v_pool_head) * stored;
    task->scale = p.v_scale + (block * p.v_scale_block + offset * p.v_scale_slot +
                               head * p.v_scale_head);
    task->width = p.head_dim_v;
  }
  return true;
}

// The pool has the dtype of k and v: bytes are moved, 16 at a time where rows allow it.
__global__ void __launch_bounds__(128) attention_write_kernel(const WriteParams p) {
  WriteTask task;
  const int size = size_of(p.dtype), lane = threadIdx.x % 32;
  if (!task_of(p, size, size, &task)) return;
  const int bytes = task.width * size, whole = p.vectors ? bytes / 16 : 0;
  for (int i = lane; i < whole; i += 32)
    reinterpret_cast<uint4*>(task.to)[i] = reinterpret_cast<const uint4*>(task.from)[i];
  for (int i = whole * 8 + lane; i < bytes / 2; i += 32)
    reinterpret_cast<unsigned short*>(task.to)[i] =
        reinterpret_cast<const unsigned short*>(task.from)[i];
}

// The pool has another dtype. Floats are rounded to nearest even; an 8-bit number is x / scale,
// rounded to nearest even and saturated. With a scale per token and head that scale is
// max|x| / largest, 1 where x is 0.
__global__ void __launch_bounds__(128) attention_write_converted_kernel(const WriteParams p) {
  WriteTask task;
  const int size = size_of(p.dtype), lane = threadIdx.x % 32;
  if (!task_of(p, size, size_of(p.pool_dtype), &task)) return;
  if (p.pool_dtype < INT8) {
    for (int i = lane; i < task.width; i += 32)
      store_from_float(task.to, i, p.pool_dtype, load_as_float(task.from, i, p.dtype));
    return;
  }
  float scale;
  if (p.scale_per_token) {
    const float largest = p.pool_dtype == INT8 ? 127.f : p.pool_dtype == E4M3 ? 448.f : 57344.f;
    float top = 0.f;
    for (int i = lane; i < task.width; i += 32)
      top = fmaxf(top, fabsf(load_as_float(task.from, i, p.dtype)));
    for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, o));
    scale = top / largest;
    if (scale == 0.f) scale = 1.f;
    if (lane == 0) *task.scale = scale;
  } else {
    scale = *task.scale;
  }
  for (int i = lane; i < task.width; i += 32)
    reinterpret_cast<unsigned char*>(task.to)[i] =
        (unsigned char)float_to_byte(load_as_float(task.from, i, p.dtype) / scale, p.pool_dtype);
}
