// CUDA C++ as a CPU compiler takes it: keywords, built-in variables, 16-bit types. What is not here does not compile,
// and the error names it.
#pragma once

#include <math.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "../lane_sim.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Only `extern __shared__` is known: a static array would be each lane's own, and `weak` makes it not compile.
#define __shared__ __attribute__((weak))

#define threadIdx (::lane_sim::thread_index())
#define blockIdx (::lane_sim::block_index())
#define blockDim (::lane_sim::block_size())
#define gridDim (::lane_sim::grid_size())

inline void __syncthreads(LANE_SIM_SITE) {
  lane_sim::block_barrier("__syncthreads", site);
}
inline void __syncwarp(LANE_SIM_SITE) {
  lane_sim::warp_barrier("__syncwarp", site);
}
// Of whole warps here, as bar.sync is.
inline void __barrier_sync_count(unsigned id, unsigned count, LANE_SIM_SITE) {
  lane_sim::named_barrier("__barrier_sync_count", id, count, site);
}
inline void __barrier_sync(unsigned id, LANE_SIM_SITE) {
  lane_sim::named_barrier("__barrier_sync", id, lane_sim::block_lanes(), site);
}

struct alignas(8) float2 {
  float x, y;
};

inline unsigned __float_as_uint(float v) {
  unsigned bits;
  memcpy(&bits, &v, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

#define LANE_SIM_MIN_MAX(type)          \
  inline type min(type a, type b) {     \
    return b < a ? b : a;               \
  }                                     \
  inline type max(type a, type b) {     \
    return a < b ? b : a;               \
  }
LANE_SIM_MIN_MAX(int)
LANE_SIM_MIN_MAX(unsigned)
LANE_SIM_MIN_MAX(long long)
LANE_SIM_MIN_MAX(unsigned long long)

struct __nv_bfloat16 {
  unsigned short bits;
};
struct __half {
  unsigned short bits;
};

// Nearest, ties to even; every NaN becomes the one that the hardware makes.
inline __nv_bfloat16 __float2bfloat16(float v) {
  const unsigned u = __float_as_uint(v);
  if (v != v) {
    return {0x7FFF};
  }
  return {static_cast<unsigned short>((u + 0x7FFF + (u >> 16 & 1)) >> 16)};
}
inline float __bfloat162float(__nv_bfloat16 v) {
  return __uint_as_float(static_cast<unsigned>(v.bits) << 16);
}
inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
inline __half __float2half(float v) {
  const unsigned u = __float_as_uint(v), sign = u >> 16 & 0x8000, size = u & 0x7FFFFFFF;
  if (size > 0x7F800000) {
    return {0x7FFF};
  }
  if (size >= 0x477FF000) { // rounds to 65536 or more
    return {static_cast<unsigned short>(sign | 0x7C00)};
  }
  if (size < 0x38800000) { // subnormal: the addition rounds at 2^-24, the last bit of 0.5
    return {static_cast<unsigned short>(sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3F000000))};
  }
  return {static_cast<unsigned short>(sign | (size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13)};
}
inline float __half2float(__half h) {
  const unsigned sign = (h.bits & 0x8000u) << 16, exponent = h.bits >> 10 & 31, fraction = h.bits & 0x3FF;
  if (exponent == 31) {
    return __uint_as_float(sign | 0x7F800000 | fraction << 13);
  }
  if (exponent == 0) {
    const float small = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -small : small;
  }
  return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

#include "warp.h"

namespace lane_sim {

// As a launch does: one pointer to each argument.
template <typename... A, size_t... I>
void call(void (*kernel)(A...), void* const* arguments, std::index_sequence<I...>) {
  kernel(*static_cast<A*>(arguments[I])...);
}
template <typename... A>
void call(void (*kernel)(A...), void* const* arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>());
}

// A parameter's type as a character that Python's struct knows: a pointer, or an integer by size and sign. x: another.
template <typename T>
constexpr char kind_of() {
  if (std::is_pointer_v<T>) {
    return 'P';
  }
  if (std::is_same_v<T, bool>) {
    return '?';
  }
  if (!std::is_integral_v<T>) {
    return 'x';
  }
  return (std::is_signed_v<T> ? "?bh?i???q" : "?BH?I???Q")[sizeof(T)];
}
template <typename... A>
const char* parameters(void (*)(A...)) {
  static const char kinds[] = {kind_of<A>()..., '\0'};
  return kinds;
}

} // namespace lane_sim
