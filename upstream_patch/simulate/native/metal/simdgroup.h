// What the lanes of a threadgroup or a simdgroup do together. Only barriers with a memory flag order memory.
#pragma once

#include "types.h"

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };

constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<int>(a) | static_cast<int>(b));
}

constexpr bool lane_sim_fences(mem_flags flags) {
  return (static_cast<int>(flags) & static_cast<int>(mem_flags::mem_threadgroup)) != 0;
}

inline void threadgroup_barrier(mem_flags flags, LANE_SIM_SITE) {
  lane_sim::block_barrier("threadgroup_barrier", site, lane_sim_fences(flags));
}
inline void simdgroup_barrier(mem_flags flags, LANE_SIM_SITE) {
  lane_sim::warp_barrier("simdgroup_barrier", site, lane_sim_fences(flags));
}

struct execution_simdgroup {};

// Every lane brings a value, and the last one to come computes for all.
template <typename T>
struct lane_sim_exchange {
  T value, result;
  int from; // the lane whose value this one takes; its own where there is none, as up and down have it
};

template <typename T>
T lane_sim_shuffle(const char* what, T value, int from, lane_sim::Site site) {
  lane_sim::need_whole_warp(what, site);
  lane_sim_exchange<T> mine = {value, value, from};
  const auto act = +[](void* const(&slots)[lane_sim::kWarp], unsigned) {
    for (void* slot : slots) {
      auto* each = static_cast<lane_sim_exchange<T>*>(slot);
      if (each->from >= 0 && each->from < static_cast<int>(lane_sim::kWarp)) {
        each->result = static_cast<lane_sim_exchange<T>*>(slots[each->from])->value;
      }
    }
  };
  lane_sim::warp_collective(what, act, &mine, site);
  return mine.result;
}

// Running results of an operation, from lane 0 up: in lane i those of lanes 0 to i.
template <typename T, typename Operation>
T lane_sim_scan(const char* what, T value, lane_sim::Site site) {
  lane_sim::need_whole_warp(what, site);
  lane_sim_exchange<T> mine = {value, value, 0};
  const auto act = +[](void* const(&slots)[lane_sim::kWarp], unsigned) {
    for (unsigned i = 1; i < lane_sim::kWarp; ++i) {
      auto* each = static_cast<lane_sim_exchange<T>*>(slots[i]);
      each->result = Operation::of(static_cast<lane_sim_exchange<T>*>(slots[i - 1])->result, each->value);
    }
  };
  lane_sim::warp_collective(what, act, &mine, site);
  return mine.result;
}

struct lane_sim_add {
  template <typename T>
  static T of(T a, T b) {
    return a + b;
  }
};
struct lane_sim_min {
  template <typename T>
  static T of(T a, T b) {
    return min(a, b);
  }
};
struct lane_sim_max {
  template <typename T>
  static T of(T a, T b) {
    return max(a, b);
  }
};

// Of a lane that there is not: Metal does not say what comes, here all bits are 1, NaN in every float.
template <typename T>
T lane_sim_shuffle_of(const char* what, T value, unsigned from, lane_sim::Site site) {
  T taken = lane_sim_shuffle(what, value, static_cast<int>(from), site);
  if (from >= lane_sim::kWarp) {
    __builtin_memset(&taken, 0xFF, sizeof(T));
  }
  return taken;
}

template <typename T>
T simd_shuffle(T value, ushort lane, LANE_SIM_SITE) {
  return lane_sim_shuffle_of("simd_shuffle", value, lane, site);
}
template <typename T>
T simd_shuffle_xor(T value, ushort mask, LANE_SIM_SITE) {
  return lane_sim_shuffle_of("simd_shuffle_xor", value, lane_sim::lane_in_warp() ^ mask, site);
}
template <typename T>
T simd_shuffle_down(T value, ushort delta, LANE_SIM_SITE) {
  return lane_sim_shuffle("simd_shuffle_down", value, static_cast<int>(lane_sim::lane_in_warp()) + delta, site);
}
template <typename T>
T simd_shuffle_up(T value, ushort delta, LANE_SIM_SITE) {
  return lane_sim_shuffle("simd_shuffle_up", value, static_cast<int>(lane_sim::lane_in_warp()) - delta, site);
}
template <typename T>
T simd_shuffle_and_fill_up(T value, T filling, ushort delta, LANE_SIM_SITE) {
  const int from = static_cast<int>(lane_sim::lane_in_warp()) - delta;
  const T taken = lane_sim_shuffle("simd_shuffle_and_fill_up", value, from, site);
  return from < 0 ? filling : taken;
}
template <typename T>
T simd_prefix_inclusive_sum(T value, LANE_SIM_SITE) {
  return lane_sim_scan<T, lane_sim_add>("simd_prefix_inclusive_sum", value, site);
}

#define LANE_SIM_REDUCE(name, operation)                                                     \
  template <typename T>                                                                      \
  T name(T value, LANE_SIM_SITE) {                                                           \
    return lane_sim_shuffle(#name, lane_sim_scan<T, operation>(#name, value, site), 31, site); \
  }
LANE_SIM_REDUCE(simd_sum, lane_sim_add)
LANE_SIM_REDUCE(simd_min, lane_sim_min)
LANE_SIM_REDUCE(simd_max, lane_sim_max)
#undef LANE_SIM_REDUCE

template <typename T>
T quad_sum(T value, LANE_SIM_SITE) {
  const int lane = static_cast<int>(lane_sim::lane_in_warp());
  const T pair = value + lane_sim_shuffle("quad_sum", value, lane ^ 1, site);
  return pair + lane_sim_shuffle("quad_sum", pair, lane ^ 2, site);
}

template <typename T>
constexpr lane_sim::Element lane_sim_element = lane_sim::Element::f32;
template <>
constexpr lane_sim::Element lane_sim_element<half> = lane_sim::Element::f16;
template <>
constexpr lane_sim::Element lane_sim_element<bfloat> = lane_sim::Element::bf16;

template <typename T, size_t kCount>
lane_sim::Fragment lane_sim_fragment(const T (&elements)[kCount]) {
  static_assert(is_same_v<T, float> || is_same_v<T, half> || is_same_v<T, bfloat>, "a matrix of float, half or bfloat");
  return {lane_sim_element<T>, elements, kCount};
}

template <typename T, int kRows, int kColumns>
struct simdgroup_matrix {
  static_assert(kRows == 8 && kColumns == 8, "a simdgroup_matrix is 8 x 8");
  // NaN at birth, so that an element the kernel forgets shows in the result.
  vec<T, 2> elements = static_cast<T>(__builtin_nanf(""));
  vec<T, 2>& thread_elements() {
    return elements;
  }
};

template <typename A, typename B>
void simdgroup_multiply_accumulate(
    simdgroup_matrix<float, 8, 8>& d, simdgroup_matrix<A, 8, 8>& a, simdgroup_matrix<B, 8, 8>& b,
    simdgroup_matrix<float, 8, 8>& c, LANE_SIM_SITE) {
  const A left[2] = {a.elements[0], a.elements[1]};
  const B right[2] = {b.elements[0], b.elements[1]};
  float sums[2] = {c.elements[0], c.elements[1]};
  lane_sim::multiply_8x8x8(lane_sim_fragment(left), lane_sim_fragment(right), sums, site);
  d.elements[0] = sums[0];
  d.elements[1] = sums[1];
}

} // namespace metal

inline ushort __metal_get_thread_index_in_simdgroup(ushort) {
  return static_cast<ushort>(lane_sim::lane_in_warp());
}
