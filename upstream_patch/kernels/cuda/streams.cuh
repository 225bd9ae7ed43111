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
  int tile = 0, left; // chunks of the phase
  int words_left; // of this lane's rows, from its first unit on
  const char* from;
  u32 to;
  const u32 first, last;
  const u32 rows_step;
  const i64 tile_step;
  const int plain; // tiles before this one are copied 16 bytes at a time; rows of an MLX array may start anywhere

  __device__ explicit WeightStream(const Op& op)
      : op(op),
        first(kept(shared_address(op.shared.ring[op.warp]) + (op.lane / kLanes) * Op::kPitch +
                   ((op.lane % kLanes) ^ Op::swizzle(op.lane / kLanes)) * 16)),
        last(first + (Op::kRing - 1) * Op::kChunkBytes),
        rows_step(kRowsAtOnce * op.row_bytes),
        tile_step(static_cast<i64>(gridDim.x) * kTile * op.row_bytes),
        plain(op.row_bytes % 16 != 0 || !is_aligned(op.w, 16) ? 0
                  : op.first_column(op.tiles - 1) + kTile <= op.n ? op.tiles
                                                                  : op.tiles - 1) {
    to = first;
    locate();
  }

  __device__ void locate() {
    const int at = op.slice(phase.pass) * Op::kRowBytes + op.lane % kLanes * 16;
    tile = phase.batch;
    left = tile < op.tiles ? min(Op::kTilesABatch, op.tiles - tile) : 0x7FFFFFFF;
    words_left = (op.row_bytes - at) / 4;
    from = reinterpret_cast<const char*>(op.w) + at +
        static_cast<i64>(op.first_column(tile) + op.lane / kLanes) * op.row_bytes;
  }

  __device__ void fetch() {
    if (tile < plain) {
      fetch_units();
    } else if (tile < op.tiles) {
      fetch_words();
    }
    from += tile_step;
    ++tile;
    if (--left == 0) {
      phase.advance(op.passes);
      locate();
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
          copy_async_16(to + r * Op::kPitch + c * 16, from + static_cast<u64>(rows_step) * (r / kRowsAtOnce) + c * 16);
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
      const char* row = from + static_cast<u64>(rows_step) * (r / kRowsAtOnce) - past * op.row_bytes;
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
  static constexpr u32 kTileBytes = sizeof(Op::Shared::scale[0][0]), kBufferBytes = sizeof(Op::Shared::scale[0]);
  const Op& op;
  Phase<Op::kTilesABatch> phase;
  const int tile, plane, column, unit;
  u32 to;
  const u32 first, last;
  const bool whole;

  __device__ explicit ScaleStream(const Op& op)
      : op(op),
        tile(threadIdx.x / (Op::kThreads / kTogether)),
        plane(threadIdx.x / (kTile * kUnits) % kPlanes),
        column(threadIdx.x / kUnits % kTile),
        unit(threadIdx.x % kUnits),
        first(shared_address(&op.shared.scale[0][0][plane][column][unit * kInUnit]) + tile * kTileBytes),
        last(first + (Op::kScaleRing - 1) * kBufferBytes),
        whole(op.groups % kInUnit == 0 && is_aligned(op.scales, 16) && (kPlanes == 1 || is_aligned(op.biases, 16))) {
    to = first;
  }

  __device__ void fetch() {
    if (phase.batch < op.tiles) {
      const int g0 = phase.pass * Op::kBlockGroups + unit * kInUnit;
      const int count = min(Op::kTilesABatch, op.tiles - phase.batch);
      const Scale* from = op.scales;
      if constexpr (kPlanes == 2) {
        from = plane ? op.biases : op.scales;
      }
      if (g0 < op.groups) {
        if (whole) {
          fetch_units(from + g0, count);
        } else {
          fetch_each(from, g0, count);
        }
      }
      phase.advance(op.passes);
      to = to == last ? first : to + kBufferBytes;
    }
  }

  __device__ int row(int i) const { // of the weights; columns past N repeat the last one
    return min(op.first_column(phase.batch + i) + column, op.n - 1);
  }

  __device__ void fetch_units(const Scale* from, int count) const {
    u32 tile_to = to;
    for (int i = tile; i < count; i += kTogether) {
      copy_async_16(tile_to, from + static_cast<i64>(row(i)) * op.groups);
      tile_to += kTogether * kTileBytes;
    }
  }

  __device__ void fetch_each(const Scale* from, int g0, int count) const {
#pragma unroll 1
    for (int i = tile; i < count; i += kTogether) {
      Scale* each = op.shared.scale[(to - first) / kBufferBytes][i][plane][column];
#pragma unroll 1
      for (int q = g0; q < g0 + kInUnit; ++q) {
        each[unit * kInUnit + q - g0] = q < op.groups ? from[q + static_cast<i64>(row(i)) * op.groups] : Scale{};
      }
    }
  }
};

} // namespace upstream_patch
