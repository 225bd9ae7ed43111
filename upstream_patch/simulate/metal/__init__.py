"""The simulator's Metal front: MLX's kernels, and Metal of our own, as libraries that ``simulate.run`` launches."""

from __future__ import annotations

from upstream_patch.simulate.metal.source import Instance, metal_kernel, mlx_headers
from upstream_patch.simulate.metal.stock import LAYOUTS, Layout, Operands, Quantization, make_operands, stock_kernel

__all__ = [
    "LAYOUTS",
    "Instance",
    "Layout",
    "Operands",
    "Quantization",
    "make_operands",
    "metal_kernel",
    "mlx_headers",
    "stock_kernel",
]
