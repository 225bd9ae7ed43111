// The race checker: exact, per byte of shared memory.
//
// Two accesses of one byte, one of them a write, are in order when one lane makes both, when a barrier of the block lies
// between them, or, within a warp, one of the warp; or named barriers, from the warp of the first to that of the second.
// Barriers are counted: a byte keeps the counts at its last write and at its reads. Older ones need not be kept: whoever
// is in order with the last write is so with all before it, and a write beside readers of two warps races whatever their
// lanes are, unless named barriers order one of the two.
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace lane_sim {

namespace {

struct Byte {
  uint32_t written_block = 0, written_warp = 0; // barrier counts at the last write
  uint32_t written_clock = 0; // its warp's
  uint32_t read_block = 0, read_warp = 0; // and at the last read
  uint32_t reading_warps = 0; // since the block's last barrier
  uint32_t reading_lanes = 0; // of the last such warp, since its last barrier
  Where write, read;
  uint16_t writer = 0;
  uint8_t lanes_of = 0; // the warp of reading_lanes
  bool in_flight = false; // an async copy has been issued and not waited for
};

Byte bytes[kArenaBytes];
uint32_t block_count = 0; // never goes back, so nothing needs to be cleared between blocks
uint32_t block_start = 0;
uint32_t warp_count[kMaxWarps];
// Since the block's last barrier: how many named ones a warp has passed, and the latest count of each other warp whose
// accesses are in order before its own. Vector clocks, as a barrier of some warps orders those and no others.
uint32_t clocks[kMaxWarps], known[kMaxWarps][kMaxWarps];
uint32_t (*read_clocks)[kMaxWarps] = nullptr; // of each byte and warp: at its last read; only with named barriers

bool never_written(const Byte& b) {
  return b.written_block < block_start;
}

bool in_order_with_write(const Byte& b, const Lane& lane) {
  return b.written_block != block_count || b.writer == lane.id ||
      (b.writer / kWarp == lane.warp && b.written_warp != warp_count[lane.warp]) ||
      (b.writer / kWarp != lane.warp && b.written_clock < known[lane.warp][b.writer / kWarp]);
}

// A reader of this byte that is not in order with a write of `lane`, or -1.
int unordered_reader(const Byte& b, uint32_t offset, const Lane& lane) {
  if (b.read_block != block_count || b.reading_warps == 0) {
    return -1;
  }
  uint32_t others = b.reading_warps & ~(1u << lane.warp);
  for (uint32_t left = engine.config.named != 0 ? others : 0; left != 0; left &= left - 1) {
    const int warp = __builtin_ctz(left);
    if (read_clocks[offset][warp] < known[lane.warp][warp]) {
      others &= ~(1u << warp);
    }
  }
  if (others != 0) {
    const int warp = __builtin_ctz(others);
    const bool alone = (b.reading_warps & (b.reading_warps - 1)) == 0;
    return warp * static_cast<int>(kWarp) + (alone ? __builtin_ctz(b.reading_lanes) : 0);
  }
  const uint32_t lanes = b.reading_lanes & ~(1u << lane.lane);
  // Where another warp has read it since, a barrier of this one has come between, or that read is not in order.
  return lanes != 0 && b.lanes_of == lane.warp && b.read_warp == warp_count[lane.warp]
      ? static_cast<int>(lane.warp * kWarp) + __builtin_ctz(lanes)
      : -1;
}

const char* say(Where where, char (&room)[300]) {
  where.describe(room, sizeof room);
  return room;
}

void report(const char* kind, Where where, const char* text) {
  // The innermost place is the fault's own; the text names the other one.
  char here[300];
  where.describe(here, sizeof here);
  fail(kind, Site{"", 0}, "%s%s", here, text);
}

void race(uint32_t offset, int other, const char* did, Where there, const char* does, Where here) {
  char room[300], text[700];
  const Lane& lane = *engine.current;
  snprintf(text, sizeof text, " | race on shared byte %u: lane %d (warp %d) %s it at %s, lane %u (warp %u) %s it, no barrier between",
           offset, other, other / static_cast<int>(kWarp), did, say(there, room), lane.id, lane.warp, does);
  report("race", here, text);
}

void check_byte(uint32_t offset, bool write, Where where) {
  Byte& b = bytes[offset];
  const Lane& lane = *engine.current;
  const bool fresh = never_written(b);
  if (engine.config.checks & kRaces) {
    char room[300], text[600];
    if (b.in_flight && !fresh) {
      snprintf(text, sizeof text, " | shared byte %u is %s while the async copy of lane %u at %s is in flight: no wait covers it yet",
               offset, write ? "written" : "read", b.writer, say(b.write, room));
      report("race", where, text);
    }
    if (!fresh && !in_order_with_write(b, lane)) {
      race(offset, b.writer, "wrote", b.write, write ? "writes" : "reads", where);
    }
    const int reader = write ? unordered_reader(b, offset, lane) : -1;
    if (reader >= 0) {
      race(offset, reader, "read", b.read, "writes", where);
    }
  }
  if (write) {
    b.written_block = block_count;
    b.written_warp = warp_count[lane.warp];
    b.written_clock = clocks[lane.warp];
    b.writer = static_cast<uint16_t>(lane.id);
    b.write = where;
    b.in_flight = false;
    return;
  }
  if (fresh) {
    if (where.is_excused()) {
      ++engine.report.excused_reads;
    } else if (engine.config.checks & kUnwrittenReads) {
      char text[200];
      snprintf(text, sizeof text, " | shared byte %u is read, and nobody in this block has written it", offset);
      report("unwritten read", where, text);
    }
  }
  const uint32_t mine = 1u << lane.warp;
  if (b.read_block != block_count) {
    b.reading_warps = 0;
  }
  if (b.lanes_of != lane.warp || b.reading_warps == 0 || b.read_warp != warp_count[lane.warp]) {
    b.reading_lanes = 0;
  }
  b.read_block = block_count;
  b.read_warp = warp_count[lane.warp];
  b.reading_warps |= mine;
  b.reading_lanes |= 1u << lane.lane;
  b.lanes_of = static_cast<uint8_t>(lane.warp);
  if (engine.config.named != 0) {
    read_clocks[offset][lane.warp] = clocks[lane.warp];
  }
  b.read = where;
}

} // namespace

void checker_begin_block() {
  if (engine.config.named != 0 && read_clocks == nullptr) {
    read_clocks = static_cast<decltype(read_clocks)>(calloc(kArenaBytes, sizeof *read_clocks));
    if (read_clocks == nullptr) {
      abort();
    }
  }
  checker_block_barrier();
  block_start = block_count;
  memset(lane_sim_arena, static_cast<int>(engine.config.fill), engine.config.shared_bytes);
}

void checker_block_barrier() {
  ++block_count;
  memset(clocks, 0, sizeof clocks);
  memset(known, 0, sizeof known);
}

// Each of the warps knows what any of them knew, and all that they did up to here.
void checker_named_barrier(uint32_t warps) {
  uint32_t all[kMaxWarps] = {};
  for (unsigned warp = 0; warp < kMaxWarps; ++warp) {
    if ((warps >> warp & 1) != 0) {
      for (unsigned other = 0; other < kMaxWarps; ++other) {
        all[other] = known[warp][other] > all[other] ? known[warp][other] : all[other];
      }
      all[warp] = ++clocks[warp];
      ++warp_count[warp];
    }
  }
  for (unsigned warp = 0; warp < kMaxWarps; ++warp) {
    if ((warps >> warp & 1) != 0) {
      memcpy(known[warp], all, sizeof all);
    }
  }
}

void checker_warp_barrier(unsigned warp) {
  ++warp_count[warp];
}

void check_shared(uint32_t offset, unsigned size, bool write, Where where) {
  ++engine.report.shared_accesses;
  const unsigned limit = engine.config.checks & kBounds ? engine.config.shared_bytes : kArenaBytes;
  if (engine.array_count != 0 && (engine.config.checks & kBounds)) {
    if (!in_one_array(offset, size)) {
      char text[200];
      snprintf(text, sizeof text, " | %s of %u bytes at byte %td of the block's first array, in none of its arrays",
               write ? "write" : "read", size, static_cast<ptrdiff_t>(offset) - engine.arrays[0].offset);
      report("out of bounds", where, text);
    }
  } else if (offset > limit || limit - offset < size) {
    char text[200];
    snprintf(text, sizeof text, " | %s of %u bytes at shared offset %u; the block has %u bytes", write ? "write" : "read",
             size, offset, engine.config.shared_bytes);
    report("out of bounds", where, text);
  }
  if (size > 1 && (size & (size - 1)) == 0 && offset % size != 0) {
    char text[200];
    snprintf(text, sizeof text, " | %s of %u bytes at shared offset %u, which is no multiple of %u",
             write ? "write" : "read", size, offset, size);
    report("misaligned", where, text);
  }
  for (unsigned i = 0; i < size; ++i) {
    check_byte(offset + i, write, where);
  }
  engine.preempt(where);
}

void check_copy_issued(uint32_t offset, unsigned size, Where where) {
  check_shared(offset, size, true, where);
  for (unsigned i = 0; i < size; ++i) {
    bytes[offset + i].in_flight = true;
  }
}

// The bytes count as written by this lane now: others see them after the next barrier.
void check_copy_done(uint32_t offset, unsigned size) {
  const Lane& lane = *engine.current;
  for (unsigned i = 0; i < size; ++i) {
    Byte& b = bytes[offset + i];
    b.in_flight = false;
    b.written_block = block_count;
    b.written_warp = warp_count[lane.warp];
    b.written_clock = clocks[lane.warp];
    b.writer = static_cast<uint16_t>(lane.id);
  }
}

void shared_load(void* to, uint32_t from, unsigned size, Site site) {
  check_shared(from, size, false, Where::of(site));
  memcpy(to, lane_sim_arena + from, size);
}

void shared_store(uint32_t to, const void* from, unsigned size, Site site) {
  check_shared(to, size, true, Where::of(site));
  memcpy(lane_sim_arena + to, from, size);
}

uint32_t shared_offset(const void* p, Site site) {
  const auto offset = static_cast<size_t>(static_cast<const char*>(p) - lane_sim_arena);
  if (offset > engine.config.shared_bytes) {
    fail("out of bounds", site, "the address of something that is not in shared memory is taken as one that is");
  }
  return static_cast<uint32_t>(offset);
}

} // namespace lane_sim
