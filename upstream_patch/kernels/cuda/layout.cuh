// How a slice of K lies over the lanes of a warp: what the weights, the scales and x must agree on.
#pragma once

#include "formats.cuh"

namespace upstream_patch {

template <typename T, typename F>
struct Layout {
  using U = typename Product<T, F::kHalf>::U;
  using Scale = typename F::template Scale<T>;
  static constexpr bool kScaled = F::kHalf && !Sixteen<T>::kHalf; // the exponents of bf16 do not fit
  static constexpr int kTile = 16; // columns
  static constexpr int kBlock = 64; // of K: a lane's 16 elements, in one run, or in two where a group is 32
  static constexpr int kSlice = 4 * kBlock; // of K: what a warp holds of x at a time
  static constexpr int kRuns = F::kGroup == 32 ? 2 : 1;
  static constexpr int kAllRuns = 4 * kRuns; // of a slice
  using R = Run<U, F::kBits, 16 / kRuns, Sixteen<T>::kFrom>;
  static constexpr int kPairs = R::kPairs; // registers of a run
  static constexpr int kGroups = kSlice / F::kGroup; // of a slice
  static constexpr int kSets = kGroups > 4 ? kGroups / 4 : 1; // of four groups, which one tf32 product takes
  static constexpr int kPlanes = F::kAffine ? 2 : 1; // scales, and biases

  // The group that run i of a slice ends, or -1.
  __device__ static constexpr int ended_group(int i) {
    return (i + 1) * kGroups % kAllRuns == 0 ? (i + 1) * kGroups / kAllRuns - 1 : -1;
  }
};

} // namespace upstream_patch
