// Buffers between guard pages, every access to them, and the faults that the system reports.
#include "engine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__linux__)
#include <ucontext.h>
#endif

namespace lane_sim {

namespace {

struct Buffer {
  char* map;
  size_t map_bytes; // with the guards
  char* first;
  size_t size;
  int role;
  uint32_t* writer; // of each byte of an output: 1 + the lane's number in the grid
};

// Address space that nothing may touch, on both sides: what runs out of one buffer does not land in another.
constexpr size_t kGuard = size_t{4} << 30; // what a 32-bit offset reaches

Buffer buffers[kMaxBuffers];
unsigned buffer_count = 0;

const Buffer* buffer_of(const void* p) {
  for (unsigned i = 0; i < buffer_count; ++i) {
    if (static_cast<size_t>(static_cast<const char*>(p) - buffers[i].map) < buffers[i].map_bytes) {
      return &buffers[i];
    }
  }
  return nullptr;
}

uint32_t lane_in_grid() {
  const uint32_t block = (engine.at.z * engine.grid.y + engine.at.y) * engine.grid.x + engine.at.x;
  return block * kMaxLanes + engine.current->id + 1;
}

struct sigaction kept_segv, kept_bus, kept_fpe;
stack_t kept_stack;
char* signal_stack = nullptr;
constexpr size_t kSignalStack = 8 * kPage;

void on_signal(int number, siginfo_t* info, void* context) {
  if (engine.current == nullptr) { // not a lane's: as if we were not here
    catch_faults(false);
    return;
  }
  const void* pc = pc_of(context);
  const void* address = info->si_addr;
  const Buffer* buffer = buffer_of(address);
  if (number == SIGFPE) {
    fail_at("arithmetic", pc, "division by zero, or a quotient that does not fit");
  } else if (buffer != nullptr) {
    fail_at("out of bounds", pc, "touches a guard page of argument %d, %td bytes from the buffer's start",
            static_cast<int>(buffer - buffers), static_cast<const char*>(address) - buffer->first);
  } else if (engine.stacks.contains(address)) {
    fail_at("stack overflow", pc, "the lane's stack of %zu bytes is not enough", kStackBytes);
  } else {
    fail_at("out of bounds", pc, "touches %p, which is in no buffer", address);
  }
}

} // namespace

const void* pc_of(void* context) {
  auto* c = static_cast<ucontext_t*>(context);
#if defined(__linux__) && defined(__x86_64__)
  return reinterpret_cast<const void*>(c->uc_mcontext.gregs[16]); // RIP
#elif defined(__linux__) && defined(__aarch64__)
  return reinterpret_cast<const void*>(c->uc_mcontext.pc);
#elif defined(__APPLE__) && defined(__aarch64__)
  return reinterpret_cast<const void*>(c->uc_mcontext->__ss.__pc);
#elif defined(__APPLE__) && defined(__x86_64__)
  return reinterpret_cast<const void*>(c->uc_mcontext->__ss.__rip);
#else
  (void)c;
  return nullptr;
#endif
}

bool catch_faults(bool on) {
  if (!on) {
    sigaction(SIGSEGV, &kept_segv, nullptr);
    sigaction(SIGBUS, &kept_bus, nullptr);
    sigaction(SIGFPE, &kept_fpe, nullptr);
    sigaltstack(&kept_stack, nullptr);
    return true;
  }
  if (signal_stack == nullptr) {
    signal_stack = static_cast<char*>(malloc(kSignalStack));
  }
  // The handler leaves by switching to the scheduler, so nothing may stay blocked and its stack is free again.
  stack_t stack = {};
  stack.ss_sp = signal_stack;
  stack.ss_size = kSignalStack;
  sigaltstack(&stack, &kept_stack);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  return sigaction(SIGSEGV, &action, &kept_segv) == 0 && sigaction(SIGBUS, &action, &kept_bus) == 0 &&
      sigaction(SIGFPE, &action, &kept_fpe) == 0;
}

bool is_global(const void* p) {
  return buffer_of(p) != nullptr;
}

void check_global(const void* p, unsigned size, bool write, Where where) {
  const Buffer* b = buffer_of(p);
  char here[300];
  if (b == nullptr) {
    where.describe(here, sizeof here);
    fail("out of bounds", Site{"", 0}, "%s | %s of %u bytes at %p, which is in no buffer", here, write ? "write" : "read",
         size, p);
    return;
  }
  ++engine.report.global_accesses;
  const char* at = static_cast<const char*>(p);
  const auto offset = at - b->first;
  const int argument = static_cast<int>(b - buffers);
  if (offset < 0 || static_cast<size_t>(offset) + size > b->size) {
    where.describe(here, sizeof here);
    fail("out of bounds", Site{"", 0}, "%s | %s of %u bytes at byte %td of buffer %d, which has %zu", here,
         write ? "write" : "read", size, offset, argument, b->size);
  }
  if (!write) {
    engine.touch(where);
    return;
  }
  if (b->role != kOutput) {
    where.describe(here, sizeof here);
    fail("write to an input", Site{"", 0}, "%s | byte %td of buffer %d", here, offset, argument);
  }
  engine.preempt(where);
  const uint32_t mine = lane_in_grid();
  for (unsigned i = 0; i < size; ++i) {
    uint32_t& writer = b->writer[offset + i];
    if (writer != 0 && (engine.config.checks & kOutputs)) {
      where.describe(here, sizeof here);
      fail("written twice", Site{"", 0}, "%s | output byte %td of buffer %d: lane %u of block %u wrote it before", here,
           offset + i, argument, (writer - 1) % kMaxLanes, (writer - 1) / kMaxLanes);
    }
    writer = mine;
  }
}

void memory_begin_launch() {
  for (unsigned i = 0; i < buffer_count; ++i) {
    if (buffers[i].writer != nullptr) {
      memset(buffers[i].writer, 0, buffers[i].size * sizeof(uint32_t));
    }
  }
}

void memory_end_launch() {
  if (engine.stopped || !(engine.config.checks & kOutputs)) {
    return;
  }
  for (unsigned i = 0; i < buffer_count; ++i) {
    const Buffer& b = buffers[i];
    size_t missing = 0, first = 0;
    for (size_t at = 0; b.writer != nullptr && at < b.size; ++at) {
      if (b.writer[at] == 0 && missing++ == 0) {
        first = at;
      }
    }
    if (missing != 0) {
      fail("never written", Site{"", 0}, "%zu of the %zu bytes of output buffer %u are never written, first byte %zu",
           missing, b.size, i, first);
      return;
    }
  }
}

} // namespace lane_sim

extern "C" {

void* lane_sim_buffer(size_t size, int role, int at_end, size_t offset) {
  using namespace lane_sim;
  const size_t inner = (size + offset + kPage - 1) / kPage * kPage + (size + offset == 0 ? kPage : 0);
  if (buffer_count == kMaxBuffers) {
    return nullptr;
  }
  void* made = mmap(nullptr, inner + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) {
    return nullptr;
  }
  char* map = static_cast<char*>(made);
  if (mprotect(map + kGuard, inner, PROT_READ | PROT_WRITE) != 0) {
    munmap(map, inner + 2 * kGuard);
    return nullptr;
  }
  memset(map + kGuard, 0xFF, inner); // what lies around a buffer is NaN
  char* first = map + kGuard + (at_end != 0 ? inner - size - offset : offset);
  auto* writer = role == kOutput ? static_cast<uint32_t*>(calloc(size + 1, sizeof(uint32_t))) : nullptr;
  buffers[buffer_count++] = {map, inner + 2 * kGuard, first, size, role, writer};
  return first;
}

void lane_sim_release() {
  using namespace lane_sim;
  for (unsigned i = 0; i < buffer_count; ++i) {
    munmap(buffers[i].map, buffers[i].map_bytes);
    free(buffers[i].writer);
  }
  buffer_count = 0;
}
void lane_sim_forget() {
  lane_sim::engine.stacks.release();
}
}
