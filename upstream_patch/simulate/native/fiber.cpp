#include "fiber.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__APPLE__)
#define SYMBOL(name) "_" name
#define BEGIN(name) ".text\n.globl _" name "\n.p2align 4\n_" name ":\n"
#define END(name) ""
#else
#define SYMBOL(name) name
#define BEGIN(name) ".text\n.globl " name "\n.type " name ",%function\n.p2align 4\n" name ":\n"
#define END(name) ".size " name ", . - " name "\n"
#endif

// Saves the registers that a function must keep, changes the stack, and takes them from there.
#if defined(__x86_64__)
asm(BEGIN("lane_sim_switch")
    "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
    "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
    "ret\n" END("lane_sim_switch"));
static constexpr unsigned kSaved = 6; // words below the return address
static constexpr unsigned kReturn = 6;
static constexpr unsigned kFrame = 8; // a function is entered with the stack 8 below a multiple of 16
#elif defined(__aarch64__)
asm(BEGIN("lane_sim_switch")
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\n"
    "ret\n" END("lane_sim_switch"));
static constexpr unsigned kSaved = 20;
static constexpr unsigned kReturn = 11; // x30
static constexpr unsigned kFrame = 20;
#else
#error "the lane simulator has no context switch for this CPU: x86-64 and AArch64 only"
#endif

namespace lane_sim {

void Stacks::release() {
  if (base != nullptr) {
    munmap(base, count * (kStackBytes + kPage));
  }
  base = nullptr;
  count = 0;
}

bool Stacks::reserve(unsigned lanes) {
  if (lanes <= count) {
    return true;
  }
  release();
  const size_t bytes = lanes * (kStackBytes + kPage);
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  base = made == MAP_FAILED ? nullptr : static_cast<char*>(made);
  count = base == nullptr ? 0 : lanes;
  for (unsigned i = 0; i < count; ++i) {
    mprotect(base + i * (kStackBytes + kPage), kPage, PROT_NONE);
  }
  return base != nullptr;
}

void* Stacks::prepare(unsigned lane, void (*entry)()) const {
  // Tops of neighbouring lanes lie at different offsets in their pages, or they would compete for the same cache sets.
  const size_t colour = lane % 32 * 320;
  char* top = base + (lane + 1) * (kStackBytes + kPage) - colour - 64;
  auto* frame = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
  frame -= kFrame;
  memset(frame, 0, kSaved * sizeof(void*));
  frame[kReturn] = reinterpret_cast<void*>(entry);
  return frame;
}

} // namespace lane_sim
