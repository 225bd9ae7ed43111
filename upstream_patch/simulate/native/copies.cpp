// Async copies from global to shared memory. One lands anywhere between its issue and the wait that covers its group:
// the schedule decides. Until that wait nobody may touch the bytes, and then only its own lane until a barrier.
#include "engine.h"

#include <stdlib.h>
#include <string.h>

namespace lane_sim {

namespace {

// In order: late, as the hardware may; reversed: at once, as it may too; else as it falls.
bool lands_at_once() {
  switch (engine.config.order) {
    case kInOrder:
      return false;
    case kReversed:
      return true;
    default:
      return engine.random() % 2 == 0;
  }
}

void land(const Copy& copy) {
  memcpy(lane_sim_arena + copy.to, copy.from, copy.bytes);
}

} // namespace

void async_copy(uint32_t to, const void* from, unsigned size, Site site) {
  const Where where = Where::of(site);
  Lane& lane = *engine.current;
  if (reinterpret_cast<uintptr_t>(from) % size != 0) {
    fail("misaligned", site, "an async copy of %u bytes from an address that is no multiple of %u", size, size);
  }
  check_global(from, size, false, where);
  check_copy_issued(to, size, where);
  ++engine.report.copies;
  if (lane.copy_count == lane.copy_room) {
    lane.copy_room = lane.copy_room == 0 ? 64 : 2 * lane.copy_room;
    lane.copies = static_cast<Copy*>(realloc(lane.copies, lane.copy_room * sizeof(Copy)));
    if (lane.copies == nullptr) {
      abort();
    }
  }
  Copy& copy = lane.copies[lane.copy_count++];
  copy = {to, static_cast<const char*>(from), size, lane.group, lands_at_once(), where};
  if (copy.landed) {
    land(copy);
  }
}

void async_commit() {
  ++engine.current->group;
}

// All but the newest `pending` committed groups are done; what has not been committed is not waited for.
void async_wait(unsigned pending) {
  Lane& lane = *engine.current;
  engine.preempt(lane.last);
  unsigned kept = 0;
  for (unsigned i = 0; i < lane.copy_count; ++i) {
    const Copy& copy = lane.copies[i];
    if (copy.group + pending < lane.group) {
      if (!copy.landed) {
        land(copy);
      }
      check_copy_done(copy.to, copy.bytes);
    } else {
      lane.copies[kept++] = copy;
    }
  }
  lane.copy_count = kept;
}

void copies_end_of_lane(Lane& lane) {
  if (lane.copy_count != 0 && (engine.config.checks & kRaces)) {
    char where[300];
    lane.copies[0].where.describe(where, sizeof where);
    fail("unfinished copy", Site{"", 0}, "%s | the lane ends with %u async copies in flight", where, lane.copy_count);
  }
}

} // namespace lane_sim
