// Which transposed affine quantized matmuls run on the matrix units (NAX), and in how many parts of K.
//
// Pure functions of sizes: no Metal and no MLX header is needed, so the whole table is tested on any machine. Where a
// function says no, the dispatch goes on as it was.
#pragma once

#include <cstdint>

namespace upstream_patch {

constexpr int64_t kQmmNaxTile = 64; // rows and columns of a threadgroup's tile, and one step of K
constexpr int64_t kQmmNaxMinRows = 8;
constexpr int64_t kQmmNaxMinOutputs = 16384; // below the batch limit of qmv; fewer keep their route
constexpr int64_t kQmmNaxMaxThreadgroups = 256;
constexpr int64_t kQmmNaxMinPartition = 256; // columns of K
constexpr int64_t kQmmNaxMinSplitK = 512; // a shorter K is not split
constexpr int kQmmNaxMaxParts = 4;
constexpr int64_t kQmmNaxAlignment = 8; // bytes, of what the staged schedule reads of x at once

struct QmmNaxProblem {
  int64_t m; // rows of x, its leading axes folded in where they can be
  int64_t n; // rows of w
  int64_t k;
  int group_size;
  int64_t batch; // matrices; 1 where there is one w and the rows are all in m
  int qmv_batch_limit; // below it the dispatch takes a vector kernel
  bool transposed;
  bool affine;
  bool half_precision; // x, scales and biases are half or bfloat16
  bool nax; // the device has matrix units that may be used
};

// What the staged schedule asks of a matmul that runs on NAX anyway, batched or not. `x_bytes` is the offset of x in
// its buffer or-ed with its strides over the batch, all in bytes.
constexpr bool qmm_nax_is_staged(const QmmNaxProblem& p, int64_t x_bytes) {
  return p.transposed && p.affine && p.half_precision && p.n % kQmmNaxTile == 0 && p.k % kQmmNaxTile == 0 &&
      x_bytes % kQmmNaxAlignment == 0;
}

// Parts of K of the split-K route: 0 where it is not taken, 1 where NAX runs unsplit, else 2 to 4. A part begins at
// whole steps of K and whole groups.
constexpr int qmm_nax_parts(const QmmNaxProblem& p) {
  if (!p.nax || p.batch != 1 || p.m < kQmmNaxMinRows || !qmm_nax_is_staged(p, 0)) {
    return 0;
  }
  if (p.m < p.qmv_batch_limit && p.m * p.n < kQmmNaxMinOutputs) {
    return 0;
  }
  const int64_t tiles = (p.n / kQmmNaxTile) * ((p.m + kQmmNaxTile - 1) / kQmmNaxTile);
  const int64_t step = p.group_size > kQmmNaxTile ? p.group_size : kQmmNaxTile;
  const bool split = p.k >= kQmmNaxMinSplitK;
  if (2 * tiles > kQmmNaxMaxThreadgroups || (split && p.k % (2 * step) != 0)) {
    return 0;
  }
  // Three parts are as good as four or two: a K that has no four parts may still have three.
  for (int parts = split ? kQmmNaxMaxParts : 1; parts > 1; --parts) {
    if (parts * tiles <= kQmmNaxMaxThreadgroups && p.k % (parts * step) == 0 && p.k / parts >= kQmmNaxMinPartition) {
      return parts;
    }
  }
  return 1;
}

} // namespace upstream_patch
