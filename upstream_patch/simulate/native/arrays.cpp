// Static arrays in shared memory. Each lies in a place of its own, with bytes between that nothing may touch: what runs
// out of one array by less than these bytes does not land in the next.
#include "engine.h"

#include <string.h>

namespace lane_sim {

namespace {

constexpr uint32_t kGap = 64 * 1024 + 512; // more than a threadgroup has; not all in the same sets of a cache

uint32_t used() {
  uint32_t bytes = 0;
  for (unsigned i = 0; i < engine.array_count; ++i) {
    bytes += engine.arrays[i].bytes;
  }
  return bytes;
}

} // namespace

bool in_one_array(uint32_t offset, unsigned bytes) {
  for (unsigned i = 0; i < engine.array_count; ++i) {
    const Array& array = engine.arrays[i];
    if (offset >= array.offset && offset - array.offset <= array.bytes && array.bytes - (offset - array.offset) >= bytes) {
      return true;
    }
  }
  return false;
}

void* shared_array(size_t bytes, size_t alignment, Site site) {
  Lane& lane = *engine.current;
  const unsigned number = lane.arrays++;
  if (number == kMaxArrays) {
    fail("launch", site, "a block has more than %u arrays in shared memory", kMaxArrays);
  }
  if (number < engine.array_count) {
    const Array& array = engine.arrays[number];
    if (array.bytes != bytes || array.site.line != site.line || strcmp(array.site.file, site.file) != 0) {
      fail("divergence", site, "lanes of one block declare different arrays in shared memory: this one, and that of line %d",
           array.site.line);
    }
    return lane_sim_arena + array.offset;
  }
  if (used() + bytes > engine.config.shared_limit) {
    fail("launch", site, "a block's arrays in shared memory take %zu bytes; the device has %u", used() + bytes,
         engine.config.shared_limit);
  }
  const Array* last = number == 0 ? nullptr : &engine.arrays[number - 1];
  const uint32_t after = last == nullptr ? kGap : last->offset + last->bytes + kGap;
  const auto offset = static_cast<uint32_t>((after + alignment - 1) / alignment * alignment);
  if (offset + bytes > kArenaBytes) {
    fail("launch", site, "no room for a block's arrays in shared memory with bytes between them");
  }
  engine.arrays[engine.array_count++] = {offset, static_cast<uint32_t>(bytes), site};
  memset(lane_sim_arena + offset, static_cast<int>(engine.config.fill), bytes);
  return lane_sim_arena + offset;
}

} // namespace lane_sim
