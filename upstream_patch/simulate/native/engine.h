// The engine's own parts, and the C interface that Python drives. One launch at a time a process.
#pragma once

#include "fiber.h"
#include "lane_sim.h"

#include <signal.h>

namespace lane_sim {

constexpr unsigned kMaxLanes = 1024;
constexpr unsigned kMaxWarps = kMaxLanes / kWarp;
constexpr unsigned kMaxBuffers = 20;
constexpr unsigned kMaxArrays = 8;
constexpr unsigned kMaxArguments = 32;
constexpr uint32_t kArenaBytes = 1024 * 1024; // what a kernel's unit reserves: any device's, and gaps between arrays

enum Order : int { kInOrder, kReversed, kSkew, kLockstep, kRandom };
enum Check : unsigned { kRaces = 1, kUnwrittenReads = 2, kOutputs = 4, kBounds = 8 };
enum Role : int { kInput, kOutput };

// Mirrored in upstream_patch/simulate/api.py.
struct Config {
  uint64_t seed;
  uint64_t steps; // of a block: accesses to memory and meetings of lanes
  double seconds; // of this process's time on a CPU, for the launch
  int order;
  int sums;
  unsigned checks;
  unsigned shared_bytes;
  unsigned shared_limit;
  unsigned fill;
  unsigned argument_count;
  unsigned named; // whether the kernel has named barriers, which the race checker must then keep more for
  const char* excused_file; // its name without folders
  unsigned excused[8]; // its lines that may read shared memory nobody wrote, or index past an array's end
};

struct Report {
  int failed;
  int block[3];
  int lane;
  int line;
  uint64_t pc; // within the library, where the compiler's own instrumentation found it
  char kind[32];
  char file[256];
  char text[1024];
  uint64_t switches, collectives, barriers, shared_accesses, global_accesses, copies, excused_reads;
};

struct Where { // of an access: a line of the kernel, or a place in its code
  uint32_t id = 0;
  static Where of(Site);
  static Where of(const void* pc);
  void describe(char* to, size_t size) const;
  bool is_excused() const;
};

enum class State : uint8_t { ready, at_warp, at_block, at_named, done };

struct Copy {
  uint32_t to;
  const char* from;
  unsigned bytes;
  uint32_t group;
  bool landed;
  Where where;
};

struct Lane {
  void* sp = nullptr;
  const char* stack = nullptr; // its first byte, of the guard page
  State state = State::done;
  unsigned id = 0, lane = 0, warp = 0;
  Dim3 index{};
  Site site{};
  const char* what = nullptr;
  Collective act = nullptr;
  void* slot = nullptr;
  bool fence = true;
  unsigned named = 0; // the barrier it waits at, where it is one with a name
  // Async copies: those in flight, and the group that the next one joins.
  Copy* copies = nullptr;
  unsigned copy_count = 0, copy_room = 0;
  uint32_t group = 0;
  Where last{}; // its last access to memory that lanes share
  unsigned arrays = 0; // of those in shared memory, how many this lane has asked for
};

struct Array { // in shared memory
  uint32_t offset, bytes;
  Site site;
};

struct Engine {
  Config config{};
  Report report{};
  Stacks stacks;
  Lane lanes[kMaxLanes];
  Lane* current = nullptr; // null while the scheduler runs
  void* scheduler = nullptr;
  unsigned lane_count = 0, warp_count = 0;
  Dim3 grid{}, block{}, at{};
  uint64_t random_state = 1;
  bool stopped = false;
  uint64_t steps = 0;
  // Copies of the launch's: what a lane may read besides buffers, its stack and constants.
  uint64_t cells[kMaxArguments] = {};
  void* arguments[kMaxArguments] = {};
  unsigned turn = 0; // accesses since a lane last gave way to other warps
  bool gave_way = false;
  volatile sig_atomic_t late = 0; // the launch's time is up: the lane's next access ends it
  Array arrays[kMaxArrays];
  unsigned array_count = 0;

  uint32_t random();
  // Counts what lanes do; a kernel that never ends is a fault.
  void step();
  // An access to memory that lanes share. A lane that polls gives way to others from time to time.
  void touch(Where);
  // As that; in a random schedule, others may run before the access.
  void preempt(Where);
};
extern Engine engine;

// Ends the launch with the first fault. In a lane it does not return.
void fail(const char* kind, Site site, const char* format, ...) __attribute__((format(printf, 3, 4)));
void fail_at(const char* kind, const void* pc, const char* format, ...) __attribute__((format(printf, 3, 4)));

// checker.cpp: who touched which byte of shared memory, and when in terms of barriers.
void checker_begin_block();
void checker_block_barrier();
void checker_warp_barrier(unsigned warp);
void check_shared(uint32_t offset, unsigned bytes, bool write, Where where);
void check_copy_issued(uint32_t offset, unsigned bytes, Where where);
void check_copy_done(uint32_t offset, unsigned bytes);

void checker_named_barrier(uint32_t warps);

// named.cpp
void named_begin_block();
// Opens those that are full. False where none is.
bool release_named();

// arrays.cpp
bool in_one_array(uint32_t offset, unsigned bytes);

// sanitize.cpp
bool is_excused(const char* file, unsigned line);

// budget.cpp: what a kernel that does not end is told.
void fail_endless(const char* why);
void budget_begin_launch();
void budget_end_launch();

// image.cpp: the kernel's library in memory.
const void* module_base();
bool is_constant(const void* p);

// memory.cpp: buffers between guard pages.
void check_global(const void* p, unsigned bytes, bool write, Where where);
bool is_global(const void* p);
void memory_begin_launch();
void memory_end_launch();
bool catch_faults(bool on);
const void* pc_of(void* context);

// engine.cpp
void give_way();
unsigned lanes_of(unsigned warp);
bool same_place(const Lane&, const Lane&);
void diverged(const Lane&, const Lane&);
void wait(State, const char* what, Collective, void* slot, bool fence, Site);

// copies.cpp
void copies_end_of_lane(Lane& lane);

} // namespace lane_sim

extern "C" {
// A buffer of `bytes` between guard pages: at the end of its pages, or `offset` bytes after their start. Null: no memory.
void* lane_sim_buffer(size_t bytes, int role, int at_end, size_t offset);
void lane_sim_release();
// Runs a grid. 0, or 1 with the fault in `report`.
int lane_sim_launch(
    const lane_sim::Config* config, const unsigned* grid, const unsigned* block, void* const* arguments,
    lane_sim::Report* report);
}
