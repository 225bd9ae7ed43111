// affine_qmm_t_nax as the series changes it, under a name of its own: the
// simulator runs it, and on a released MLX, whose headers stay as they are, its
// body runs under the signature that mx.fast writes. For 16-bit types, N a
// multiple of 64, K too, and x at multiples of 8 bytes. Buffers are those of
// affine_qmm_t_nax; threadgroups are (128, 1, 1) on a grid of (N / 64, ceil(M /
// BM), batch).
#pragma once

#include "mlx/backend/metal/kernels/qmm_t_nax_staged.h"

template <
    typename T,
    const int group_size,
    const int bits,
    const int BM,
    const bool batched>
[[kernel]] void affine_qmm_t_nax_staged(
    const device uint32_t* w [[buffer(0)]],
    const device T* scales [[buffer(1)]],
    const device T* biases [[buffer(2)]],
    const device T* x [[buffer(3)]],
    device T* y [[buffer(4)]],
    const constant int& K [[buffer(5)]],
    const constant int& N [[buffer(6)]],
    const constant int& M [[buffer(7)]],
    const constant int& x_batch_ndims [[buffer(8)]],
    const constant int* x_shape [[buffer(9)]],
    const constant int64_t* x_strides [[buffer(10)]],
    const constant int& w_batch_ndims [[buffer(11)]],
    const constant int* w_shape [[buffer(12)]],
    const constant int64_t* w_strides [[buffer(13)]],
    const constant int64_t* s_strides [[buffer(14)]],
    const constant int64_t* b_strides [[buffer(15)]],
    uint3 tid [[threadgroup_position_in_grid]],
    uint lid [[thread_index_in_threadgroup]],
    uint simd_gid [[simdgroup_index_in_threadgroup]]) {
  threadgroup metal::vec<T, 4> Ws[qmm_t_nax_staged_vectors<T>()];

  if (batched) {
    qmm_t_nax_staged_batch<T>(
        w,
        scales,
        biases,
        x,
        y,
        int64_t(M) * N,
        x_batch_ndims,
        x_shape,
        x_strides,
        w_batch_ndims,
        w_shape,
        w_strides,
        s_strides,
        b_strides,
        tid.z);
  }
  qmm_t_nax_staged_impl<T, T, group_size, bits, BM>(
      w, scales, biases, x, y, Ws, K, N, M, 0, K, tid, lid, simd_gid);
}
