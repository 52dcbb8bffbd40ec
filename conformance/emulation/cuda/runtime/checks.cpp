// Checked mode. The kernel was compiled with -fsanitize=thread,bounds,alignment but is linked to
// this file instead of the sanitizers: every access comes by here, is looked up in the memory that
// the kernel was given, and in shared memory is held against what other threads did.
// (Check::SANITIZERS is another build, of sanitizers.cpp.)
#include "state.h"

namespace simt {

// Whether what `other` did at `clock` of its warp comes before what the running thread does.
static bool ordered(unsigned other, unsigned clock) {
  return other == running.thread || (other >> 5 == running.thread >> 5 && me().clock > clock);
}

// Who touched a byte in an epoch: the latest thread and another one, of another warp if there is
// one. Both are enough to tell whether all of them come before a given thread.
struct Visitors {
  unsigned epoch, clock, other_clock;
  unsigned short thread, other;  // the same when there is one only

  void add() {
    const auto now = static_cast<unsigned short>(running.thread);
    if (epoch != block.epoch) {
      epoch = block.epoch, thread = other = now;
    } else if (thread != now) {
      const bool keep = other != thread && other >> 5 != now >> 5 && thread >> 5 == now >> 5;
      if (!keep) other = thread, other_clock = clock;
      thread = now;
    }
    clock = me().clock;
  }
  // One that does not come before the running thread, or -1.
  int unordered() const {
    if (epoch != block.epoch) return -1;
    if (!ordered(thread, clock)) return thread;
    return other != thread && !ordered(other, other_clock) ? other : -1;
  }
};

struct Shadow {  // of one byte of shared memory
  unsigned write_epoch, write_clock;
  unsigned fences;  // of the writer, when it wrote
  unsigned short writer;
  unsigned char written;    // in this block
  unsigned char in_flight;  // a cp.async has yet to land here
  Visitors readers;
};
static std::vector<Shadow> shadow;
static std::vector<Visitors> changers;  // by atomics, of each byte; empty before the first atomic

void reset_shadow() {
  if (!(block.launch.checks & ~SANITIZERS)) return;
  shadow.assign(static_cast<size_t>(block.dynamic_end - block.shared), Shadow{});
  changers.clear();
  for (int i = 0; i < block.launch.num_guards; ++i) shadow[block.launch.guards[i]].written = 1;
}

void set_in_flight(const void *address, unsigned size, bool in_flight) {
  if (!(block.launch.checks & ~SANITIZERS)) return;
  Shadow *s = &shadow[static_cast<size_t>(static_cast<const char *>(address) - block.shared)];
  for (unsigned i = 0; i < size; ++i) s[i].in_flight = in_flight;
}

[[noreturn]] static void race(Access access, const char *met, unsigned other, const void *address,
                              unsigned size, const Site &site) {
  const char *verb = access == Access::Read         ? "reads"
                     : access == Access::Write      ? "writes"
                     : access == Access::AtomicRead ? "reads (by a volatile access)"
                                                    : "changes (by an atomic or volatile access)";
  stop("race on shared memory: thread " + name_of(running.thread) + " " + verb + " what " + met +
           " thread " + name_of(other) + " with no barrier between; " +
           address_report(address, size),
       site.place, site.pc);
}

static const char *access_name(Access access) {
  switch (access) {
    case Access::Read:
    case Access::AtomicRead:
      return "read";
    case Access::Write:
    case Access::AtomicWrite:
      return "write";
    default:
      return "atomic";
  }
}

// A plain access conflicts with every other one unless both read; atomics do not with each other.
static void check_race(size_t byte, const char *p, unsigned size, Access access, const Site &site) {
  const Shadow &s = shadow[byte];
  const bool plain = access == Access::Read || access == Access::Write;
  if (s.in_flight) {
    stop(std::string(access_name(access)) + (access == Access::Write ? " to" : " of") +
             " shared memory that a cp.async of thread " + name_of(s.writer) +
             " is still to fill: that thread has not waited for it; " + address_report(p, size),
         site.place, site.pc);
  }
  if (s.write_epoch == block.epoch && !ordered(s.writer, s.write_clock)) {
    race(access, "was written by", s.writer, p, size, site);
  }
  if (plain && !changers.empty()) {
    const int other = changers[byte].unordered();
    if (other >= 0) {
      race(access, "was changed (by an atomic or volatile access) by",
           static_cast<unsigned>(other), p, size, site);
    }
  }
  if (access == Access::Read || access == Access::AtomicRead) return;
  const int reader = s.readers.unordered();
  if (reader >= 0) {
    race(access, "is still read by", static_cast<unsigned>(reader), p, size, site);
  }
}

static void check_shared(const char *p, unsigned size, Access access, const Site &site) {
  const unsigned checks = block.launch.checks;
  const bool changes = access == Access::Atomic || access == Access::AtomicWrite;
  if (changes && changers.empty()) changers.assign(shadow.size(), Visitors{});
  for (unsigned i = 0; i < size; ++i) {
    const size_t byte = static_cast<size_t>(p - block.shared) + i;
    Shadow &s = shadow[byte];
    if (checks & RACES) check_race(byte, p, size, access, site);
    if (checks & UNINITIALISED && !s.written && access != Access::Write &&
        access != Access::AtomicWrite) {
      stop(std::string(access_name(access)) +
               " of shared memory that no thread of this block has written; " +
               address_report(p, size),
           site.place, site.pc);
    }
    if (access == Access::Read) s.readers.add();
    if (changes) changers[byte].add();
    if (access == Access::Write) {
      s.write_epoch = block.epoch, s.write_clock = me().clock;
      s.writer = static_cast<unsigned short>(running.thread);
      s.fences = me().fences;
    }
    if (access != Access::Read && access != Access::AtomicRead) s.written = 1;
  }
}

static void check(const void *address, unsigned size, Access access, const Site &site) {
  if (!block.launch.checks) return;
  if (block.launch.checks & SANITIZERS) return check_poison(address, size, access, site);
  const char *p = static_cast<const char *>(address);
  if (p >= stack_of(running.thread) && p + size <= stack_of(running.thread) + STACK) {
    if (const Place *product = under_way(p, size)) {
      stop("an accumulator is touched while the product of " + text(*product) +
               " is under way: wgmma.wait_group comes first",
           site.place, site.pc);
    }
    return;
  }
  const unsigned guard = block.launch.guard_bytes;
  if (p >= block.shared && p < block.dynamic_end + guard) {
    if (!is_shared(p, size)) {
      if (!(block.launch.checks & BOUNDS)) return;
      stop(std::string(access_name(access)) + " of " + std::to_string(size) +
               " bytes outside shared memory: " + address_report(p, size),
           site.place, site.pc);
    }
    check_shared(p, size, access, site);
    return;
  }
  // The slots of a shuffle, threadIdx: what the runtime shows to kernels.
  if (p >= reinterpret_cast<char *>(&block) && p < reinterpret_cast<char *>(&block + 1)) return;
  const Launch &launch = block.launch;
  if (!(launch.checks & BOUNDS)) return;
  static int last = 0;
  bool readable = false;
  if (last >= launch.num_regions) last = 0;
  for (int i = 0, r = last; i < launch.num_regions;
       ++i, r = r + 1 < launch.num_regions ? r + 1 : 0) {
    const Region &region = launch.regions[r];
    if (p < region.begin || p + size > region.end) continue;
    if (access == Access::Read || access == Access::AtomicRead || region.writable) {
      last = r;
      return;
    }
    readable = true;
  }
  stop(std::string(access_name(access)) + " of " + std::to_string(size) + " bytes " +
           (readable ? "to memory that was given as const: "
                     : "outside the memory that the kernel was given: ") +
           address_report(p, size),
       site.place, site.pc);
}

// The asynchronous proxy, which tensor cores read through, sees what a thread wrote once it fenced.
void check_fenced(const void *address, unsigned size, const Place &place) {
  if (!(block.launch.checks & RACES)) return;
  const Shadow &s = shadow[static_cast<size_t>(static_cast<const char *>(address) - block.shared)];
  if (!s.written || block.fibers[s.writer].fences > s.fences) return;
  stop("wgmma reads what thread " + name_of(s.writer) +
           " wrote to shared memory with no fence.proxy.async behind the write: " +
           address_report(address, size),
       place);
}

SIMT_EXPORT void touch(const void *address, unsigned size, Access access, const void *pc) {
  check(address, size, access, {pc, {}});
}
void touch_at(const void *address, unsigned size, Access access, const Place &place) {
  check(address, size, access, {nullptr, place});
}
SIMT_EXPORT bool is_shared(const void *address, unsigned size) {
  const char *p = static_cast<const char *>(address);
  return (p >= block.shared && p + size <= block.shared + block.launch.static_bytes) ||
         (p >= block.dynamic && p + size <= block.dynamic_end);
}
SIMT_EXPORT unsigned shared_offset(const void *address) {
  return static_cast<unsigned>(static_cast<const char *>(address) - block.shared);
}

}  // namespace simt

#define HOOKS(SIZE)                                                                \
  SIMT_EXPORT void __tsan_read##SIZE(void *p) {                                    \
    simt::check(p, SIZE, simt::Access::Read, {__builtin_return_address(0), {}});   \
  }                                                                                \
  SIMT_EXPORT void __tsan_write##SIZE(void *p) {                                   \
    simt::check(p, SIZE, simt::Access::Write, {__builtin_return_address(0), {}});  \
  }                                                                                \
  SIMT_EXPORT void __tsan_unaligned_read##SIZE(void *p) {                          \
    simt::check(p, SIZE, simt::Access::Read, {__builtin_return_address(0), {}});   \
  }                                                                                \
  SIMT_EXPORT void __tsan_unaligned_write##SIZE(void *p) {                         \
    simt::check(p, SIZE, simt::Access::Write, {__builtin_return_address(0), {}});  \
  }                                                                                \
  SIMT_EXPORT void __tsan_volatile_read##SIZE(void *p) {                               \
    simt::check(p, SIZE, simt::Access::AtomicRead, {__builtin_return_address(0), {}}); \
  }                                                                                \
  SIMT_EXPORT void __tsan_volatile_write##SIZE(void *p) {                              \
    simt::check(p, SIZE, simt::Access::AtomicWrite, {__builtin_return_address(0), {}}); \
  }

extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
SIMT_EXPORT void __tsan_read_range(void *p, size_t size) {
  simt::check(p, static_cast<unsigned>(size), simt::Access::Read,
              {__builtin_return_address(0), {}});
}
SIMT_EXPORT void __tsan_write_range(void *p, size_t size) {
  simt::check(p, static_cast<unsigned>(size), simt::Access::Write,
              {__builtin_return_address(0), {}});
}
// What memcpy, memset and memmove are linked to in a checked kernel.
SIMT_EXPORT void *__wrap_memcpy(void *to, const void *from, size_t size) {
  if (size)
    simt::check(from, static_cast<unsigned>(size), simt::Access::Read,
                {__builtin_return_address(0), {}});
  if (size)
    simt::check(to, static_cast<unsigned>(size), simt::Access::Write,
                {__builtin_return_address(0), {}});
  return memmove(to, from, size);
}
SIMT_EXPORT void *__wrap_memmove(void *to, const void *from, size_t size) {
  return __wrap_memcpy(to, from, size);
}
SIMT_EXPORT void *__wrap_memset(void *to, int value, size_t size) {
  if (size)
    simt::check(to, static_cast<unsigned>(size), simt::Access::Write,
                {__builtin_return_address(0), {}});
  return memset(to, value, size);
}
SIMT_EXPORT void __tsan_init() {}
SIMT_EXPORT void __tsan_func_entry(void *) {}
SIMT_EXPORT void __tsan_func_exit() {}
}
