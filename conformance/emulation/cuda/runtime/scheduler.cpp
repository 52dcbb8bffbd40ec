// Threads as fibers: one runs until it waits, then the next ready one of its warp does, then the
// next warp. The order of lanes and warps is the launch's: forward, reversed, or shuffled by a seed
// (then warps also take turns at random moments). Everything is deterministic.
#include "state.h"

#include <sys/mman.h>

#include "switch.h"

SIMT_EXPORT uint3 threadIdx, blockIdx;
SIMT_EXPORT dim3 blockDim, gridDim;
SIMT_EXPORT simt::Running simt::running;

namespace simt {

Block block;

char *stack_of(unsigned thread) { return block.stacks + thread * STRIDE + PAGE; }

static unsigned random_below(unsigned n) {
  uint64_t &s = block.random;
  s ^= s << 13, s ^= s >> 7, s ^= s << 17;
  return static_cast<unsigned>((s >> 16) % n);
}

static void fill_order(unsigned char *order, unsigned n) {
  for (unsigned i = 0; i < n; ++i) order[i] = block.launch.order == 1 ? n - 1 - i : i;
  if (block.launch.order < 2) return;
  for (unsigned i = n - 1; i > 0; --i) std::swap(order[i], order[random_below(i + 1)]);
}

void make_ready(unsigned thread) {
  Warp &w = block.warp[thread >> 5];
  w.ready |= 1u << w.position_of[thread & 31];
  block.ready_warps |= 1u << block.warp_position[thread >> 5];
}

// The next bit of `bits` after `position`, around the end.
static unsigned next_bit(unsigned bits, unsigned position) {
  const unsigned later = position >= 31 ? 0 : bits & (~0u << (position + 1));
  return static_cast<unsigned>(__builtin_ctz(later ? later : bits));
}

// Takes the next ready thread; false when there is none.
static bool take_next() {
  if (!block.ready_warps) return false;
  const bool change = block.launch.order > 1 && random_below(8) == 0;
  if (change || !(block.ready_warps >> block.current_warp & 1u)) {
    block.current_warp = next_bit(block.ready_warps, block.current_warp);
  }
  const unsigned number = block.warp_at[block.current_warp];
  Warp &w = block.warp[number];
  w.position = next_bit(w.ready, w.position);
  w.ready &= ~(1u << w.position);
  if (!w.ready) block.ready_warps &= ~(1u << block.current_warp);
  running = {number * 32 + w.lane_at[w.position], w.exists};
  return true;
}

// Leaves the running thread for the next ready one, or for the scheduler when there is none.
static void leave() {
  Fiber &from = me();
  void *to = block.scheduler;
  if (take_next()) {
    Fiber &next = me();
    if (&next == &from) return;
    threadIdx = next.tid;
    to = next.sp;
  }
  simt_switch(&from.sp, to);
}

void wait(State state, const Place &place) {
  Fiber &f = me();
  f.state = state;
  f.place = place;
  leave();
  f.state = State::Running;
}

void stop(const std::string &message, const Place &place, const void *pc) {
  block.failed = block.has_thread = true;
  block.message = message;
  block.fault_place = place;
  block.fault_pc = pc;
  void *lost;
  simt_switch(&lost, block.scheduler);
  __builtin_unreachable();
}

static void fiber_main() {
  const Launch &launch = block.launch;
  launch.kernel->run(launch.arguments);
  Fiber &f = me();
  f.state = State::Done;
  my_warp().done |= 1u << lane();
  if (f.last) f.last->reading &= ~(1u << lane());
  --block.live;
  leave();
  __builtin_unreachable();
}

static void allocate_stacks() {
  void *p = mmap(nullptr, MAX_THREADS * STRIDE, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) __builtin_trap();
  block.stacks = static_cast<char *>(p);
  for (unsigned i = 0; i < MAX_THREADS; ++i) mprotect(stack_of(i), STACK, PROT_READ | PROT_WRITE);
}

void prepare_block() {
  if (!block.stacks) allocate_stacks();
  block.random = block.launch.order * 0x9e3779b97f4a7c15ull + blockIdx.x * 0x2545f4914f6cdd1dull +
                 blockIdx.y * 0x632be59bd9b4e019ull + blockIdx.z * 0xd1342543de82ef95ull + 1;
  block.live = block.threads;
  block.ready_warps = block.current_warp = 0;
  block.failed = false;
  block.barrier = {block.threads, 0, 0, 0, {}, 0};
  for (Rendezvous &r : block.named) r = {};
  fill_order(block.warp_at, block.warps);
  for (unsigned i = 0; i < block.warps; ++i) block.warp_position[block.warp_at[i]] = i;
  for (unsigned i = 0; i < block.warps; ++i) {
    Warp &w = block.warp[i];
    const unsigned lanes = std::min(32u, block.threads - 32 * i);
    w.exists = lanes == 32 ? ~0u : (1u << lanes) - 1;
    w.done = w.clock = 0;
    w.ready = w.positions = w.exists;  // both count from 0 to lanes - 1
    w.position = 31;
    fill_order(w.lane_at, lanes);
    for (unsigned p = 0; p < lanes; ++p) w.position_of[w.lane_at[p]] = p;
    for (Group &g : w.groups) g.mask = g.arrived = g.parity = g.reading = 0;
    block.ready_warps |= 1u << i;
  }
  block.current_warp = 31;
  for (unsigned i = 0; i < block.threads; ++i) {
    Fiber &f = block.fibers[i];
    f.index = i;
    f.tid = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    f.state = State::Running;
    f.clock = f.group = f.fences = 0;
    f.last = nullptr;
    f.copies.clear();
    // Stacks one page-multiple apart would all use the same few cache sets.
    f.sp = new_stack(stack_of(i) + STACK - i % 32 * 576, &fiber_main);
  }
}

void run_block() {
  while (block.live && !block.failed) {
    if (!take_next()) {
      block.failed = true;
      block.message = deadlock_report();
      block.fault_place = {};
      block.fault_pc = nullptr;
      block.has_thread = false;
      return;
    }
    threadIdx = me().tid;
    simt_switch(&block.scheduler, me().sp);
  }
}

SIMT_EXPORT void pause() {
  make_ready(running.thread);
  block.current_warp = next_bit(block.ready_warps, block.current_warp);
  leave();
}
SIMT_EXPORT unsigned active_mask() { return my_warp().exists & ~my_warp().done; }

}  // namespace simt
