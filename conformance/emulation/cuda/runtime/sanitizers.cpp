// What the compiler's sanitizers report of a kernel, as a fault with block, thread and place.
// Undefined behaviour: always by the handlers here. Addresses (Check::SANITIZERS): the kernel
// compares each with the shadow memory of the AddressSanitizer that was preloaded, and is linked so
// that its report comes here. What the runtime touches for the kernel is looked up by check_poison.
#include "state.h"

extern "C" {  // there when AddressSanitizer is
__attribute__((weak)) void *__asan_region_is_poisoned(void *begin, size_t size);
__attribute__((weak)) void __asan_poison_memory_region(const volatile void *begin, size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void *begin, size_t size);
__attribute__((weak)) const char *__asan_locate_address(void *address, char *name, size_t name_size,
                                                        void **begin, size_t *size);
}

namespace simt {

void set_poison(const char *begin, const char *end, bool poisoned) {
  if (!(block.launch.checks & SANITIZERS)) return;
  const size_t size = static_cast<size_t>(end - begin);
  poisoned ? __asan_poison_memory_region(begin, size) : __asan_unpoison_memory_region(begin, size);
}

// Where `address` lies: shared or local memory, else the object that it is in or beside.
static std::string neighbourhood(const void *address, unsigned size) {
  const std::string own = address_report(address, size);
  if (own.compare(0, 7, "address") != 0) return own;
  char name[128] = "";
  void *begin = nullptr;
  size_t bytes = 0;
  const char *kind = __asan_locate_address(const_cast<void *>(address), name, sizeof name, &begin,
                                           &bytes);
  if (!begin) return own;
  return "byte " + std::to_string(static_cast<const char *>(address) - static_cast<char *>(begin)) +
         " of an object of " + std::to_string(bytes) + " bytes (" + kind +
         (*name ? std::string(" ") + name : "") + ")";
}

static void report_address(const void *address, unsigned size, Access access, const Site &site) {
  const char *what = access == Access::Read ? "read" : access == Access::Write ? "write" : "atomic";
  const void *bad = __asan_region_is_poisoned(const_cast<void *>(address), size);
  stop(std::string(what) + " of " + std::to_string(size) +
           " bytes of memory that is no live object's (AddressSanitizer): " +
           neighbourhood(bad ? bad : address, 1),
       site.place, site.pc);
}

void check_poison(const void *address, unsigned size, Access access, const Site &site) {
  if (!__asan_region_is_poisoned(const_cast<void *>(address), size)) return;
  report_address(address, size, access, site);
}

}  // namespace simt

// The kernel is linked with --wrap for all of these.
#define REPORTS(ACCESS, WHICH)                                                                  \
  SIMT_EXPORT void __wrap___asan_report_##ACCESS##1(void *p) { REPORT(p, 1, WHICH); }           \
  SIMT_EXPORT void __wrap___asan_report_##ACCESS##2(void *p) { REPORT(p, 2, WHICH); }           \
  SIMT_EXPORT void __wrap___asan_report_##ACCESS##4(void *p) { REPORT(p, 4, WHICH); }           \
  SIMT_EXPORT void __wrap___asan_report_##ACCESS##8(void *p) { REPORT(p, 8, WHICH); }           \
  SIMT_EXPORT void __wrap___asan_report_##ACCESS##16(void *p) { REPORT(p, 16, WHICH); }         \
  SIMT_EXPORT void __wrap___asan_report_##ACCESS##_n(void *p, size_t size) {                    \
    REPORT(p, static_cast<unsigned>(size), WHICH);                                              \
  }
#define REPORT(P, SIZE, WHICH) \
  simt::report_address(P, SIZE, simt::Access::WHICH, {__builtin_return_address(0), {}})

// The layouts are those of the compiler's undefined-behaviour checks: the place comes first.
struct SourceLocation {
  const char *file;
  unsigned line, column;
};
struct TypeDescriptor {
  unsigned short kind, info;
  char name[1];
};
struct OutOfBounds {
  SourceLocation place;
  const TypeDescriptor *array, *index;
};
struct TypeMismatch {
  SourceLocation place;
  const TypeDescriptor *type;
  unsigned char log_alignment, kind;
};
static simt::Place place_of(const SourceLocation &s) { return {s.file, static_cast<int>(s.line)}; }

#define UNDEFINED(NAME, SENTENCE)                                 \
  SIMT_EXPORT void __ubsan_handle_##NAME(SourceLocation *data) {  \
    simt::stop(SENTENCE, place_of(*data));                        \
  }

extern "C" {
// Before a call that does not return: of a fiber's stack AddressSanitizer knows nothing, and
// simt_launch cleans it.
SIMT_EXPORT void __wrap___asan_handle_no_return() {}
REPORTS(load, Read)
REPORTS(store, Write)

UNDEFINED(add_overflow_abort, "signed overflow in an addition")
UNDEFINED(sub_overflow_abort, "signed overflow in a subtraction")
UNDEFINED(mul_overflow_abort, "signed overflow in a multiplication")
UNDEFINED(negate_overflow_abort, "signed overflow in a negation")
UNDEFINED(divrem_overflow_abort, "integer division by zero (or overflow)")
UNDEFINED(shift_out_of_bounds_abort, "shift of a negative number, or by its width or more")
UNDEFINED(pointer_overflow_abort,
          "pointer arithmetic on a null pointer, or around the end of memory")
UNDEFINED(load_invalid_value_abort, "a bool or enum that holds none of its values")
UNDEFINED(vla_bound_not_positive_abort, "array whose length is not positive")
UNDEFINED(nonnull_arg_abort, "null pointer where a function takes none")
UNDEFINED(invalid_builtin_abort, "__builtin_clz or __builtin_ctz of 0")
UNDEFINED(builtin_unreachable, "control reached __builtin_unreachable()")
UNDEFINED(missing_return, "a function ends without the value that it returns")

SIMT_EXPORT void __ubsan_handle_out_of_bounds_abort(OutOfBounds *data, uintptr_t index) {
  simt::stop("index " + std::to_string(static_cast<int64_t>(index)) +
                 " is outside an array of type " + data->array->name,
             place_of(data->place));
}
SIMT_EXPORT void __ubsan_handle_type_mismatch_v1_abort(TypeMismatch *data, uintptr_t pointer) {
  const std::string type = data->type->name;
  const uintptr_t alignment = uintptr_t{1} << data->log_alignment;
  const std::string where = simt::address_report(reinterpret_cast<const void *>(pointer), 1);
  const char *what = !pointer ? "null pointer: type " : "object too small: type ";
  simt::stop(pointer % alignment
                 ? "misaligned access: type " + type + " needs an address that is a multiple of " +
                       std::to_string(alignment) + "; " + where
                 : what + type + "; " + where,
             place_of(data->place));
}
}
