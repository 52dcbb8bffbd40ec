// Where threads meet: block barriers, named barriers, and the operations of a warp.
#include "state.h"

namespace simt {

static int arrive(Rendezvous &r, bool passed, State state, const Place &place) {
  if (r.arrived == 0) {
    r.place = place;
    r.first = running.thread;
  } else if (state == State::Barrier && !same_place(r.place, place)) {
    stop("threads of one block meet at different barriers: thread " + name_of(r.first) +
             " waits at " + text(r.place) + ", thread " + name_of(running.thread) + " arrived at " +
             text(place) + ". Every thread of the block must reach the same __syncthreads()",
         place);
  }
  r.passed += passed;
  if (++r.arrived < r.expected) {
    wait(state, place);
    return static_cast<int>(r.result);
  }
  r.result = r.passed;
  r.arrived = r.passed = 0;
  ++block.epoch;
  for (unsigned i = 0; i < block.threads; ++i) {
    const Fiber &f = block.fibers[i];
    if (i == running.thread || f.state != state) continue;
    if (state == State::Named && &block.named[f.barrier] != &r) continue;
    make_ready(i);
  }
  return static_cast<int>(r.result);
}

SIMT_EXPORT int barrier(int predicate, const char *file, int line) {
  return arrive(block.barrier, predicate != 0, State::Barrier, {file, line});
}

SIMT_EXPORT void named_barrier(int id, int threads, const char *file, int line) {
  const Place place{file, line};
  if (id < 0 || id >= static_cast<int>(NAMED_BARRIERS) || threads <= 0 || threads % 32) {
    stop("bar.sync " + std::to_string(id) + ", " + std::to_string(threads) +
             ": the barrier must be 0 to 15 and the count a positive multiple of 32",
         place);
  }
  Rendezvous &r = block.named[id];
  if (r.arrived && r.expected != static_cast<unsigned>(threads)) {
    stop("bar.sync " + std::to_string(id) + ": thread " + name_of(r.first) + " waits for " +
             std::to_string(r.expected) + " threads, this one for " + std::to_string(threads),
         place);
  }
  r.expected = static_cast<unsigned>(threads);
  me().barrier = id;
  arrive(r, false, State::Named, place);
}

// The group of `mask`. One that served another mask is free once its lanes have read what they
// met for, which they have when they come to their next warp operation.
static Group &group_of(Warp &w, unsigned mask, const Place &place) {
  for (Group &g : w.groups) {
    if (g.mask == mask) return g;
  }
  for (Group &g : w.groups) {
    if (g.arrived | g.reading) continue;
    g.mask = mask;
    return g;
  }
  stop("more than 8 different masks are in use in one warp at a time", place);
}

[[noreturn]] static void left_out(unsigned mask, Op op, const Place &place) {
  char hex[16];
  snprintf(hex, sizeof hex, "0x%08x", mask);
  stop(std::string(op_name(op)) + " with mask " + hex + " is called by lane " +
           std::to_string(lane()) + ", which the mask leaves out",
       place);
}

[[noreturn]] static void crossed(const Group &g, Op op, const Place &place) {
  stop("lanes of one warp meet at different operations: some wait at " +
           std::string(op_name(g.op)) + " " + text(g.place) + ", lane " + std::to_string(lane()) +
           " arrived at " + op_name(op) + " " + text(place),
       place);
}

static void lay_down(unsigned char *slot, const void *value, unsigned size) {
  switch (size) {  // constant sizes are single moves
    case 0:
      return;
    case 4:
      __builtin_memcpy(slot, value, 4);
      return;
    case 8:
      __builtin_memcpy(slot, value, 8);
      return;
    case 16:
      __builtin_memcpy(slot, value, 16);
      return;
    default:
      __builtin_memcpy(slot, value, size);
  }
}

// The lanes of `mask` but the running one may go on.
static void release(Warp &w, unsigned mask) {
  const unsigned lane = running.thread & 31, base = running.thread & ~31u;
  if (mask == w.exists) {
    w.ready |= w.positions & ~(1u << w.position);
  } else {
    for (unsigned rest = mask & ~(1u << lane); rest; rest &= rest - 1) {
      w.ready |= 1u << w.position_of[__builtin_ctz(rest)];
    }
  }
  if (w.ready) block.ready_warps |= 1u << block.current_warp;
  ++w.clock;
  if (!block.launch.checks) return;
  for (unsigned rest = mask; rest; rest &= rest - 1)
    block.fibers[base + __builtin_ctz(rest)].clock = w.clock;
}

const Slot *meet(unsigned mask, const void *value, unsigned size, Op op, const Place &place,
                 Complete complete) {
  Warp &w = my_warp();
  Fiber &f = me();
  const unsigned bit = 1u << (f.index & 31);
  if (!(mask & bit)) left_out(mask, op, place);
  mask &= w.exists;  // a block whose last warp is short may say 0xffffffff
  if (f.last) f.last->reading &= ~bit;
  Group &g = group_of(w, mask, place);
  f.last = &g;
  if (g.arrived == 0) {
    g.op = op;
    g.place = place;
  } else if (g.op != op || (op != Op::SyncWarp && !same_place(g.place, place))) {
    crossed(g, op, place);
  }
  const unsigned parity = g.parity;
  lay_down(g.slots[parity][f.index & 31], value, size);
  g.arrived |= bit;
  if (g.arrived != mask) {
    f.op = op;
    f.mask = mask;
    wait(State::Warp, place);
    return g.slots[parity];
  }
  if (complete) complete(g.slots[parity]);
  g.arrived = 0;
  g.reading = mask;
  g.parity ^= 1;
  release(w, mask);
  return g.slots[parity];
}

SIMT_EXPORT const Slot *exchange(unsigned mask, const void *value, unsigned size, Op op,
                                 const char *file, int line) {
  return meet(mask, value, size, op, {file, line}, nullptr);
}

SIMT_EXPORT void no_such_lane(int source, const char *file, int line) {
  stop("a shuffle reads lane " + std::to_string(source) +
           ", which takes no part in it (the value is undefined)",
       {file, line});
}

SIMT_EXPORT void fail(const char *message, const char *file, int line) {
  stop(message, {file, line});
}

}  // namespace simt
