// Rows of a batch that shares its weights, as in decoding, are rows of one
// matrix: [B, 1, K] is [B, K].

#pragma once

#include "mlx/array.h"
#include "mlx/backend/common/utils.h"

namespace mlx::core {

// Below this many rows a kernel runs for each of them anyway.
inline bool can_fold_batch(const array& x, const array& w) {
  return w.ndim() == 2 && x.ndim() == 3 && x.shape(1) == 1 && x.shape(0) >= 8;
}

// [B, 1, K] as [B, K], in the same memory.
inline array fold_batch(const array& x) {
  array rows({x.shape(0), x.shape(2)}, x.dtype(), nullptr, {});
  rows.copy_shared_buffer(
      x, {x.strides()[0], x.strides()[2]}, x.flags(), x.data_size());
  return rows;
}

// Gives |out|, of shape [B, 1, N], the memory of |rows|, of shape [B, N].
inline void unfold_batch(const array& rows, array& out) {
  out.copy_shared_buffer(
      rows,
      make_contiguous_strides(out.shape()),
      rows.flags(),
      rows.data_size());
}

} // namespace mlx::core
