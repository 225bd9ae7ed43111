// A warp's stream of weights and a block's stream of scales, from global memory through rings in shared memory.
//
// The order of work: batches of tiles; in a batch, passes over K (a phase each); in a phase, the tiles of the batch.
#pragma once

#include "layout.cuh"

namespace upstream_patch {

template <int kTiles>
struct Phase {
  int batch = 0, pass = 0;
  __device__ void advance(int passes) {
    if (++pass == passes) {
      pass = 0;
      batch += kTiles;
    }
  }
};

// Where this warp's next chunk comes from and which slot it fills.
// A copy moves 16 bytes: lane l those of unit l % L of row l / L, then of the rows and units that follow.
template <typename Op>
struct WeightStream {
  static constexpr int kUnits = Op::kRowBytes / 16;
  static constexpr int kLanes = kUnits & -kUnits; // of a row at a time: the largest power of two
  static constexpr int kRowsAtOnce = 32 / kLanes;
  static constexpr int kTile = Op::L::kTile;
  const Op& op;
  Phase<Op::kTilesABatch> phase;
  int tile = 0;
  int words_left; // of this lane's rows, from its first unit on
  const char* from;
  u32 to;
  const u32 first, last;
  const u32 rows_step;
  const i64 tile_step;
  const bool whole; // 16 bytes at a time; rows of an MLX array may start anywhere

  __device__ explicit WeightStream(const Op& op)
      : op(op),
        first(kept(shared_address(op.shared.ring[op.warp]) + (op.lane / kLanes) * Op::kPitch +
                   ((op.lane % kLanes) ^ Op::swizzle(op.lane / kLanes)) * 16)),
        last(first + (Op::kRing - 1) * Op::kChunkBytes),
        rows_step(kRowsAtOnce * op.row_bytes),
        tile_step(static_cast<i64>(gridDim.x) * kTile * op.row_bytes),
        whole(op.row_bytes % 16 == 0 && is_aligned(op.w, 16)) {
    to = first;
    locate();
  }

  __device__ void locate() {
    const int at = op.slice(phase.pass) * Op::kRowBytes + op.lane % kLanes * 16;
    words_left = (op.row_bytes - at) / 4;
    from = reinterpret_cast<const char*>(op.w) + at +
        static_cast<i64>(op.first_column(tile) + op.lane / kLanes) * op.row_bytes;
  }

  __device__ void fetch() {
    if (tile < op.tiles) {
      if (whole && op.first_column(tile) + kTile <= op.n) {
        fetch_units();
      } else {
        fetch_words();
      }
      from += tile_step;
      if (++tile == min(phase.batch + Op::kTilesABatch, op.tiles)) {
        phase.advance(op.passes);
        tile = phase.batch;
        locate();
      }
    }
    copy_async_commit(); // an empty group too: the waits count groups
    to = to == last ? first : to + Op::kChunkBytes;
  }

  __device__ void fetch_units() const {
#pragma unroll
    for (int c = 0; c < kUnits; c += kLanes) {
      if (4 * c < words_left) {
#pragma unroll
        for (int r = 0; r < kTile; r += kRowsAtOnce) {
          copy_async_16(to + r * Op::kPitch + c * 16, from + static_cast<i64>(r / kRowsAtOnce) * rows_step + c * 16);
        }
      } else {
        clear(c * 16);
      }
    }
  }

  // 4 bytes at a time. Columns past N repeat the last one; they are never stored.
  __device__ void fetch_words() const {
    const int column = op.first_column(tile) + op.lane / kLanes;
#pragma unroll 1
    for (int r = 0; r < kTile; r += kRowsAtOnce) {
      const i64 past = max(column + r - (op.n - 1), 0);
      const char* row = from + static_cast<i64>(r / kRowsAtOnce) * rows_step - past * op.row_bytes;
#pragma unroll 1
      for (int i = 0; i < kUnits / kLanes * 4; ++i) {
        const int at = i / 4 * kLanes * 4 + i % 4; // in words
        if (at < words_left) {
          copy_async_4(to + r * Op::kPitch + at * 4, row + at * 4);
        }
      }
    }
    if constexpr (!Op::Weights::kFinite) {
#pragma unroll 1
      for (int c = 0; c < kUnits; c += kLanes) {
        if (4 * c >= words_left) {
          clear(c * 16);
        }
      }
    }
  }

  // Past K, where any bits will do as long as they are finite: 0 * x is 0 there, but NaN * 0 is not.
  __device__ void clear(int unit) const {
    if constexpr (!Op::Weights::kFinite) {
#pragma unroll
      for (int r = 0; r < kTile; r += kRowsAtOnce) {
        store_shared_16(to + r * Op::kPitch + unit, f32x4{});
      }
    }
  }
};

// The scales and biases, a phase at a time, by the whole block: a thread moves one unit of one row of every
// kTogether-th tile.
template <typename Op>
struct ScaleStream {
  using Scale = typename Op::L::Scale;
  static constexpr int kInUnit = 16 / static_cast<int>(sizeof(Scale)); // groups
  static constexpr int kUnits = Op::kBlockGroups / kInUnit; // of a row
  static constexpr int kTile = Op::L::kTile, kPlanes = Op::L::kPlanes;
  static constexpr int kTogether = Op::kThreads / (kPlanes * kTile * kUnits);
  static_assert(kTogether * kPlanes * kTile * kUnits == Op::kThreads, "whole tiles at a time");
  const Op& op;
  Phase<Op::kTilesABatch> phase;
  int buffer = 0;
  const int tile, plane, column, unit;
  const bool whole;

  __device__ explicit ScaleStream(const Op& op)
      : op(op),
        tile(threadIdx.x / (Op::kThreads / kTogether)),
        plane(threadIdx.x / (kTile * kUnits) % kPlanes),
        column(threadIdx.x / kUnits % kTile),
        unit(threadIdx.x % kUnits),
        whole(op.groups % kInUnit == 0 && is_aligned(op.scales, 16) &&
              (kPlanes == 1 || is_aligned(op.biases, 16))) {}

  __device__ void fetch() {
    if (phase.batch < op.tiles) {
      const int g0 = phase.pass * Op::kBlockGroups + unit * kInUnit;
      const int count = min(Op::kTilesABatch, op.tiles - phase.batch);
      const Scale* from = op.scales;
      if constexpr (kPlanes == 2) {
        from = plane ? op.biases : op.scales;
      }
      if (g0 < op.groups) {
        for (int i = tile; i < count; i += kTogether) {
          Scale* to = &op.shared.scale[buffer][i][plane][column][unit * kInUnit];
          const int n = min(op.first_column(phase.batch + i) + column, op.n - 1);
          const Scale* at = from + g0 + static_cast<i64>(n) * op.groups;
          if (whole) {
            copy_async_16(shared_address(to), at);
          } else {
            for (int q = 0; q < kInUnit; ++q) {
              to[q] = g0 + q < op.groups ? at[q] : Scale{};
            }
          }
        }
      }
      phase.advance(op.passes);
      buffer = buffer + 1 == Op::kScaleRing ? 0 : buffer + 1;
    }
  }
};

} // namespace upstream_patch
