#include "tests/fakegpu/simt/fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#ifndef __x86_64__
#error "the fake devices switch stacks with code for x86-64; another machine needs its own fakegpu_switch_stacks"
#endif

// Keeps what the calling convention asks to be kept, and goes on with the other stack. ucontext does a system call for it.
extern "C" void fakegpu_switch_stacks(void** from, void* to);
asm(R"(
.text
.hidden fakegpu_switch_stacks
.globl fakegpu_switch_stacks
.type fakegpu_switch_stacks, @function
fakegpu_switch_stacks:
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
  ret
.size fakegpu_switch_stacks, .-fakegpu_switch_stacks
)");

namespace fakegpu {
namespace {

constexpr std::size_t guard_bytes = 4096;
constexpr std::size_t kept_registers = 6;

// One kernel runs at a time, under the runtime's lock.
void* owner = nullptr;
void** running = nullptr;

}  // namespace

Fiber::Fiber() {
  void* p = mmap(nullptr, guard_bytes + fiber_stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || mprotect(p, guard_bytes, PROT_NONE) != 0) {
    std::perror("fakegpu: a stack for a thread of a kernel");
    std::abort();
  }
  stack_ = static_cast<std::byte*>(p);
}

Fiber::~Fiber() { munmap(stack_, guard_bytes + fiber_stack_bytes); }

void Fiber::prepare(void (*entry)()) {
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + guard_bytes + fiber_stack_bytes);
  *--top = 0;  // where entry() would return to; with it the stack is aligned as after a call
  *--top = reinterpret_cast<std::uintptr_t>(entry);
  for (std::size_t i = 0; i < kept_registers; ++i) *--top = 0;
  pointer_ = top;
}

void Fiber::resume() {
  running = &pointer_;
  fakegpu_switch_stacks(&owner, pointer_);
}

void Fiber::leave() { fakegpu_switch_stacks(running, owner); }

}  // namespace fakegpu
