// The block that runs: its threads (fibers), warps and shared memory, and the launch it is of.
#pragma once
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "simt.h"

#define SIMT_EXPORT __attribute__((visibility("default")))

namespace simt {

constexpr unsigned MAX_THREADS = 1024, MAX_WARPS = 32, GROUPS = 8, NAMED_BARRIERS = 16;
constexpr size_t STACK = 64 * 1024, PAGE = 64 * 1024, STRIDE = STACK + PAGE;  // a guard below each
constexpr unsigned char CANARY = 0xa5, POISON = 0xff;  // 0xff..: NaN in every float

struct Place {
  const char *file = nullptr;
  int line = 0;
};

// Where an access happens: an instruction of the kernel, or a place when the runtime makes it.
struct Site {
  const void *pc;
  Place place;
};

// A registered piece of global memory.
struct Region {
  const char *begin, *end;
  int writable;
  int argument;  // index of the kernel's parameter, or -1
};

struct Launch {
  const Kernel *kernel;
  void **arguments;
  char *(
      *dynamic_shared)();  // of the module: its TLS segment is [static | guard | dynamic | guard]
  unsigned static_bytes;   // before the first guard
  unsigned dynamic_offset;
  unsigned guard_bytes;  // of the second guard
  unsigned dynamic_bytes;
  unsigned grid[3], block[3];
  unsigned order;
  unsigned checks;
  unsigned timeout;  // seconds of CPU time, 0: none
  int num_regions;
  const Region *regions;
  int num_guards;  // bytes of static shared memory in which g++ keeps that a variable is set up
  const unsigned *guards;
};

enum Check : unsigned { BOUNDS = 1, RACES = 2, UNINITIALISED = 4, SANITIZERS = 8 };

enum class State : unsigned char { Running, Barrier, Named, Warp, Done };

struct Copy {  // one cp.async that has not landed
  char *to;
  const char *from;
  int size, source_bytes;
  unsigned group;
  Place place;
};

struct Group {  // lanes that meet under one mask
  unsigned mask, arrived, parity;
  unsigned reading;  // lanes that may still read the slots
  Op op;
  Place place;
  alignas(16) Slot slots[2][32];
};

struct Fiber {
  void *sp;
  uint3 tid;
  unsigned index;  // linear
  State state;
  Op op;
  unsigned mask;
  int barrier;
  Place place;
  unsigned clock;  // number of the last warp operation that this thread took part in
  Group *last;     // of this thread's latest warp operation
  unsigned group;  // of the cp.async being collected
  unsigned fences;  // fence.proxy.async of this thread
  std::vector<Copy> copies;
};

struct Warp {
  unsigned exists, done;  // by lane
  unsigned positions;     // those that exist
  unsigned ready;         // by position in the order of this launch
  unsigned position;      // of the lane that ran last
  unsigned clock;
  unsigned char lane_at[32], position_of[32];
  Group groups[GROUPS];
};

struct Rendezvous {  // __syncthreads, or one named barrier
  unsigned expected, arrived, passed, result;
  Place place;
  unsigned first;  // thread that came first
};

struct Block {
  Launch launch;
  unsigned threads, warps, live;
  unsigned ready_warps, current_warp;  // by position
  unsigned char warp_at[MAX_WARPS], warp_position[MAX_WARPS];
  uint64_t random;
  void *scheduler;
  Fiber fibers[MAX_THREADS];
  Warp warp[MAX_WARPS];
  Rendezvous barrier, named[NAMED_BARRIERS];
  unsigned epoch;  // counts barriers and blocks: accesses of different epochs are ordered
  char *shared, *shared_end, *dynamic, *dynamic_end;
  char *stacks;
  bool failed, has_thread;  // has_thread: the fault is the running thread's
  std::string message;
  Place fault_place;
  const void *fault_pc;
  int fault_shared;  // offset in static shared memory that the message is about, or -1
  sigjmp_buf escape;
};
extern Block block;

inline Fiber &me() { return block.fibers[running.thread]; }
inline Warp &my_warp() { return block.warp[running.thread >> 5]; }
inline bool same_place(const Place &a, const Place &b) {
  return a.line == b.line && (a.file == b.file || __builtin_strcmp(a.file, b.file) == 0);
}
char *stack_of(unsigned thread);  // lowest usable byte

void prepare_block();  // scheduler.cpp
void run_block();
void make_ready(unsigned thread);
void wait(State state, const Place &place);
[[noreturn]] void stop(const std::string &message, const Place &place, const void *pc = nullptr);

std::string text(const Place &place);  // reports.cpp
std::string name_of(unsigned thread);
std::string deadlock_report();
std::string address_report(const void *address, unsigned size);
const char *op_name(Op op);

using Complete = void (*)(const Slot *slots);  // run once, by the last lane, before any goes on
const Slot *meet(unsigned mask, const void *value, unsigned size, Op op, const Place &place,
                 Complete complete);

void reset_shadow();  // checks.cpp
void touch_at(const void *address, unsigned size, Access access, const Place &place);
void set_in_flight(const void *address, unsigned size, bool in_flight);  // of a cp.async
void check_poison(const void *address, unsigned size, Access access,
                  const Site &site);                       // sanitizers.cpp
void set_poison(const char *begin, const char *end, bool poisoned);
void check_fenced(const void *address, unsigned size, const Place &place);
void check_canaries();  // launch.cpp

void reset_wgmma();  // wgmma.cpp
void check_products();
// The product under way that adds to these bytes of the running thread, or null.
const Place *under_way(const char *address, unsigned size);

}  // namespace simt
