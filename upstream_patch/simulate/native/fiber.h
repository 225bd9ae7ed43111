// One fiber: a stack of its own and the registers that a call must keep. Switching is a dozen instructions.
#pragma once

#include <stddef.h>

extern "C" void lane_sim_switch(void** save, void* to);

namespace lane_sim {

constexpr size_t kPage = 16384; // a multiple of every page size in use
constexpr size_t kStackBytes = 12 * kPage;

struct Stacks {
  char* base = nullptr;
  unsigned count = 0;

  // Makes room for `lanes` stacks, each with a guard page below it. False where the system has no memory left.
  bool reserve(unsigned lanes);
  void release();
  bool contains(const void* p) const {
    return static_cast<size_t>(static_cast<const char*>(p) - base) < count * (kStackBytes + kPage);
  }
  const char* of(unsigned lane) const {
    return base + lane * (kStackBytes + kPage);
  }
  // A stack pointer from which lane_sim_switch enters `entry`.
  void* prepare(unsigned lane, void (*entry)()) const;
};

} // namespace lane_sim
