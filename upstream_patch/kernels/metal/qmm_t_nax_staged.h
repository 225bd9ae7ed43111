// y = x @ dequantize(w)^T on the neural accelerators, staged: while a tile of
// 64 columns of K is multiplied, the next one's packed weights, scales, biases
// and rows of x are on their way into registers. Its weights are then
// dequantized into the other of two tiles in threadgroup memory, so that a step
// of K takes one barrier.
//
// Arithmetic and its order are those of qmm_t_nax_tgp_impl: the same partition
// of K gives the same bits.
#pragma once

#include "mlx/backend/metal/kernels/steel/defines.h"
#include "mlx/backend/metal/kernels/steel/gemm/nax.h"
#include "mlx/backend/metal/kernels/steel/utils.h"
#include "mlx/backend/metal/kernels/utils.h"

// One lane's share of a tile of weights: 32 consecutive values of one row, as
// QuantizedBlockLoader deals them out. They fill `bits` words and lie in one
// group.
template <
    typename T,
    const int group_size,
    const int bits,
    const int BN,
    const int BK,
    const int tile_ld>
struct StagedWeights {
  STEEL_CONST int kValues = 32;
  STEEL_CONST int kLanes = 128;
  STEEL_CONST int kLanesOfRow = BK / kValues;
  // Values that begin in the byte they end in are masked where they stand,
  // against a scale divided by as much.
  STEEL_CONST bool kInPlace = (bits & (bits - 1)) == 0;
  STEEL_CONST int kOfByte = kInPlace ? 8 / bits : 1;
  STEEL_CONST uint kMask = (1u << bits) - 1;

  static_assert(
      (bits >= 1 && bits <= 6) || bits == 8,
      "bits must be 1 to 6, or 8");
  static_assert(
      group_size % kValues == 0,
      "a lane's values must lie in one group");
  static_assert(
      BK % kValues == 0 && BN * BK == kValues * kLanes,
      "a tile must be 32 values for each of 128 lanes");
  static_assert(
      tile_ld % 4 == 0,
      "a lane's values are stored in vectors of four");

  const device uint32_t* packed;
  const device T* scales;
  const device T* biases;
  int column;
  int place;

  uint32_t words[bits];
  T scale;
  T bias;

  // `w`, `scales_`, `biases_`: the first row of the tile, from the start of K.
  METAL_FUNC StagedWeights(
      const device uint32_t* w,
      const device T* scales_,
      const device T* biases_,
      const int K,
      const int lane) thread {
    const int row = lane / kLanesOfRow;
    column = lane % kLanesOfRow * kValues;
    place = row * tile_ld + column;
    packed = w + int64_t(row) * (K / 32 * bits) + column / 32 * bits;
    scales = scales_ + int64_t(row) * (K / group_size);
    biases = biases_ + int64_t(row) * (K / group_size);
  }

  METAL_FUNC void fetch(const int k) thread {
    // Words, not vectors: the array promises an alignment of four bytes.
    const device uint32_t* from = packed + k / 32 * bits;
    STEEL_PRAGMA_UNROLL
    for (int i = 0; i < bits; i++) {
      words[i] = from[i];
    }
    const int group = (k + column) / group_size;
    scale = scales[group];
    bias = biases[group];
  }

  // Product and sum stand in one expression, as in MLX's dequantize: a compiler
  // that fuses one fuses both.
  METAL_FUNC T value(const int i) const thread {
    if (kInPlace) {
      const int shift = i % kOfByte * bits;
      const uint byte = words[i * bits / 32] >> (i * bits % 32 / 8 * 8);
      return static_cast<T>(
          (float(scale) / float(1 << shift)) * float(byte & (kMask << shift)) +
          float(bias));
    }
    const int word = i * bits / 32;
    const int shift = i * bits % 32;
    uint code = words[word] >> shift;
    if (shift + bits > 32) {
      code |= words[word + 1] << (32 - shift);
    }
    return static_cast<T>(float(code & kMask) * float(scale) + float(bias));
  }

  METAL_FUNC void store(threadgroup T* tile) const thread {
    STEEL_PRAGMA_UNROLL
    for (int i = 0; i < kValues; i += 4) {
      metal::vec<T, 4> four;
      STEEL_PRAGMA_UNROLL
      for (int j = 0; j < 4; j++) {
        four[j] = value(i + j);
      }
      *(threadgroup metal::vec<T, 4>*)(tile + place + i) = four;
    }
  }
};

// A simdgroup's 16 rows of x over one step of K, as fragments. Rows past M
// repeat the last one: nobody stores what comes of them, and no load needs a
// branch.
template <typename T, const int BK>
struct StagedRows {
  STEEL_CONST int kSlice = 32;
  STEEL_CONST int kSlices = BK / kSlice;
  using Slice = mlx::steel::NAXTile<T, 1, kSlice / 16>;

  static_assert(BK % kSlice == 0, "a step of K must be whole slices");
  static_assert(
      Slice::kElemsPerFrag == 8 && Slice::kFragRowsJump == 8,
      "a lane holds four columns of rows 8 apart");

  const device T* upper;
  const device T* lower;

  // `x`: the first column of K; `row`: the first of the 16, less than M.
  METAL_FUNC StagedRows(
      const device T* x,
      const int K,
      const int M,
      const int row) thread {
    const short2 at = mlx::steel::BaseNAXFrag::get_coord();
    upper = x + int64_t(metal::min(row + at.y, M - 1)) * K + at.x;
    lower = x + int64_t(metal::min(row + at.y + 8, M - 1)) * K + at.x;
  }

  METAL_FUNC void fetch(const int k, thread Slice* slices) const thread {
    STEEL_PRAGMA_UNROLL
    for (int i = 0; i < kSlices; i++) {
      STEEL_PRAGMA_UNROLL
      for (int j = 0; j < Slice::kTileCols; j++) {
        const int column = k + i * kSlice + j * 16;
        const metal::vec<T, 4> above =
            *(const device metal::vec<T, 4>*)(upper + column);
        const metal::vec<T, 4> below =
            *(const device metal::vec<T, 4>*)(lower + column);
        STEEL_PRAGMA_UNROLL
        for (int e = 0; e < 4; e++) {
          slices[i].frag_at(0, j)[e] = above[e];
          slices[i].frag_at(0, j)[e + 4] = below[e];
        }
      }
    }
  }
};

// Vectors of four that qmm_t_nax_staged_impl needs in threadgroup memory: two
// tiles, each row padded by 16 bytes. An array of T alone promises no alignment
// for its vector stores.
template <typename T, const int BK = 64, const int BN = 64>
METAL_FUNC constexpr int qmm_t_nax_staged_vectors() {
  return 2 * BN * (BK + 16 / int(sizeof(T))) / 4;
}

// Moves the operands to matrix `index` of a batch. Strides count elements; all
// offsets are of 64 bits.
template <typename T>
METAL_FUNC void qmm_t_nax_staged_batch(
    const device uint32_t*& w,
    const device T*& scales,
    const device T*& biases,
    const device T*& x,
    device T*& y,
    const int64_t y_stride,
    const int x_batch_ndims,
    const constant int* x_shape,
    const constant int64_t* x_strides,
    const int w_batch_ndims,
    const constant int* w_shape,
    const constant int64_t* w_strides,
    const constant int64_t* s_strides,
    const constant int64_t* b_strides,
    const uint index) {
  const ulong3 at = elem_to_loc_broadcast(
      index, w_shape, w_strides, s_strides, b_strides, w_batch_ndims);
  w += at.x;
  scales += at.y;
  biases += at.z;
  x += elem_to_loc(int64_t(index), x_shape, x_strides, x_batch_ndims);
  y += index * y_stride;
}

// One BM x BN tile of the product over K from `k_begin` to `k_end`, both
// multiples of BK, by 128 lanes: x [M, K] of rows that follow one another, at
// addresses that are multiples of 8 bytes; w [N, K * bits / 32], scales and
// biases [N, K / group_size]; y [M, N]. N is a multiple of BN. Four simdgroups
// of 16 rows each, or for BM = 32 two by two.
template <
    typename T,
    typename U,
    const int group_size,
    const int bits,
    const int BM = 64,
    const int BK = 64,
    const int BN = 64>
METAL_FUNC void qmm_t_nax_staged_impl(
    const device uint32_t* w,
    const device T* scales,
    const device T* biases,
    const device T* x,
    device U* y,
    threadgroup metal::vec<T, 4>* Ws,
    const int K,
    const int N,
    const int M,
    const int k_begin,
    const int k_end,
    const uint3 tid,
    const uint lid,
    const uint simd_gid) {
  constexpr int WM = BM / 16;
  constexpr int WN = 4 / WM;
  constexpr int SN = BN / WN;
  constexpr int TN = SN / 16;
  constexpr int BK_padded = BK + 16 / sizeof(T);
  static_assert(
      sizeof(T) == 2,
      "two tiles of wider weights do not fit threadgroup memory");
  static_assert(
      BM % 16 == 0 && WM * WN == 4,
      "four simdgroups must share the rows of a tile, 16 each");
  static_assert(
      BN % (WN * 16) == 0, "a simdgroup's columns must be whole fragments");
  static_assert(
      TN % 2 == 0,
      "tile_matmad_nax multiplies pairs of columns of fragments, and ignores an odd number");
  using Weights = StagedWeights<T, group_size, bits, BN, BK, BK_padded>;
  using Rows = StagedRows<T, BK>;
  using Slice = typename Rows::Slice;

  const int row = int(tid.y) * BM + int(simd_gid) / WN * 16;
  const int column = int(tid.x) * BN;
  const int own = int(simd_gid) % WN * SN;
  const bool has_rows = row < M;

  Weights weights(
      w + int64_t(column) * (K / 32 * bits),
      scales + int64_t(column) * (K / group_size),
      biases + int64_t(column) * (K / group_size),
      K,
      int(lid));
  const Rows rows(x, K, M, row);
  Slice now[Rows::kSlices];
  Slice next[Rows::kSlices];
  mlx::steel::NAXTile<float, 1, TN> sums;
  sums.clear();

  threadgroup T* tile = (threadgroup T*)Ws;
  threadgroup T* other = tile + BN * BK_padded;
  weights.fetch(k_begin);
  if (has_rows) {
    rows.fetch(k_begin, now);
  }
  weights.store(tile);

  for (int k = k_begin; k < k_end; k += BK) {
    // The tile is whole, and everybody is done with the other one.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const bool more = k + BK < k_end;
    if (more) {
      weights.fetch(k + BK);
      if (has_rows) {
        rows.fetch(k + BK, next);
      }
    }
    // A simdgroup without rows meets every barrier and dequantizes, and
    // multiplies nothing.
    if (has_rows) {
      STEEL_PRAGMA_UNROLL
      for (int i = 0; i < Rows::kSlices; i++) {
        mlx::steel::NAXTile<T, TN, Slice::kTileCols> columns;
        columns.template load<T, BK_padded, 1>(
            tile + own * BK_padded + i * Rows::kSlice);
        mlx::steel::tile_matmad_nax(
            sums,
            now[i],
            metal::bool_constant<false>{},
            columns,
            metal::bool_constant<true>{});
      }
    }
    if (more) {
      weights.store(other);
      STEEL_PRAGMA_UNROLL
      for (int i = 0; i < Rows::kSlices; i++) {
        now[i] = next[i];
      }
    }
    threadgroup T* const done = tile;
    tile = other;
    other = done;
  }

  if (has_rows) {
    y += int64_t(row) * N + column + own;
    if (row + 16 <= M) {
      sums.store(y, N);
    } else {
      sums.store_rows(y, N, short(M - row));
    }
  }
}
