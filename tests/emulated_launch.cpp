// Launches one emulated kernel without Python, for processors that only qemu has here:
//     emulated_launch RUNTIME.so KERNEL.so STATIC_BYTES DYNAMIC_OFFSET DYNAMIC_BYTES THREADS ORDER
// gives the kernel its output of 4 * THREADS words, and prints those as numbers; a fault's message
// and exit code 1 when a thread broke a rule.
#include <dlfcn.h>

#include <cstdlib>

#include "state.h"

struct Fault {  // as in runtime/launch.cpp
  char message[2048];
  char file[512];
  int line;
  const void *pc;
  unsigned block[3], thread[3];
  int has_thread;
  int shared_offset;
};

int main(int, char **argv) {
  void *runtime = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  void *library = runtime ? dlopen(argv[2], RTLD_NOW) : nullptr;
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  using Run = int (*)(const simt::Launch *, Fault *);
  const auto run = reinterpret_cast<Run>(dlsym(runtime, "simt_launch"));
  auto kernel = reinterpret_cast<const simt::Kernel *(*)()>(dlsym(library, "simt_kernel_0"));
  const unsigned threads = static_cast<unsigned>(atoi(argv[6]));
  std::vector<unsigned> out(4 * threads, 0);
  unsigned *pointer = out.data();
  void *arguments[] = {&pointer};
  simt::Launch launch{};
  launch.kernel = kernel();
  launch.arguments = arguments;
  launch.dynamic_shared = reinterpret_cast<char *(*)()>(dlsym(library, "simt_dynamic_shared"));
  launch.static_bytes = static_cast<unsigned>(atoi(argv[3]));
  launch.dynamic_offset = static_cast<unsigned>(atoi(argv[4]));
  launch.dynamic_bytes = static_cast<unsigned>(atoi(argv[5]));
  launch.guard_bytes = 512;
  launch.grid[0] = launch.grid[1] = launch.grid[2] = launch.block[1] = launch.block[2] = 1;
  launch.block[0] = threads;
  launch.order = static_cast<unsigned>(atoi(argv[7]));
  launch.timeout = 60;
  Fault fault{};
  if (run(&launch, &fault)) {
    printf("block (%u,%u,%u) thread (%u,%u,%u) %s:%d: %s\n", fault.block[0], fault.block[1],
           fault.block[2], fault.thread[0], fault.thread[1], fault.thread[2], fault.file,
           fault.line, fault.message);
    return 1;
  }
  for (unsigned word : out) printf("%u\n", word);
}
