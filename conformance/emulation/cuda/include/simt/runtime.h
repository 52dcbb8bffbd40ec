// What a compiled kernel asks of the runtime (runtime/*.cpp, one library for all kernels).
#pragma once

// The running thread's coordinates; the scheduler sets them at every switch.
#ifdef SIMT_RUNTIME
#define SIMT_BUILTIN extern
#else
#define SIMT_BUILTIN extern const
#endif
SIMT_BUILTIN uint3 threadIdx, blockIdx;
SIMT_BUILTIN dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// Where in the kernel's source a primitive was called, for reports. Default arguments give the
// place of the call, so no debug information is needed.
#define SIMT_WHERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define SIMT_HERE file, line

namespace simt {

enum class Op : int {
  SyncWarp, Shuffle, Vote, Reduce, Match, Mma, LdMatrix,
  Wgmma, WgmmaFence, WgmmaCommit, WgmmaWait
};

struct Running {
  unsigned thread;  // linear index in the block
  unsigned lanes;   // of its warp that exist, as bits
};
SIMT_BUILTIN Running running;
inline unsigned lane() { return running.thread & 31; }

// Waits for every thread of the block; returns how many passed a true predicate.
int barrier(int predicate, const char *file, int line);
// Waits on barrier `id` until `threads` threads have come (bar.sync id, threads).
void named_barrier(int id, int threads, const char *file, int line);

using Slot = unsigned char[16];
// All lanes of `mask` lay down `size` <= 16 bytes; returns the warp's 32 slots, good until the
// caller's next warp operation.
const Slot *exchange(unsigned mask, const void *value, unsigned size, Op op, const char *file,
                     int line);
unsigned active_mask();
// Ends the launch: the message, with block, thread and place.
[[noreturn]] void fail(const char *message, const char *file, int line);
// Lets another thread run: for a loop that waits for one.
void pause();

// AtomicRead and AtomicWrite: one half of an atomic; volatile accesses count as that.
enum class Access : int { Read, Write, Atomic, AtomicRead, AtomicWrite };
// In checked mode: the instruction at `pc` touches `size` bytes at `address`. Nothing otherwise.
void touch(const void *address, unsigned size, Access access, const void *pc);
// A shuffle that asked for the value of a lane outside its mask.
[[noreturn]] void no_such_lane(int source, const char *file, int line);
bool is_shared(const void *address, unsigned size);
unsigned shared_offset(const void *address);

}  // namespace simt
