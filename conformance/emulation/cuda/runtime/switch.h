// Switching stacks: simt_switch(&save, load) stores the callee-saved registers and the stack
// pointer of the caller, and goes on where `load` was stored.
#pragma once
#include <cstdint>
#include <cstring>

extern "C" void simt_switch(void **save, void *load);

#if defined(__x86_64__)
// The jump instead of a `ret`: a return would always be mispredicted.
asm(R"(.text
.hidden simt_switch
.type simt_switch,@function
.globl simt_switch
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size simt_switch, .-simt_switch
)");

inline void *new_stack(char *top, void (*entry)()) {
  void **sp = reinterpret_cast<void **>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
  *--sp = nullptr;  // the return address that entry's frame expects: it never returns
  *--sp = reinterpret_cast<void *>(entry);
  for (int i = 0; i < 6; ++i) *--sp = nullptr;
  return sp;
}
#elif defined(__aarch64__)
asm(R"(.text
.hidden simt_switch
.type simt_switch,@function
.globl simt_switch
simt_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  br x30
.size simt_switch, .-simt_switch
)");

inline void *new_stack(char *top, void (*entry)()) {
  char *sp = reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) - 160;
  memset(sp, 0, 160);
  reinterpret_cast<void **>(sp)[11] = reinterpret_cast<void *>(entry);  // x30
  return sp;
}
#else
#error "the CUDA emulation has context switches for x86-64 and aarch64 only: add one here"
#endif
