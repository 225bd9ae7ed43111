// Parts of K of x @ dequantize(w)^T, each into its own [M, N] of fp32, which
// steel_gemm_splitk_accum adds in their order. Buffers are those of
// affine_qmm_t_splitk; threadgroups are (128, 1, 1) on a grid of (N / 64,
// ceil(M / BM), parts).
#pragma once

#include "mlx/backend/metal/kernels/qmm_t_nax_staged.h"

// K is a whole number of parts of `k_partition_size` columns, a multiple of 64.
template <typename T, const int group_size, const int bits, const int BM>
[[kernel]] void affine_qmm_t_nax_splitk(
    const device uint32_t* w [[buffer(0)]],
    const device T* scales [[buffer(1)]],
    const device T* biases [[buffer(2)]],
    const device T* x [[buffer(3)]],
    device float* y [[buffer(4)]],
    const constant int& K [[buffer(5)]],
    const constant int& N [[buffer(6)]],
    const constant int& M [[buffer(7)]],
    const constant int& k_partition_size [[buffer(8)]],
    const constant int& split_k_partition_stride [[buffer(9)]],
    uint3 tid [[threadgroup_position_in_grid]],
    uint lid [[thread_index_in_threadgroup]],
    uint simd_gid [[simdgroup_index_in_threadgroup]]) {
  threadgroup metal::vec<T, 4> Ws[qmm_t_nax_staged_vectors<T>()];

  const int k_begin = int(tid.z) * k_partition_size;
  qmm_t_nax_staged_impl<T, float, group_size, bits, BM>(
      w,
      scales,
      biases,
      x,
      y + int64_t(tid.z) * split_k_partition_stride,
      Ws,
      K,
      N,
      M,
      k_begin,
      k_begin + k_partition_size,
      tid,
      lid,
      simd_gid);
}
