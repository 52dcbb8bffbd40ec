// One kernel launch: all blocks, one after the other, on the calling thread.
#include "state.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

#include <numeric>

namespace simt {

static pthread_t launcher;
static char signal_stack[64 * 1024];

static const void *pc_of(void *context) {
  const ucontext_t *u = static_cast<const ucontext_t *>(context);
#if defined(__x86_64__)
  return reinterpret_cast<const void *>(u->uc_mcontext.gregs[REG_RIP]);
#else
  return reinterpret_cast<const void *>(u->uc_mcontext.pc);
#endif
}

// Whether an instruction is of the library that the launched kernel is in.
static bool in_kernel(const void *pc) {
  Dl_info here, kernel;
  return dladdr(pc, &here) && dladdr(reinterpret_cast<void *>(block.launch.kernel->run), &kernel) &&
         here.dli_fbase == kernel.dli_fbase;
}

// A fault of the running thread becomes a report instead of the end of the process.
static void on_signal(int number, siginfo_t *info, void *context) {
  if (!pthread_equal(pthread_self(), launcher)) {
    if (number == SIGVTALRM) {
      pthread_kill(launcher, number);
    } else {
      signal(number, SIG_DFL);  // not ours: the instruction faults again and ends the process
    }
    return;
  }
  // Time is up: not in the middle of the runtime or of malloc, whose locks would stay taken. The
  // timer comes again every 10 ms.
  if (number == SIGVTALRM && !in_kernel(pc_of(context))) return;
  const char *address = static_cast<const char *>(info->si_addr);
  std::string &m = block.message;
  if (number == SIGVTALRM) {
    m = "no end after " + std::to_string(block.launch.timeout) +
        " s of CPU time: a thread that waits in a loop for another block, or without an atomic, "
        "never ends here";
  } else if (number == SIGFPE) {
    m = "integer division by zero (or overflow)";
  } else if (number == SIGILL) {
    m = "control reached a point that the compiler holds to be impossible";
  } else if (number == SIGSEGV && info->si_code == SI_KERNEL) {
    m = "misaligned vector access, or an address that no memory can have";
  } else if (address < stack_of(running.thread) && address >= stack_of(running.thread) - PAGE) {
    m = "stack overflow: a thread has " + std::to_string(STACK / 1024) +
        " KiB for local arrays and calls";
  } else {
    m = "access to memory that is not mapped: " + address_report(address, 1);
  }
  block.failed = block.has_thread = true;
  block.fault_place = {};
  block.fault_pc = pc_of(context);
  siglongjmp(block.escape, 1);
}

struct Signals {  // handlers for the duration of a launch
  static constexpr int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGVTALRM};
  struct sigaction before[5];
  stack_t stack_before;

  explicit Signals(unsigned timeout) {
    launcher = pthread_self();
    stack_t stack{};
    stack.ss_sp = signal_stack;
    stack.ss_size = sizeof signal_stack;
    sigaltstack(&stack, &stack_before);
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 5; ++i) sigaction(numbers[i], &action, &before[i]);
    set_timer(timeout);
  }
  ~Signals() {
    set_timer(0);
    for (int i = 0; i < 5; ++i) sigaction(numbers[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
  }
  static void set_timer(unsigned seconds) {
    itimerval timer{};
    timer.it_value.tv_sec = seconds;
    timer.it_interval.tv_usec = seconds ? 10000 : 0;
    setitimer(ITIMER_VIRTUAL, &timer, nullptr);
  }
};

static void poison_shared() {
  const Launch &l = block.launch;
  const char *const end = block.dynamic_end + l.guard_bytes;
  set_poison(block.shared, end, false);
  memset(block.shared, POISON, l.static_bytes);
  memset(block.shared + l.static_bytes, CANARY,
         static_cast<size_t>(block.dynamic - block.shared) - l.static_bytes);
  memset(block.dynamic, POISON, l.dynamic_bytes);
  memset(block.dynamic_end, CANARY, l.guard_bytes);
  set_poison(block.shared + l.static_bytes, block.dynamic, true);
  set_poison(block.dynamic_end, end, true);
}

static bool overrun(const char *begin, const char *end, const char *kind, const char *start,
                    unsigned bytes) {
  for (const char *p = begin; p < end; ++p) {
    if (static_cast<unsigned char>(*p) == CANARY) continue;
    block.failed = true;
    block.message = std::string("write past the end of ") + kind + " shared memory: byte " +
                    std::to_string(p - start) + " of " + std::to_string(bytes) + " bytes";
    block.fault_place = {};
    block.fault_pc = nullptr;
    block.has_thread = false;
    return true;
  }
  return false;
}

void check_canaries() {
  const Launch &l = block.launch;
  if (overrun(block.shared + l.static_bytes, block.dynamic, "static", block.shared, l.static_bytes))
    return;
  overrun(block.dynamic_end, block.dynamic_end + l.guard_bytes, "dynamic", block.dynamic,
          l.dynamic_bytes);
}

// The i-th block to run: forward, backward, or in strides of a number without common divisor.
static uint64_t permuted(uint64_t i, uint64_t blocks, unsigned order) {
  if (order == 0) return i;
  if (order == 1) return blocks - 1 - i;
  uint64_t stride = (order * 0x9e3779b97f4a7c15ull >> 33) % blocks;
  while (std::gcd(stride, blocks) != 1) stride = (stride + 1) % blocks;
  return static_cast<uint64_t>(static_cast<unsigned __int128>(i) * stride % blocks + order) %
         blocks;
}

static void run_blocks() {
  const Launch &l = block.launch;
  const uint64_t x = l.grid[0], y = l.grid[1], blocks = x * y * l.grid[2];
  for (uint64_t i = 0; i < blocks && !block.failed; ++i) {
    const uint64_t b = permuted(i, blocks, l.order);
    blockIdx = {static_cast<unsigned>(b % x), static_cast<unsigned>(b / x % y),
                static_cast<unsigned>(b / (x * y))};
    ++block.epoch;
    poison_shared();
    reset_shadow();
    reset_wgmma();
    prepare_block();
    run_block();
    if (!block.failed) check_products();
    if (!block.failed) check_canaries();
  }
}

struct Fault {  // what simt_launch reports
  char message[2048];
  char file[512];
  int line;
  const void *pc;
  unsigned block[3], thread[3];
  int has_thread;
  int shared_offset;
};

static void report(Fault *fault, bool has_thread) {
  snprintf(fault->message, sizeof fault->message, "%s", block.message.c_str());
  snprintf(fault->file, sizeof fault->file, "%s",
           block.fault_place.file ? block.fault_place.file : "");
  fault->line = block.fault_place.line;
  fault->pc = block.fault_pc;
  const uint3 &t = block.fibers[running.thread].tid;
  fault->block[0] = blockIdx.x, fault->block[1] = blockIdx.y, fault->block[2] = blockIdx.z;
  fault->thread[0] = t.x, fault->thread[1] = t.y, fault->thread[2] = t.z;
  fault->has_thread = has_thread;
  fault->shared_offset = block.fault_shared;
}

}  // namespace simt

// Runs a launch; 1 with `fault` filled in when a thread or block broke a rule.
extern "C" SIMT_EXPORT int simt_launch(const simt::Launch *launch, simt::Fault *fault) {
  using simt::block;
  block.launch = *launch;
  gridDim = dim3(launch->grid[0], launch->grid[1], launch->grid[2]);
  blockDim = dim3(launch->block[0], launch->block[1], launch->block[2]);
  block.threads = blockDim.x * blockDim.y * blockDim.z;
  block.warps = (block.threads + 31) / 32;
  block.dynamic = launch->dynamic_shared();
  block.shared = block.dynamic - launch->dynamic_offset;
  block.dynamic_end = block.dynamic + launch->dynamic_bytes;
  const simt::Signals signals(launch->timeout);
  block.failed = false;
  block.fault_shared = -1;
  if (sigsetjmp(block.escape, 1) == 0) simt::run_blocks();
  simt::set_poison(block.shared, block.dynamic_end + launch->guard_bytes, false);
  if (!block.failed) return 0;
  // Threads that were left in the middle of a function have poison on their stacks.
  simt::set_poison(simt::stack_of(0), simt::stack_of(block.threads - 1) + simt::STACK, false);
  simt::report(fault, block.has_thread);
  return 1;
}
