"""The kernel as ``mx.fast`` takes it: a body and what stands before it; MLX writes the signature."""

from __future__ import annotations

from upstream_patch.kernels import Variant, entry, small_m_instance

_SIZES = """
extern __shared__ __align__(256) char shared[];
const int n = w_shape[w_ndim - 2], k = x_shape[x_ndim - 1];
int m = 1;
for (int i = 0; i < x_ndim - 1; ++i) {
  m *= x_shape[i];
}
"""
_STRIDES = """const long long row = 1, entry = 0;
"""
_BATCH_STRIDES = """const int entries = w_shape[0];
m /= entries;
const bool decode = x_shape[x_ndim - 2] == 1; // x is [B, H, 1, K] and B are the rows, or else [H, M, K]
const long long row = decode ? entries : 1, entry = decode ? 1 : m;
"""


def input_names(variant: Variant) -> list[str]:
    return ["x", "w", "scales", *(["biases"] if variant.tuning.format.affine else [])]


def header(variant: Variant) -> str:
    """``mx.fast`` knows no launch bounds: they are put into its ``__global__``, after all headers.

    Without them the compiler may take more registers than a block of this size can have. The sources are included by
    path, so that a call does not carry them along.
    """
    return f"""
#include "{entry("small_m")}"
using Kernel = {small_m_instance(variant.dtype, variant.tuning)};
#undef __global__
#define __global__ __attribute__((global)) {variant.launch_bounds}
"""


def body(variant: Variant, batch: bool) -> str:
    """For w [N, ...] and x [..., K], all of whose leading axes are rows, or for a ``batch`` w [H, N, ...]."""
    biases = "biases" if variant.tuning.format.affine else "nullptr"
    call = f"{{w, scales, {biases}, x, out, m, n, k, row * k, entry * k, row * n, entry * n}}"
    return f"""{_SIZES}{_BATCH_STRIDES if batch else _STRIDES}Kernel({call}, shared).run();
"""
