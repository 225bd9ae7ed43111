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

enum class Element { bf16, f16, f32 };

struct Quad {
  float v[4];
};

// The same for the whole life of a lane, so a compiler may keep them.
__attribute__((const)) Dim3 thread_index();
__attribute__((const)) Dim3 block_index();
__attribute__((const)) Dim3 block_size();
__attribute__((const)) Dim3 grid_size();
__attribute__((const)) unsigned lane_in_warp();

// Barriers order memory among the lanes of a block, or of a warp; without a fence they only meet.
void block_barrier(const char* what, Site, bool fence = true);
void warp_barrier(const char* what, Site, bool fence = true);

// `bar.sync id, count`: opens when `count` lanes have come, in whole warps. They must stand at one place, as at a barrier
// of the block.
void named_barrier(const char* what, unsigned id, unsigned count, Site);
unsigned block_lanes();

// All lanes of a warp meet, and `act` sees what each of them holds. It is not a memory fence.
using Collective = void (*)(void* const (&slots)[kWarp], unsigned lanes);
void warp_collective(const char* what, Collective act, void* slot, Site);
// What a GPU leaves undefined where a warp has fewer lanes is a fault.
void need_whole_warp(const char* what, Site);
// What every lane of the warp brings, to each of them; and the value of lane `from`, which must be one of them.
void warp_values(const char* what, uint32_t value, uint32_t (&all)[kWarp], Site);
uint32_t warp_shuffle(const char* what, uint32_t value, unsigned from, Site);
void need_mask(const char* what, uint32_t mask, Site);
Quad mma_16x8x16(Element, const uint32_t (&a)[4], const uint32_t (&b)[2], Quad c, Site);
Quad mma_16x8x8_tf32(const uint32_t (&a)[4], const uint32_t (&b)[2], Quad c, Site);

// One lane's elements of a matrix that its warp holds, `count` of them, in the order of their map.
struct Fragment {
  Element type;
  const void* elements;
  unsigned count;
};
// c += a b for the whole warp, in Metal's two kinds. Blocks of 8 x 8, two elements a lane; or of 16 x 16, eight a lane,
// stacked along the longer side: a is 16 x 16, b 16 x 32, c 16 x 32, and a transposed operand is held as it is stored.
void multiply_8x8x8(Fragment a, Fragment b, float* c, Site);
void multiply_16x32x16(Fragment a, bool a_transposed, Fragment b, bool b_transposed, float* c, Site);

// A static array in the block's shared memory. Every lane must ask for the same arrays in the same order, and gets the
// same addresses. Once a block has such arrays, only bytes of them may be touched.
void* shared_array(size_t bytes, size_t alignment, Site);

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
