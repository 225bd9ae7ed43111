// The scheduler: which lane runs next, when a barrier opens, and what cannot go on.
#include "engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace lane_sim {

Engine engine;

namespace {

void to_scheduler() {
  Lane* lane = engine.current;
  ++engine.report.switches;
  if (!engine.stopped) {
    engine.step();
  }
  lane_sim_switch(&lane->sp, engine.scheduler);
}

void lane_main() {
  lane_sim_call(const_cast<void* const*>(engine.arguments));
  copies_end_of_lane(*engine.current);
  engine.current->state = State::done;
  to_scheduler();
  abort(); // nobody resumes a lane that is done
}

void resume(Lane& lane) {
  engine.current = &lane;
  lane_sim_switch(&engine.scheduler, lane.sp);
  engine.current = nullptr;
}

void record(const char* kind, const char* file, int line, const void* pc, const char* format, va_list list) {
  Report& r = engine.report;
  if (engine.stopped) {
    return;
  }
  engine.stopped = true;
  r.failed = 1;
  r.block[0] = static_cast<int>(engine.at.x);
  r.block[1] = static_cast<int>(engine.at.y);
  r.block[2] = static_cast<int>(engine.at.z);
  r.lane = engine.current == nullptr ? -1 : static_cast<int>(engine.current->id);
  r.line = line;
  r.pc = pc == nullptr ? 0 : static_cast<const char*>(pc) - static_cast<const char*>(module_base());
  snprintf(r.kind, sizeof r.kind, "%s", kind);
  snprintf(r.file, sizeof r.file, "%s", file == nullptr ? "" : file);
  vsnprintf(r.text, sizeof r.text, format, list);
}

} // namespace

unsigned lanes_of(unsigned warp) {
  const unsigned rest = engine.lane_count - warp * kWarp;
  return rest < kWarp ? rest : kWarp;
}

bool same_place(const Lane& a, const Lane& b) {
  return a.site.line == b.site.line && a.act == b.act && a.fence == b.fence && strcmp(a.what, b.what) == 0 &&
      strcmp(a.site.file, b.site.file) == 0;
}

void diverged(const Lane& a, const Lane& b) {
  fail("divergence", b.site, "lanes of one group meet at different places: lane %u at %s (line %d), lane %u at %s (line %d)",
       a.id, a.what, a.site.line, b.id, b.what, b.site.line);
}

namespace {

// Opens what all lanes of a warp have reached.
bool release_warp(unsigned warp) {
  Lane* lanes = &engine.lanes[warp * kWarp];
  const unsigned count = lanes_of(warp);
  for (unsigned i = 0; i < count; ++i) {
    if (lanes[i].state != State::at_warp) {
      return false;
    }
  }
  for (unsigned i = 1; i < count; ++i) {
    if (!same_place(lanes[0], lanes[i])) {
      diverged(lanes[0], lanes[i]);
      return false;
    }
  }
  if (lanes[0].act != nullptr) {
    void* slots[kWarp] = {};
    for (unsigned i = 0; i < count; ++i) {
      slots[i] = lanes[i].slot;
    }
    lanes[0].act(slots, count);
    ++engine.report.collectives;
  } else if (lanes[0].fence) {
    checker_warp_barrier(warp);
  }
  for (unsigned i = 0; i < count; ++i) {
    lanes[i].state = State::ready;
  }
  return true;
}

bool release_block() {
  unsigned done = 0;
  const Lane* first = nullptr;
  for (unsigned i = 0; i < engine.lane_count; ++i) {
    const Lane& lane = engine.lanes[i];
    done += lane.state == State::done;
    if (lane.state != State::done && lane.state != State::at_block) {
      return false;
    }
    if (lane.state == State::at_block) {
      if (first == nullptr) {
        first = &lane;
      } else if (!same_place(*first, lane)) {
        diverged(*first, lane);
        return false;
      }
    }
  }
  if (first == nullptr) {
    return false;
  }
  if (done != 0) {
    fail("divergence", first->site, "%s is reached by %u of %u lanes; the others have ended", first->what,
         engine.lane_count - done, engine.lane_count);
    return false;
  }
  ++engine.report.barriers;
  if (first->fence) {
    checker_block_barrier();
  }
  for (unsigned i = 0; i < engine.lane_count; ++i) {
    engine.lanes[i].state = State::ready;
  }
  return true;
}

// Runs the ready lanes of a warp once; true when one of them ran.
bool run_lanes(unsigned warp) {
  const unsigned count = lanes_of(warp);
  const int order = engine.config.order;
  const unsigned turn = order == kSkew || order == kRandom ? engine.random() % count : 0;
  bool ran = false;
  for (unsigned i = 0; i < count && !engine.stopped; ++i) {
    const unsigned at = order == kReversed ? count - 1 - i : (i + turn) % count;
    Lane& lane = engine.lanes[warp * kWarp + at];
    if (lane.state == State::ready) {
      resume(lane);
      ran = true;
    }
  }
  return ran;
}

// Runs one warp as far as it can go alone, or as far as the schedule lets it.
bool run_warp(unsigned warp) {
  bool ran = false;
  while (!engine.stopped) {
    const bool moved = run_lanes(warp);
    const bool released = !engine.stopped && release_warp(warp);
    ran |= moved || released;
    if (engine.gave_way) {
      engine.gave_way = false;
      break;
    }
    if (engine.stopped || (!moved && !released) || engine.config.order == kLockstep) {
      break;
    }
    if (engine.config.order == kRandom && engine.random() % 4 == 0) {
      break;
    }
  }
  return ran;
}

void order_warps(unsigned (&warps)[kMaxWarps]) {
  const unsigned count = engine.warp_count;
  const unsigned first = static_cast<unsigned>(engine.config.seed % count);
  for (unsigned i = 0; i < count; ++i) {
    warps[i] = i;
    if (engine.config.order == kReversed) {
      warps[i] = count - 1 - i;
    } else if (engine.config.order == kSkew) {
      warps[i] = (first + i) % count;
    }
  }
  for (unsigned i = count; engine.config.order == kRandom && i > 1; --i) {
    const unsigned other = engine.random() % i;
    const unsigned kept = warps[i - 1];
    warps[i - 1] = warps[other];
    warps[other] = kept;
  }
}

void stuck() {
  const Lane* first = nullptr;
  const Lane* other = nullptr;
  unsigned waiting = 0;
  for (unsigned i = 0; i < engine.lane_count; ++i) {
    const Lane& lane = engine.lanes[i];
    if (lane.state == State::done) {
      continue;
    }
    ++waiting;
    if (first == nullptr) {
      first = &lane;
    } else if (other == nullptr && !same_place(*first, lane)) {
      other = &lane;
    }
  }
  if (other == nullptr) {
    fail("deadlock", first->site, "%u of %u lanes wait for ever at %s (line %d): the others do not come", waiting,
         engine.lane_count, first->what, first->site.line);
    return;
  }
  fail("deadlock", first->site, "%u of %u lanes wait for ever: lane %u at %s (line %d), lane %u at %s (line %d)", waiting,
       engine.lane_count, first->id, first->what, first->site.line, other->id, other->what, other->site.line);
}

void run_block() {
  for (unsigned i = 0; i < engine.lane_count; ++i) {
    Lane& lane = engine.lanes[i];
    lane.id = i;
    lane.lane = i % kWarp;
    lane.warp = i / kWarp;
    lane.index = {i % engine.block.x, i / engine.block.x % engine.block.y, i / engine.block.x / engine.block.y};
    lane.state = State::ready;
    lane.copy_count = 0;
    lane.group = 0;
    lane.arrays = 0;
    lane.last = {};
    lane.stack = engine.stacks.of(i);
    lane.sp = engine.stacks.prepare(i, lane_main);
  }
  engine.steps = 0;
  engine.array_count = 0;
  named_begin_block();
  checker_begin_block();
  unsigned warps[kMaxWarps];
  while (!engine.stopped) {
    order_warps(warps);
    bool moved = false;
    for (unsigned i = 0; i < engine.warp_count && !engine.stopped; ++i) {
      moved |= run_warp(warps[i]);
    }
    bool live = false;
    for (unsigned i = 0; i < engine.lane_count; ++i) {
      live |= engine.lanes[i].state != State::done;
    }
    if (!live || engine.stopped) {
      return;
    }
    if (!release_named() && !release_block() && !moved && !engine.stopped) {
      stuck();
    }
  }
}

} // namespace

uint32_t Engine::random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return static_cast<uint32_t>(random_state >> 32);
}

void give_way() {
  to_scheduler(); // the lane stays ready
}

void fail(const char* kind, Site site, const char* format, ...) {
  va_list list;
  va_start(list, format);
  record(kind, site.file, site.line, nullptr, format, list);
  va_end(list);
  if (engine.current != nullptr) {
    to_scheduler(); // which sees `stopped` and never comes back
  }
}

void fail_at(const char* kind, const void* pc, const char* format, ...) {
  va_list list;
  va_start(list, format);
  record(kind, nullptr, 0, pc, format, list);
  va_end(list);
  if (engine.current != nullptr) {
    to_scheduler();
  }
}

Dim3 thread_index() {
  return engine.current->index;
}
Dim3 block_index() {
  return engine.at;
}
Dim3 block_size() {
  return engine.block;
}
Dim3 grid_size() {
  return engine.grid;
}
unsigned lane_in_warp() {
  return engine.current->lane;
}

void wait(State state, const char* what, Collective act, void* slot, bool fence, Site site) {
  Lane& lane = *engine.current;
  lane.what = what;
  lane.site = site;
  lane.act = act;
  lane.slot = slot;
  lane.fence = fence;
  lane.state = state;
  to_scheduler();
}

void block_barrier(const char* what, Site site, bool fence) {
  wait(State::at_block, what, nullptr, nullptr, fence, site);
}

void warp_collective(const char* what, Collective act, void* slot, Site site) {
  wait(State::at_warp, what, act, slot, false, site);
}

void warp_barrier(const char* what, Site site, bool fence) {
  wait(State::at_warp, what, nullptr, nullptr, fence, site);
}

} // namespace lane_sim

extern "C" int lane_sim_launch(
    const lane_sim::Config* config, const unsigned* grid, const unsigned* block, void* const* arguments,
    lane_sim::Report* report) {
  using namespace lane_sim;
  engine.config = *config;
  engine.report = {};
  engine.stopped = false;
  engine.grid = {grid[0], grid[1], grid[2]};
  engine.block = {block[0], block[1], block[2]};
  engine.lane_count = block[0] * block[1] * block[2];
  engine.warp_count = (engine.lane_count + kWarp - 1) / kWarp;
  engine.random_state = (config->seed + 1) * 0x9E3779B97F4A7C15ull | 1;
  engine.at = {};
  for (unsigned i = 0; i < kMaxArguments; ++i) { // a parameter that is given no argument is read at null
    engine.arguments[i] = i < config->argument_count ? &engine.cells[i] : nullptr;
    if (i < config->argument_count) {
      memcpy(&engine.cells[i], arguments[i], sizeof engine.cells[i]);
    }
  }
  const Site nowhere = {"", 0};
  if (engine.lane_count == 0 || engine.lane_count > kMaxLanes) {
    fail("launch", nowhere, "a block has 1 to %u lanes, not %u", kMaxLanes, engine.lane_count);
  } else if (config->shared_bytes > config->shared_limit) {
    fail("launch", nowhere, "a block asks for %u bytes of shared memory; the device has %u", config->shared_bytes,
         config->shared_limit);
  } else if (config->argument_count > kMaxArguments) {
    fail("launch", nowhere, "%u arguments; the simulator passes at most %u", config->argument_count, kMaxArguments);
  } else if (!engine.stacks.reserve(engine.lane_count)) {
    fail("launch", nowhere, "no memory for %u stacks", engine.lane_count);
  } else {
    memory_begin_launch();
    catch_faults(true);
    budget_begin_launch();
    for (unsigned z = 0; z < grid[2] && !engine.stopped; ++z) {
      for (unsigned y = 0; y < grid[1] && !engine.stopped; ++y) {
        for (unsigned x = 0; x < grid[0] && !engine.stopped; ++x) {
          engine.at = {x, y, z};
          run_block();
        }
      }
    }
    budget_end_launch();
    catch_faults(false);
    memory_end_launch();
  }
  *report = engine.report;
  return report->failed;
}
