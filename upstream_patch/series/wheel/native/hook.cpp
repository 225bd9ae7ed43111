// Puts the series' lines for QuantizedMatmul::eval_gpu in front of the one of the installed MLX, in its virtual table.
//
// The lines are those of the series, included as they are; around them stands what surrounds them there. What they leave
// goes to MLX's own eval_gpu.
#include "mlx/backend/cuda/device.h"
#include "mlx/backend/cuda/jit_module.h"
#include "mlx/backend/cuda/quantized/qmm/fold_batch.h"
#include "mlx/backend/cuda/quantized/qmm/qmm_small_m.h"
#include "mlx/backend/cuda/quantized/quantized_utils.h"
#include "mlx/primitives.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cuda_jit_sources.h"
#include "wheel_build.h"

using mlx::core::array;
using mlx::core::QuantizedMatmul;

// Objects and functions of MLX's library that it does not export, reached by their place in it (wheel/link.py).
extern "C" void* const wheel_vtable;
extern "C" void* const wheel_eval_gpu;
extern "C" mlx::core::cu::JitModule& wheel_get_jit_module(
    mlx::core::cu::Device&, const std::string&, const mlx::core::cu::KernelBuilder&, bool);

namespace {

using EvalGpu = void (*)(QuantizedMatmul*, const std::vector<array>&, array&);

enum Route { kSmallM, kFolded, kStock, kRoutes };
std::atomic<long> counts[kRoutes];
std::atomic<bool> enabled{false};
std::string last_module;

// Where eval_gpu stands in the virtual table: the ABI keeps it in the pointer to a virtual member.
EvalGpu* slot() {
  auto member = static_cast<void (QuantizedMatmul::*)(const std::vector<array>&, array&)>(&QuantizedMatmul::eval_gpu);
  std::ptrdiff_t words[2];
  static_assert(sizeof(member) == sizeof(words));
  std::memcpy(words, &member, sizeof(words));
#if defined(__aarch64__)
  const std::ptrdiff_t offset = words[0]; // whether it is virtual is in the other word
#else
  const std::ptrdiff_t offset = words[0] - 1;
#endif
  const auto functions = static_cast<char*>(wheel_vtable) + 2 * sizeof(void*); // behind offset and type
  return reinterpret_cast<EvalGpu*>(functions + offset);
}

} // namespace

namespace mlx::core {

namespace cu {

// MLX keeps compiled code under the module's name: a changed source gets another.
JitModule& get_jit_module(Device& device, const std::string& name, const KernelBuilder& builder, bool use_disk_cache) {
  last_module = name;
  return wheel_get_jit_module(device, name + "_" WHEEL_FINGERPRINT, builder, use_disk_cache);
}

} // namespace cu

namespace {

// What eval_gpu is with the series applied.
void eval_gpu_with_series(QuantizedMatmul& self, const std::vector<array>& inputs, array& out) {
  const auto [group_size_, bits_, mode_, transpose_] = self.state();
  auto& s = self.stream();
  auto& encoder = cu::get_command_encoder(s);
  array x = ensure_row_contiguous(inputs[0], encoder, s);
  const array& w = inputs[1];
  const array& scales = inputs[2];
  std::optional<array> biases;
  if (inputs.size() > 3) {
    biases = inputs[3];
  }
  const auto eval_gpu = [&](const std::vector<array>& in, array& y) {
    ++counts[kFolded];
    eval_gpu_with_series(self, in, y);
  };
#include "eval_gpu_fold.inc"
  const auto supports = [&, bits = bits_, group_size = group_size_, mode = mode_, transpose = transpose_](auto&& f) {
    const bool yes = f(x, w, scales, biases, out, transpose, bits, group_size, mode, encoder.device());
    ++counts[yes ? kSmallM : kStock];
    return yes;
  };
#include "eval_gpu_small_m.inc"
  reinterpret_cast<EvalGpu>(wheel_eval_gpu)(&self, inputs, out);
}

} // namespace
} // namespace mlx::core

namespace {

void hooked(QuantizedMatmul* self, const std::vector<array>& inputs, array& out) {
  if (enabled) {
    mlx::core::eval_gpu_with_series(*self, inputs, out);
  } else {
    reinterpret_cast<EvalGpu>(wheel_eval_gpu)(self, inputs, out);
  }
}

// 0, or why not: 1 the table does not hold MLX's eval_gpu where it should, 2 its page cannot be made writable.
int install() {
  EvalGpu* const at = slot();
  if (*at == hooked) {
    return 0;
  }
  if (reinterpret_cast<void*>(*at) != wheel_eval_gpu) {
    return 1;
  }
  const auto size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(at) / size * size);
  if (mprotect(page, size, PROT_READ | PROT_WRITE) != 0) {
    return 2;
  }
  *at = hooked;
  mprotect(page, size, PROT_READ);
  return 0;
}

// For LD_PRELOAD: a program that knows nothing of this library takes the routes of the series, and at its end what they
// were is written to the file that the variable names.
bool preloaded = false;

const char* report() {
  return std::getenv("UPSTREAM_PATCH_PRELOAD");
}

__attribute__((constructor)) void begin() {
  preloaded = report() != nullptr && install() == 0;
  enabled = preloaded;
}

__attribute__((destructor)) void end() {
  if (std::FILE* const file = preloaded ? std::fopen(report(), "w") : nullptr) {
    std::fprintf(file, "%ld %ld %ld\n", counts[kSmallM].load(), counts[kFolded].load(), counts[kStock].load());
    std::fclose(file);
  }
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) int wheel_install() {
  return install();
}

__attribute__((visibility("default"))) void wheel_enable(int on) {
  enabled = on != 0;
}

// How many evaluations took the small-M kernel, were folded first, were left to MLX.
__attribute__((visibility("default"))) void wheel_counts(long (&into)[kRoutes]) {
  for (int i = 0; i < kRoutes; ++i) {
    into[i] = counts[i];
  }
}

// The module that the small-M kernel was last taken from; valid until the next one.
__attribute__((visibility("default"))) const char* wheel_last_module() {
  return last_module.c_str();
}

} // extern "C"
