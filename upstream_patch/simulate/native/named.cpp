// Named barriers: a part of a block's warps meets, while the others go on.
#include "engine.h"

namespace lane_sim {

namespace {

constexpr unsigned kNames = 16;

struct Named {
  unsigned expected = 0; // lanes; 0 where nobody has come
};
Named barriers[kNames];

struct Call {
  unsigned id, count;
  Site site;
};

// Once for every warp that comes.
void arrive(void* const (&slots)[kWarp], unsigned lanes) {
  const auto& first = *static_cast<const Call*>(slots[0]);
  for (unsigned i = 1; i < lanes; ++i) {
    const auto& other = *static_cast<const Call*>(slots[i]);
    if (other.id != first.id || other.count != first.count) {
      fail("divergence", first.site, "lanes of one warp come to different barriers: %u for %u lanes, %u for %u", first.id,
           first.count, other.id, other.count);
      return;
    }
  }
  Named& barrier = barriers[first.id];
  if (barrier.expected != 0 && barrier.expected != first.count) {
    fail("divergence", first.site, "barrier %u is for %u lanes here, and for %u where others wait at it", first.id,
         first.count, barrier.expected);
    return;
  }
  barrier.expected = first.count;
}

bool open(unsigned id) {
  Named& barrier = barriers[id];
  uint32_t warps = 0;
  unsigned waiting = 0;
  const Lane* first = nullptr;
  for (unsigned i = 0; i < engine.lane_count; ++i) {
    const Lane& lane = engine.lanes[i];
    if (lane.state != State::at_named || lane.named != id) {
      continue;
    }
    ++waiting;
    warps |= 1u << lane.warp;
    if (first == nullptr) {
      first = &lane;
    } else if (!same_place(*first, lane)) {
      diverged(*first, lane);
      return false;
    }
  }
  if (waiting == 0 || waiting < barrier.expected) {
    return false;
  }
  if (waiting > barrier.expected) {
    fail("divergence", first->site, "%u lanes come to barrier %u, which is for %u", waiting, id, barrier.expected);
    return false;
  }
  ++engine.report.barriers;
  checker_named_barrier(warps);
  for (unsigned i = 0; i < engine.lane_count; ++i) {
    Lane& lane = engine.lanes[i];
    if (lane.state == State::at_named && lane.named == id) {
      lane.state = State::ready;
    }
  }
  barrier = {};
  return true;
}

} // namespace

void named_begin_block() {
  for (Named& barrier : barriers) {
    barrier = {};
  }
}

bool release_named() {
  bool opened = false;
  for (unsigned id = 1; engine.config.named != 0 && id < kNames && !engine.stopped; ++id) {
    opened |= open(id);
  }
  return opened;
}

unsigned block_lanes() {
  return engine.lane_count;
}

void named_barrier(const char* what, unsigned id, unsigned count, Site site) {
  if (engine.config.named == 0) {
    fail("launch", site, "the race checker was not told of named barriers");
  }
  if (id == 0 || id >= kNames) {
    fail("barrier", site, "%s with name %u: they are 1 to %u, and 0 is that of __syncthreads", what, id, kNames - 1);
  }
  if (count == 0 || count > engine.lane_count || (count % kWarp != 0 && count != engine.lane_count)) {
    fail("barrier", site, "%s for %u lanes of a block of %u: whole warps, please", what, count, engine.lane_count);
  }
  Call mine = {id, count, site};
  warp_collective(what, arrive, &mine, site);
  engine.current->named = id;
  wait(State::at_named, what, nullptr, nullptr, true, site);
}

} // namespace lane_sim
