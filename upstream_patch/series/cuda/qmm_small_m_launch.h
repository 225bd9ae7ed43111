// How qmm_small_m is launched on a device: the instance and the grid.

#pragma once

#include "mlx/backend/cuda/quantized/qmm/qmm_small_m_tuning.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

namespace mlx::core::small_m {

// Template arguments of the kernel, and the shared memory of a block.
struct Instance {
  int rows; // of x in a block
  int warps; // how many ways a block splits K
  int stages; // of a warp's ring of weights
  int tiles; // that wait for one reduction
  int shared_bytes;
};

struct Launch {
  Instance instance;
  int blocks; // that share the columns
  int row_blocks;
};

inline int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

inline const DeviceClass* find_device(int major, int minor) {
  auto found = std::find_if(
      std::begin(kDevices), std::end(kDevices), [&](const DeviceClass& d) {
        return d.major == major && d.minor == minor;
      });
  return found == std::end(kDevices) ? nullptr : found;
}

inline bool is_known(const Format& format) {
  return std::any_of(
      std::begin(kFormats), std::end(kFormats), [&](const Format& f) {
        return f.bits == format.bits && f.group_size == format.group_size &&
            f.affine == format.affine;
      });
}

// The step of a warp's lanes from row to row of the weights must fit an int.
// A power of two of lanes shares the 2 * bits units of 16 bytes that a slice
// of a row has: the largest that divides them.
inline int64_t max_k(int bits) {
  int rows = 16 / (bits & -bits);
  return std::numeric_limits<int>::max() / rows * int64_t(8) / bits;
}

// Whether the kernel takes |batch| matrices of weights [n, k], each with |m|
// rows of x.
inline bool supports(
    int major,
    int minor,
    const Format& format,
    int64_t m,
    int64_t n,
    int64_t k,
    int64_t batch) {
  return find_device(major, minor) && is_known(format) && m >= 1 &&
      m <= kMaxRows && n >= 1 && n <= kMaxColumns && k >= format.group_size &&
      k <= max_k(format.bits) && k % format.group_size == 0 && batch >= 1 &&
      batch <= kMaxBatch;
}

// sizeof(QmmSmallM::Shared) in device/qmm_small_m.cuh.
inline int
shared_bytes(const Format& format, int rows, int warps, int stages, int tiles) {
  int planes = format.affine ? 2 : 1;
  int scale_bytes = format.affine ? 2 : 1;
  bool padded = (format.bits & (format.bits - 1)) != 0;
  int ring =
      warps * stages * kTile * (kSlice * format.bits / 8 + (padded ? 16 : 0));
  int scale_row = warps * kSlice / format.group_size * scale_bytes + 16;
  int scales =
      (ceil_div(stages, tiles) + 1) * tiles * planes * kTile * scale_row;
  int partial = warps * tiles * (rows / 8) * 32 * 16;
  return ceil_div(ring + scales + partial, 256) * 256;
}

// Calls |fn| with the picks that fit the device, the best first, until it
// returns true. Returns whether it did.
template <typename Fn>
bool find_pick(
    const DeviceClass& device,
    const Format& format,
    int rows,
    int warps,
    Fn&& fn) {
  auto try_all = [&](const Pick* picks) {
    for (int i = 0; i < kMaxPicks && picks[i].stages > 0; ++i) {
      const Pick& p = picks[i];
      int bytes = shared_bytes(format, rows, warps, p.stages, p.tiles);
      if (bytes <= device.shared_per_block &&
          bytes + kReservedShared <= device.shared_per_multiprocessor &&
          fn(p, Instance{rows, warps, p.stages, p.tiles, bytes})) {
        return true;
      }
    }
    return false;
  };
  int few = rows == 8 ? 0 : 1;
  return (format.bits <= 3 && try_all(device.narrow[few])) ||
      try_all(device.picks[few]);
}

// How many ways a block splits K. The order of a sum follows from it, so it
// does not depend on the number of rows.
inline int split_k(const DeviceClass& device, const Format& format, int k) {
  auto any_fits = [&](int rows, int warps) {
    return find_pick(device, format, rows, warps, [](const Pick& p, Instance) {
      return p.least <= 1;
    });
  };
  int warps = k <= 4 * kSlice ? 4 : k <= 8 * kSlice ? 8 : 16;
  while (warps > 4 && !(any_fits(8, warps) && any_fits(16, warps))) {
    warps /= 2;
  }
  return warps;
}

// Needs supports(...).
inline Launch get_launch(
    const DeviceClass& device,
    int multiprocessors,
    const Format& format,
    int m,
    int n,
    int k,
    int batch) {
  int rows = m <= 8 ? 8 : 16;
  int warps = split_k(device, format, k);
  int tiles = ceil_div(n, kTile);
  Launch launch{};
  launch.row_blocks = ceil_div(m, kBlockRows);
  find_pick(device, format, rows, warps, [&](const Pick& p, Instance instance) {
    int resident = std::min(
        16 / warps,
        device.shared_per_multiprocessor /
            (instance.shared_bytes + kReservedShared));
    int64_t side_by_side = std::max<int64_t>(
        1,
        int64_t(multiprocessors) * resident /
            (int64_t(launch.row_blocks) * batch));
    int tiles_per_block = (tiles + side_by_side - 1) / side_by_side;
    launch.instance = instance;
    launch.blocks = ceil_div(tiles, tiles_per_block);
    return tiles_per_block >= p.least;
  });
  return launch;
}

} // namespace mlx::core::small_m
