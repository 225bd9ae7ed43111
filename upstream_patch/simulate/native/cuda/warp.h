// What a CUDA warp computes together: shuffles, votes and reductions, of whole warps.
#pragma once

#include <string.h>

#include "../lane_sim.h"

namespace lane_sim {

template <typename T>
T shuffle(const char* what, unsigned mask, T value, unsigned from, Site site) {
  static_assert(sizeof(T) == 4, "a shuffle of 32 bits");
  need_mask(what, mask, site);
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = warp_shuffle(what, bits, from, site);
  memcpy(&value, &bits, 4);
  return value;
}

template <typename T, typename Operation>
T reduce(const char* what, unsigned mask, T value, Operation operation, Site site) {
  need_mask(what, mask, site);
  uint32_t all[kWarp];
  warp_values(what, static_cast<uint32_t>(value), all, site);
  T result = static_cast<T>(all[0]);
  for (unsigned i = 1; i < kWarp; ++i) {
    result = operation(result, static_cast<T>(all[i]));
  }
  return result;
}

inline unsigned ballot(const char* what, unsigned mask, int predicate, Site site) {
  need_mask(what, mask, site);
  uint32_t all[kWarp], bits = 0;
  warp_values(what, predicate != 0, all, site);
  for (unsigned i = 0; i < kWarp; ++i) {
    bits |= all[i] << i;
  }
  return bits;
}

} // namespace lane_sim

template <typename T>
T __shfl_sync(unsigned mask, T value, int from, LANE_SIM_SITE) {
  return lane_sim::shuffle("__shfl_sync", mask, value, static_cast<unsigned>(from), site);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, LANE_SIM_SITE) {
  return lane_sim::shuffle("__shfl_xor_sync", mask, value, lane_sim::lane_in_warp() ^ static_cast<unsigned>(with), site);
}
// A lane that has none so far below or above it keeps its own.
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, LANE_SIM_SITE) {
  const unsigned lane = lane_sim::lane_in_warp();
  return lane_sim::shuffle("__shfl_up_sync", mask, value, by > lane ? lane : lane - by, site);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, LANE_SIM_SITE) {
  const unsigned lane = lane_sim::lane_in_warp();
  return lane_sim::shuffle("__shfl_down_sync", mask, value, by >= lane_sim::kWarp - lane ? lane : lane + by, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, LANE_SIM_SITE) {
  return lane_sim::ballot("__ballot_sync", mask, predicate, site);
}
inline int __any_sync(unsigned mask, int predicate, LANE_SIM_SITE) {
  return lane_sim::ballot("__any_sync", mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, LANE_SIM_SITE) {
  return lane_sim::ballot("__all_sync", mask, predicate, site) == 0xFFFFFFFF;
}

// int or unsigned; sums wrap around.
#define LANE_SIM_REDUCE(name, type, expression)                                                  \
  inline type name(unsigned mask, type value, LANE_SIM_SITE) {                                   \
    return lane_sim::reduce(#name, mask, value, [](type a, type b) { return expression; }, site); \
  }
#define LANE_SIM_REDUCE_BOTH(name, expression) \
  LANE_SIM_REDUCE(name, unsigned, expression)  \
  LANE_SIM_REDUCE(name, int, expression)
LANE_SIM_REDUCE(__reduce_add_sync, unsigned, a + b)
LANE_SIM_REDUCE(__reduce_add_sync, int, static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)))
LANE_SIM_REDUCE_BOTH(__reduce_min_sync, b < a ? b : a)
LANE_SIM_REDUCE_BOTH(__reduce_max_sync, a < b ? b : a)
LANE_SIM_REDUCE(__reduce_and_sync, unsigned, a & b)
LANE_SIM_REDUCE(__reduce_or_sync, unsigned, a | b)
LANE_SIM_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef LANE_SIM_REDUCE_BOTH
#undef LANE_SIM_REDUCE
