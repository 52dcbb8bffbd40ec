// Sentences about threads and places.
#include "state.h"

namespace simt {

std::string text(const Place &place) {
  return place.file ? std::string(place.file) + ":" + std::to_string(place.line)
                    : std::string("an unknown place");
}

std::string name_of(unsigned thread) {
  const uint3 &t = block.fibers[thread].tid;
  return "(" + std::to_string(t.x) + "," + std::to_string(t.y) + "," + std::to_string(t.z) + ")";
}

const char *op_name(Op op) {
  switch (op) {
    case Op::SyncWarp:
      return "__syncwarp";
    case Op::Shuffle:
      return "a warp shuffle";
    case Op::Vote:
      return "a warp vote";
    case Op::Reduce:
      return "a warp reduction";
    case Op::Match:
      return "__match_any_sync";
    case Op::Mma:
      return "mma.sync";
    case Op::LdMatrix:
      return "ldmatrix";
    case Op::Wgmma:
      return "wgmma.mma_async";
    case Op::WgmmaFence:
      return "wgmma.fence";
    case Op::WgmmaCommit:
      return "wgmma.commit_group";
    case Op::WgmmaWait:
      return "wgmma.wait_group";
  }
  return "a warp operation";
}

static std::string doing(const Fiber &f) {
  char hex[16];
  snprintf(hex, sizeof hex, "0x%08x", f.mask);
  switch (f.state) {
    case State::Barrier:
      return "wait at __syncthreads() " + text(f.place);
    case State::Named:
      return "wait at bar.sync " + std::to_string(f.barrier) + " " + text(f.place);
    case State::Warp:
      return std::string("wait at ") + op_name(f.op) + " with mask " + hex + " " + text(f.place);
    case State::Done:
      return "have exited";
    case State::Running:
      return "run";
  }
  return "";
}

// Threads of ascending number, as ranges: three at most.
static std::string ranges(const std::vector<unsigned> &threads) {
  std::string text;
  unsigned shown = 0;
  for (size_t i = 0, end; i < threads.size(); i = end) {
    for (end = i + 1; end < threads.size() && threads[end] == threads[end - 1] + 1;) ++end;
    if (++shown > 3) return text + ", ...";
    text += (i ? ", " : "") + name_of(threads[i]);
    if (end - i > 1) text += " to " + name_of(threads[end - 1]);
  }
  return text;
}

// Who waits where.
std::string deadlock_report() {
  struct Kind {
    std::string doing;
    std::vector<unsigned> threads;
  };
  std::vector<Kind> kinds;
  for (unsigned i = 0; i < block.threads; ++i) {
    const std::string what = doing(block.fibers[i]);
    bool known = false;
    for (Kind &k : kinds) {
      if (k.doing != what) continue;
      k.threads.push_back(i);
      known = true;
    }
    if (!known) kinds.push_back({what, {i}});
  }
  std::string report = "deadlock: no thread can go on;";
  for (size_t i = 0; i < kinds.size() && i < 8; ++i) {
    const Kind &k = kinds[i];
    report += (i ? ", " : " ") + std::to_string(k.threads.size()) + " of " +
              std::to_string(block.threads) + " threads " + k.doing + " (thread " +
              ranges(k.threads) + ")";
  }
  if (kinds.size() > 8) report += ", ...";
  return report;
}

static std::string hex(const void *address) {
  char digits[32];
  snprintf(digits, sizeof digits, "%p", address);
  return digits;
}

// Where an address lies: shared memory with its offset, an argument with its offset, ...
std::string address_report(const void *address, unsigned size) {
  const char *p = static_cast<const char *>(address);
  const Launch &launch = block.launch;
  if (p >= block.dynamic && p < block.dynamic_end + launch.guard_bytes) {
    return "byte " + std::to_string(p - block.dynamic) + " of " +
           std::to_string(launch.dynamic_bytes) + " bytes of dynamic shared memory";
  }
  if (p >= block.shared && p < block.dynamic) {
    block.fault_shared = static_cast<int>(p - block.shared);
    return "byte " + std::to_string(p - block.shared) + " of " +
           std::to_string(launch.static_bytes) + " bytes of static shared memory";
  }
  for (unsigned i = 0; i < block.threads; ++i) {
    if (p >= stack_of(i) - PAGE && p < stack_of(i) + STACK)
      return "the local memory of thread " + name_of(i);
  }
  const Region *nearest = nullptr;
  ptrdiff_t distance = 0;
  for (int i = 0; i < launch.num_regions; ++i) {
    const Region &r = launch.regions[i];
    if (r.argument < 0) continue;
    const ptrdiff_t d = p < r.begin ? r.begin - p : p + size > r.end ? p - r.end : 0;
    if (!nearest || d < distance) nearest = &r, distance = d;
  }
  const std::string bare = "address " + hex(address);
  if (!nearest && !launch.num_regions) return bare;
  if (!nearest) return bare + ", in no memory that the kernel was given";
  return bare + ": byte " + std::to_string(p - nearest->begin) + " of the " +
         std::to_string(nearest->end - nearest->begin) + " bytes of argument " +
         std::to_string(nearest->argument);
}

}  // namespace simt
