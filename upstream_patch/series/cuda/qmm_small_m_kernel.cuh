// The kernel that the host launches: an instance of QmmSmallM over the grid.
// 128 registers a thread: the register file then holds 16 warps, however large
// a block is.
template <
    typename T,
    typename F,
    int kRows,
    int kWarps,
    int kStages,
    int kTiles>
__global__ __launch_bounds__(kWarps * 32, 16 / kWarps) void qmm_small_m(
    const T* x,
    const u32* w,
    const typename Layout<T, F>::Scale* scales,
    const T* biases,
    T* out,
    int m,
    int n,
    int k,
    i64 x_row,
    i64 x_batch,
    i64 out_row,
    i64 out_batch) {
  extern __shared__ __align__(256) char shared[];
  QmmSmallM<T, F, kRows, kWarps, kStages, kTiles>(
      {w, scales, biases, x, out, m, n, k, x_row, x_batch, out_row, out_batch},
      shared)
      .run();
}
