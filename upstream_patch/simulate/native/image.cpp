// The kernel's library as it lies in memory: where it begins, and what of it a kernel may read.
#include "engine.h"

#include <dlfcn.h>
#if defined(__linux__)
#include <link.h>
#endif

namespace lane_sim {

namespace {

struct Range {
  uintptr_t first, end;
  bool has(const void* p) const {
    const auto at = reinterpret_cast<uintptr_t>(p);
    return at >= first && at < end;
  }
};

#if defined(__linux__)
Range constants[8];
unsigned constant_count = 0;

// Segments that nobody writes, or only the loader.
int find_constants(dl_phdr_info* info, size_t, void*) {
  const auto own = reinterpret_cast<uintptr_t>(&find_constants);
  bool ours = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    const uintptr_t first = info->dlpi_addr + part.p_vaddr;
    ours |= part.p_type == PT_LOAD && own >= first && own < first + part.p_memsz;
  }
  for (int i = 0; ours && i < info->dlpi_phnum && constant_count < 8; ++i) {
    const auto& part = info->dlpi_phdr[i];
    const uintptr_t first = info->dlpi_addr + part.p_vaddr;
    if ((part.p_type == PT_LOAD && (part.p_flags & PF_W) == 0) || part.p_type == PT_GNU_RELRO) {
      constants[constant_count++] = {first, first + part.p_memsz};
    }
  }
  return ours ? 1 : 0;
}
#endif

} // namespace

const void* module_base() {
  static const void* base = nullptr;
  Dl_info info;
  if (base == nullptr && dladdr(reinterpret_cast<const void*>(&module_base), &info) != 0) {
    base = info.dli_fbase;
  }
  return base;
}

// The compiler's tables, and the arguments of the launch.
bool is_constant(const void* p) {
  const auto cells = reinterpret_cast<uintptr_t>(engine.cells), pointers = reinterpret_cast<uintptr_t>(engine.arguments);
  if (Range{cells, cells + sizeof engine.cells}.has(p) || Range{pointers, pointers + sizeof engine.arguments}.has(p)) {
    return true;
  }
#if defined(__linux__)
  if (constant_count == 0) {
    dl_iterate_phdr(find_constants, nullptr);
  }
  for (unsigned i = 0; i < constant_count; ++i) {
    if (constants[i].has(p)) {
      return true;
    }
  }
  return false;
#else
  Dl_info info;
  return dladdr(p, &info) != 0 && info.dli_fbase == module_base();
#endif
}

} // namespace lane_sim
