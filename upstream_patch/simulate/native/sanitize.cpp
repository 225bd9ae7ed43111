// What the compiler's instrumentation of a kernel calls: at accesses to memory that is not a register (-fsanitize=thread;
// whole structures by memcpy, while clang leaves vectors of more than 16 bytes alone), and where arithmetic or an address is
// undefined (-fsanitize=undefined). Neither runtime library is linked; these are all there is, so a kernel's library loads
// into any process.
#include "engine.h"

#include <stdio.h>
#include <string.h>

namespace lane_sim {

namespace {

// Of accesses that a front's own functions do not make. The lane's stack is by far the most frequent.
void access(const void* p, unsigned size, bool write, const void* pc) {
  Lane* lane = engine.current;
  if (lane == nullptr) {
    return;
  }
  if (static_cast<size_t>(static_cast<const char*>(p) - lane->stack) < kStackBytes + kPage) {
    if (engine.late != 0) {
      lane->last = Where::of(pc);
      engine.step();
    }
    return;
  }
  const auto offset = static_cast<size_t>(static_cast<const char*>(p) - lane_sim_arena);
  if (offset < kArenaBytes) {
    for (unsigned i = 0; i < size; i += 8) { // one of a struct's fields at a time, as it may be aligned to less
      const unsigned part = size - i < 8 ? size - i : 8;
      const auto at = static_cast<uint32_t>(offset + i);
      if (part > 1 && at % part != 0) {
        for (unsigned b = 0; b < part; ++b) {
          check_shared(at + b, 1, write, Where::of(pc));
        }
      } else {
        check_shared(at, part, write, Where::of(pc));
      }
    }
  } else if (is_global(p) || write || !is_constant(p)) {
    check_global(p, size, write, Where::of(pc));
  }
}

const char* known_files[64];
unsigned known_count = 0;

} // namespace

// By name, without folders, as the excused file is given.
bool is_excused(const char* file, unsigned line) {
  const char* slash = strrchr(file, '/');
  if (engine.config.excused_file == nullptr || strcmp(slash == nullptr ? file : slash + 1, engine.config.excused_file) != 0) {
    return false;
  }
  for (unsigned each : engine.config.excused) {
    if (each != 0 && each == line) {
      return true;
    }
  }
  return false;
}

bool Where::is_excused() const {
  return id >> 31 == 0 && lane_sim::is_excused(known_files[id >> 20], id & 0xFFFFF);
}

// A line: file number << 20 | line. A place in code: its offset in the library with the highest bit set.
Where Where::of(Site site) {
  unsigned file = 0;
  while (file < known_count && known_files[file] != site.file) {
    ++file;
  }
  if (file == known_count) {
    if (known_count == 64) {
      known_files[file = 63] = "(one of many files)";
    } else {
      known_files[known_count++] = site.file;
    }
  }
  return {file << 20 | static_cast<uint32_t>(site.line)};
}

Where Where::of(const void* pc) {
  const auto offset = static_cast<const char*>(pc) - static_cast<const char*>(module_base());
  return {static_cast<uint32_t>(offset) | 1u << 31};
}

// Python puts a line in the place of a pc.
void Where::describe(char* to, size_t size) const {
  if (id >> 31 != 0) {
    snprintf(to, size, "<pc %x>", id & 0x7FFFFFFF);
  } else {
    snprintf(to, size, "<%s:%u>", known_files[id >> 20], id & 0xFFFFF);
  }
}

} // namespace lane_sim

#define PC __builtin_extract_return_addr(__builtin_return_address(0))
#define ACCESS(n)                               \
  void __tsan_read##n(void* p) {                \
    lane_sim::access(p, n, false, PC);          \
  }                                             \
  void __tsan_write##n(void* p) {               \
    lane_sim::access(p, n, true, PC);           \
  }                                             \
  void __tsan_unaligned_read##n(void* p) {      \
    lane_sim::access(p, n, false, PC);          \
  }                                             \
  void __tsan_unaligned_write##n(void* p) {     \
    lane_sim::access(p, n, true, PC);           \
  }                                             \
  void __tsan_volatile_read##n(void* p) {       \
    lane_sim::access(p, n, false, PC);          \
  }                                             \
  void __tsan_volatile_write##n(void* p) {      \
    lane_sim::access(p, n, true, PC);           \
  }

// The data of every handler begins with the place in the source.
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
#define UNDEFINED(name, kind, text)                                                 \
  void __ubsan_handle_##name(SourceLocation* at) {                                  \
    lane_sim::fail(kind, {at->file, static_cast<int>(at->line)}, text);             \
  }                                                                                 \
  void __ubsan_handle_##name##_abort(SourceLocation* at) {                          \
    lane_sim::fail(kind, {at->file, static_cast<int>(at->line)}, text);             \
  }

extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* p, size_t n) {
  lane_sim::access(p, static_cast<unsigned>(n), false, PC);
}
void __tsan_write_range(void* p, size_t n) {
  lane_sim::access(p, static_cast<unsigned>(n), true, PC);
}
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  lane_sim::access(from, static_cast<unsigned>(n), false, PC);
  lane_sim::access(to, static_cast<unsigned>(n), true, PC);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  lane_sim::access(from, static_cast<unsigned>(n), false, PC);
  lane_sim::access(to, static_cast<unsigned>(n), true, PC);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  lane_sim::access(to, static_cast<unsigned>(n), true, PC);
  return memset(to, value, n);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

UNDEFINED(type_mismatch_v1, "misaligned", "an access at an address that its type is not aligned to")
UNDEFINED(alignment_assumption, "misaligned", "an assumption on alignment does not hold")
UNDEFINED(add_overflow, "overflow", "signed addition overflows")
UNDEFINED(sub_overflow, "overflow", "signed subtraction overflows")
UNDEFINED(mul_overflow, "overflow", "signed multiplication overflows")
UNDEFINED(negate_overflow, "overflow", "signed negation overflows")
UNDEFINED(divrem_overflow, "arithmetic", "division by zero, or a quotient that does not fit")
UNDEFINED(shift_out_of_bounds, "overflow", "a shift by more than the width, or of a bit past it")
void __ubsan_handle_out_of_bounds(SourceLocation* at) {
  if (!lane_sim::is_excused(at->file, at->line)) {
    lane_sim::fail("out of bounds", {at->file, static_cast<int>(at->line)}, "an array index past the array's end");
  }
}
UNDEFINED(float_cast_overflow, "overflow", "a floating-point value does not fit the integer")
UNDEFINED(load_invalid_value, "arithmetic", "a bool or enum holds a value it cannot have")
UNDEFINED(builtin_unreachable, "arithmetic", "a place that cannot be reached is reached")
UNDEFINED(missing_return, "arithmetic", "a function ends without its value")
}
