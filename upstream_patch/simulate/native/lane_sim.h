// What a front (the header that gives a GPU language its CPU meaning) may ask of the engine.
// A lane is one GPU thread; 32 lanes are a warp (CUDA) or simdgroup (Metal); warps make a block or threadgroup.
// Every call that can fail names where it stands in the kernel: a front takes that as a default argument, LANE_SIM_SITE.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define LANE_SIM_SITE \
  ::lane_sim::Site site = {                   \
    __builtin_FILE(), __builtin_LINE()         \
  }

namespace lane_sim {

constexpr unsigned kWarp = 32;

struct Site {
  const char* file;
  int line;
};

struct Dim3 {
  unsigned x, y, z;
};

enum class Element { bf16, f16 };

struct Quad {
  float v[4];
};

// The same for the whole life of a lane, so a compiler may keep them.
__attribute__((const)) Dim3 thread_index();
__attribute__((const)) Dim3 block_index();
__attribute__((const)) Dim3 block_size();
__attribute__((const)) Dim3 grid_size();
__attribute__((const)) unsigned lane_in_warp();

// Barriers order memory: among the lanes of a block, or of a warp.
void block_barrier(const char* what, Site);
void warp_barrier(const char* what, Site);

// All lanes of a warp meet, and `act` sees what each of them holds. It is not a memory fence.
using Collective = void (*)(void* const (&slots)[kWarp], unsigned lanes);
void warp_collective(const char* what, Collective act, void* slot, Site);
uint32_t warp_shuffle(uint32_t value, unsigned from, Site);
Quad mma_16x8x16(Element, const uint32_t (&a)[4], const uint32_t (&b)[2], Quad c, Site);
Quad mma_16x8x8_tf32(const uint32_t (&a)[4], const uint32_t (&b)[2], Quad c, Site);

// The block's shared memory, addressed by offsets.
uint32_t shared_offset(const void* p, Site);
void shared_load(void* to, uint32_t from, unsigned bytes, Site);
void shared_store(uint32_t to, const void* from, unsigned bytes, Site);

// Copies from global to shared memory that land somewhere between their issue and the wait that covers their group.
void async_copy(uint32_t to, const void* from, unsigned bytes, Site);
void async_commit();
void async_wait(unsigned pending);

} // namespace lane_sim

// Supplied by the translation unit of a kernel: its shared memory, and a call of it with pointers to its arguments.
extern "C" {
extern char* const lane_sim_arena;
void lane_sim_call(void* const* arguments);
}
