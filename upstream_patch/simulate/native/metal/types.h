// Metal's scalar and vector types, address spaces, and the few library functions that MLX's matmul kernels use.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Not <utility> or <cmath>: they bring in math functions of the global namespace, where MLX has its own.
#include <limits>
#include <type_traits>

#include "../lane_sim.h"

using half = _Float16;
using bfloat = __bf16;
using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;

// Address spaces of the language, not of the target: pointers into different ones do not mix, as in Metal, and yet all
// accesses are ordinary loads and stores, which the compiler's sanitizers see. They skip every numbered address space.
#define device __attribute__((opencl_global))
#define constant __attribute__((opencl_constant))
#define threadgroup __attribute__((opencl_local))
#define thread
#define METAL_FUNC inline __attribute__((always_inline))

// Metal has none.
using lane_sim_double __attribute__((unavailable("Metal has no double"))) = double;
#define double lane_sim_double

namespace metal {

template <typename T, int kCount>
using vec = T __attribute__((ext_vector_type(kCount)));

// Metal's `short2(a, b)`, which C++ has not for vectors.
template <typename V, typename... A>
METAL_FUNC constexpr V lane_sim_vector(A... values) {
  if constexpr (sizeof...(A) == 1) {
    return V((..., values));
  } else {
    return V{static_cast<std::remove_cvref_t<decltype(V{}[0])>>(values)...};
  }
}

} // namespace metal

#define LANE_SIM_VECTORS(type)           \
  using type##2 = metal::vec<type, 2>;   \
  using type##3 = metal::vec<type, 3>;   \
  using type##4 = metal::vec<type, 4>;
LANE_SIM_VECTORS(char)
LANE_SIM_VECTORS(uchar)
LANE_SIM_VECTORS(short)
LANE_SIM_VECTORS(ushort)
LANE_SIM_VECTORS(int)
LANE_SIM_VECTORS(uint)
LANE_SIM_VECTORS(long)
LANE_SIM_VECTORS(ulong)
LANE_SIM_VECTORS(float)
LANE_SIM_VECTORS(half)
LANE_SIM_VECTORS(bfloat)
#undef LANE_SIM_VECTORS
// These take the name of a type only where arguments follow it.
#define short2(...) ::metal::lane_sim_vector<short2>(__VA_ARGS__)
#define int2(...) ::metal::lane_sim_vector<int2>(__VA_ARGS__)
#define uint2(...) ::metal::lane_sim_vector<uint2>(__VA_ARGS__)
#define uint4(...) ::metal::lane_sim_vector<uint4>(__VA_ARGS__)
#define ulong2(...) ::metal::lane_sim_vector<ulong2>(__VA_ARGS__)
#define ulong3(...) ::metal::lane_sim_vector<ulong3>(__VA_ARGS__)
#define float2(...) ::metal::lane_sim_vector<float2>(__VA_ARGS__)
#define float4(...) ::metal::lane_sim_vector<float4>(__VA_ARGS__)

template <typename T, typename U>
METAL_FUNC T as_type(U value) {
  static_assert(sizeof(T) == sizeof(U), "as_type: the sizes differ");
  return __builtin_bit_cast(T, value);
}

// What the compiler calls where the CPU has no such conversion, or where it does not look for one; not every compiler's
// run time has them. Nearest, ties to even.
extern "C" __attribute__((weak, used)) bfloat __truncsfbf2(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = value != value ? bits | 0x400000 : bits + 0x7FFF + (bits >> 16 & 1);
  return __builtin_bit_cast(bfloat, static_cast<uint16_t>(rounded >> 16));
}

extern "C" __attribute__((weak, used)) float __extendhfsf2(half value) {
  const uint32_t bits = __builtin_bit_cast(uint16_t, value);
  const uint32_t sign = (bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3FF;
  if (exponent == 0) {
    const float small = static_cast<float>(fraction) * 0x1p-24f;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, small));
  }
  const uint32_t whole = (exponent + 112) << 23, beyond = fraction != 0 ? 0x7FC00000 : 0x7F800000;
  return __builtin_bit_cast(float, sign | (exponent == 31 ? beyond : whole) | fraction << 13);
}

extern "C" __attribute__((weak, used)) half __truncsfhf2(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
  uint32_t rounded;
  if (size > 0x7F800000) {
    rounded = 0x7E00 | (size >> 13 & 0x3FF);
  } else if (size >= 0x477FF000) { // past the middle between the largest half and the next power of two
    rounded = 0x7C00;
  } else if (size < 0x38800000) { // in units of the last place of a subnormal half, where 2^23 leaves no fraction
    const float units = __builtin_bit_cast(float, size) * 0x1p24f + 0x1p23f;
    rounded = __builtin_bit_cast(uint32_t, units) - 0x4B000000;
  } else {
    rounded = (size - (112u << 23) + 0xFFF + (size >> 13 & 1)) >> 13;
  }
  return __builtin_bit_cast(half, static_cast<uint16_t>(sign | rounded));
}

namespace metal {

using std::bool_constant;
using std::conditional_t;
using std::enable_if_t;
using std::is_convertible_v;
using std::is_floating_point_v;
using std::is_integral;
using std::is_integral_v;
using std::is_same;
using std::is_same_v;
using std::is_unsigned_v;
using std::remove_cv_t;

template <typename T>
struct lane_sim_plain {
  using type = std::remove_cv_t<T>;
};
template <typename T>
struct lane_sim_plain<device T> : lane_sim_plain<T> {};
template <typename T>
struct lane_sim_plain<constant T> : lane_sim_plain<T> {};
template <typename T>
struct lane_sim_plain<threadgroup T> : lane_sim_plain<T> {};
template <typename T>
using remove_addrspace_t = typename lane_sim_plain<T>::type;

template <typename T>
struct numeric_limits : std::numeric_limits<T> {};
template <>
struct numeric_limits<half> {
  static constexpr half max() {
    return static_cast<half>(65504.0f);
  }
  static constexpr half infinity() {
    return static_cast<half>(__builtin_inff());
  }
};
template <>
struct numeric_limits<bfloat> {
  static constexpr bfloat max() {
    return __builtin_bit_cast(bfloat, uint16_t{0x7F7F});
  }
  static constexpr bfloat infinity() {
    return __builtin_bit_cast(bfloat, uint16_t{0x7F80});
  }
};

// Of a number and NaN, the number: only a NaN is unequal to itself.
template <typename T>
METAL_FUNC constexpr T min(T a, T b) {
  return b < a || a != a ? b : a;
}
template <typename T>
METAL_FUNC constexpr T max(T a, T b) {
  return a < b || a != a ? b : a;
}
template <typename T>
METAL_FUNC constexpr T clamp(T v, T low, T high) {
  return min(max(v, low), high);
}
template <typename T>
METAL_FUNC T select(T otherwise, T chosen, bool condition) {
  return condition ? chosen : otherwise;
}

#define LANE_SIM_MATH(name)             \
  METAL_FUNC float name(float v) {      \
    return __builtin_##name##f(v);      \
  }
LANE_SIM_MATH(exp)
LANE_SIM_MATH(fabs)
LANE_SIM_MATH(log)
LANE_SIM_MATH(round)
LANE_SIM_MATH(sqrt)
namespace precise {
LANE_SIM_MATH(sqrt)
}
#undef LANE_SIM_MATH
METAL_FUNC float atan2(float y, float x) {
  return __builtin_atan2f(y, x);
}
METAL_FUNC float fmin(float a, float b) {
  return __builtin_fminf(a, b);
}
METAL_FUNC float fmax(float a, float b) {
  return __builtin_fmaxf(a, b);
}
// Of integers too, each in its own type. The least one has no opposite and stays as it is.
template <typename T>
METAL_FUNC T abs(T v) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return v < 0 ? static_cast<T>(Unsigned{0} - static_cast<Unsigned>(v)) : v;
  } else {
    return static_cast<T>(__builtin_fabsf(static_cast<float>(v)));
  }
}
METAL_FUNC bool isnan(float v) {
  return __builtin_isnan(v);
}
METAL_FUNC bool isinf(float v) {
  return __builtin_isinf(v);
}

} // namespace metal

// What the lowering makes of a function constant without a value: what uses it does not link, and the linker names it.
#define LANE_SIM_NO_VALUE(type, name, number) \
  extern const type name __asm__("lane_sim_function_constant_" #number "_" #name)

namespace lane_sim {

// What the lowering makes of `threadgroup T name[count];` in a kernel.
template <typename T>
METAL_FUNC threadgroup T* array_of(size_t count, LANE_SIM_SITE) {
  return (threadgroup T*)shared_array(count * sizeof(T), alignof(T) < 16 ? 16 : alignof(T), site);
}

// What the lowering makes of `*(A*)to = *(B*)from` where both are structures in different address spaces.
template <typename To, typename From>
METAL_FUNC void assign(To& to, const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  __builtin_memcpy((void*)&to, (const void*)&from, sizeof(To));
}

} // namespace lane_sim
