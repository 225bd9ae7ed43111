// The intrinsics header of our CUDA kernels (kernels/cuda/intrinsics.cuh) with CPU meanings: the same names, types and
// layouts. Every function that touches memory or meets other lanes says where in the kernel it was called.
#pragma once

#include "front.h"

namespace upstream_patch {

using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

struct alignas(8) u32x2 {
  u32 x, y;
};
// Copied by functions of its own, since the compiler's alignment check looks at references, not at whole structures.
struct alignas(16) u32x4 {
  u32 x, y, z, w;
  u32x4() = default;
  u32x4(const u32x4& o) : x(o.x), y(o.y), z(o.z), w(o.w) {}
  u32x4& operator=(const u32x4& o) {
    x = o.x;
    y = o.y;
    z = o.z;
    w = o.w;
    return *this;
  }
};
struct alignas(16) f32x4 {
  float x, y, z, w;
};

inline f32x4 as_f32x4(const lane_sim::Quad& q) {
  return {q.v[0], q.v[1], q.v[2], q.v[3]};
}

template <typename U>
constexpr lane_sim::Element kElement = lane_sim::Element::bf16;
template <>
constexpr lane_sim::Element kElement<__half> = lane_sim::Element::f16;

template <typename U>
f32x4 mma_m16n8k16(const u32 (&a)[4], u32 b0, u32 b1, f32x4 c, LANE_SIM_SITE) {
  const u32 b[2] = {b0, b1};
  return as_f32x4(lane_sim::mma_16x8x16(kElement<U>, a, b, {{c.x, c.y, c.z, c.w}}, site));
}

inline f32x4 mma_m16n8k8_tf32(const float (&a)[4], float b0, float b1, f32x4 c, LANE_SIM_SITE) {
  const u32 bits[4] = {__float_as_uint(a[0]), __float_as_uint(a[1]), __float_as_uint(a[2]), __float_as_uint(a[3])};
  const u32 b[2] = {__float_as_uint(b0), __float_as_uint(b1)};
  return as_f32x4(lane_sim::mma_16x8x8_tf32(bits, b, {{c.x, c.y, c.z, c.w}}, site));
}

inline float shuffle(float v, int from, LANE_SIM_SITE) {
  return __uint_as_float(lane_sim::warp_shuffle("shuffle", __float_as_uint(v), static_cast<unsigned>(from), site));
}

inline u32 and_or(u32 a, u32 mask, u32 base) {
  return (a & mask) | base;
}

inline u32 funnel_shift(u32 low, u32 high, u32 by) {
  return static_cast<u32>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}

inline float low_bf16(u32 v) {
  return __uint_as_float(v << 16);
}
inline float high_bf16(u32 v) {
  return __uint_as_float(v & 0xFFFF0000);
}
inline u32 pack_bf16(float low, float high) {
  return __float2bfloat16(low).bits | static_cast<u32>(__float2bfloat16(high).bits) << 16;
}
inline u32 max_abs_bf16(u32 a, u32 b) {
  return pack_bf16(fmaxf(fabsf(low_bf16(a)), low_bf16(b)), fmaxf(fabsf(high_bf16(a)), high_bf16(b)));
}
// Rounded to fp64 and fp32 on the way: exact for what our kernels do with it, s * 0 + s.
inline float fma_once(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) * b + c);
}
inline u32 fma_bf16(u32 a, u32 b, u32 c) {
  return pack_bf16(fma_once(low_bf16(a), low_bf16(b), low_bf16(c)), fma_once(high_bf16(a), high_bf16(b), high_bf16(c)));
}
inline u32 multiply_bf16(u32 a, u32 b) {
  return pack_bf16(low_bf16(a) * low_bf16(b), high_bf16(a) * high_bf16(b));
}

// The sum is exact, or differs from c by less than f16 can tell; to odd, so that rounding again rounds once.
inline u32 fma_f16(u32 a, u32 b, u32 c) {
  const auto value = [](u32 x) {
    return static_cast<double>(__half2float(__ushort_as_half(static_cast<unsigned short>(x))));
  };
  const auto one = [value](u32 x, u32 y, u32 z) {
    const double sum = value(x) * value(y) + value(z);
    float odd = static_cast<float>(sum);
    if (sum == sum && static_cast<double>(odd) != sum) {
      odd = __uint_as_float((__float_as_uint(odd) - (fabs(static_cast<double>(odd)) > fabs(sum))) | 1);
    }
    return static_cast<u32>(__float2half(odd).bits);
  };
  return one(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF) | one(a >> 16, b >> 16, c >> 16) << 16;
}
inline u32 multiply_f16(u32 a, u32 b) {
  return fma_f16(a, b, 0x80008000); // -0
}

inline u32 f16_from_e4m3(u32 two) {
  const auto one = [](u32 code) {
    const u32 exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 0x7F) == 0x7F) {
      return 0x7FFFu;
    }
    const float size = exponent == 0 ? ldexpf(static_cast<float>(fraction), -9)
                                     : ldexpf(static_cast<float>(8 + fraction), static_cast<int>(exponent) - 10);
    return static_cast<u32>(__float2half(size).bits) | (code & 0x80) << 8;
  };
  return one(two & 0xFF) | one(two >> 8 & 0xFF) << 16;
}

inline u32 byte_permute(u32 a, u32 b, u32 selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
  u32 r = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 nibble = selector >> (4 * i) & 15;
    u32 byte = static_cast<u32>(bytes >> (8 * (nibble & 7))) & 0xFF;
    byte = nibble < 8 ? byte : byte >> 7 != 0 ? 0xFF : 0; // the highest bit of the nibble spreads the byte's sign
    r |= byte << (8 * i);
  }
  return r;
}

inline u32 shared_address(const void* p, LANE_SIM_SITE) {
  return lane_sim::shared_offset(p, site);
}
inline u32 load_shared_2(u32 address, LANE_SIM_SITE) {
  unsigned short v;
  lane_sim::shared_load(&v, address, 2, site);
  return v;
}
inline u32 load_shared_4(u32 address, LANE_SIM_SITE) {
  u32 v;
  lane_sim::shared_load(&v, address, 4, site);
  return v;
}
inline u32x2 load_shared_8(u32 address, LANE_SIM_SITE) {
  u32x2 v;
  lane_sim::shared_load(&v, address, 8, site);
  return v;
}
inline f32x4 load_shared_16(u32 address, LANE_SIM_SITE) {
  f32x4 v;
  lane_sim::shared_load(&v, address, 16, site);
  return v;
}
inline u32x4 load_shared_words_16(u32 address, LANE_SIM_SITE) {
  u32x4 v;
  lane_sim::shared_load(&v, address, 16, site);
  return v;
}
inline void store_shared_16(u32 address, f32x4 v, LANE_SIM_SITE) {
  lane_sim::shared_store(address, &v, 16, site);
}

inline u32 kept(u32 v) {
  return v;
}

inline void copy_async_16(u32 to, const void* from, LANE_SIM_SITE) {
  lane_sim::async_copy(to, from, 16, site);
}
inline void copy_async_4(u32 to, const void* from, LANE_SIM_SITE) {
  lane_sim::async_copy(to, from, 4, site);
}
inline void copy_async_commit() {
  lane_sim::async_commit();
}
template <int kPending>
void copy_async_wait() {
  static_assert(kPending >= 0, "wait_group takes no negative count");
  lane_sim::async_wait(kPending);
}

inline bool is_aligned(const void* p, int bytes) {
  return (reinterpret_cast<unsigned long long>(p) & static_cast<unsigned long long>(bytes - 1)) == 0;
}

} // namespace upstream_patch
