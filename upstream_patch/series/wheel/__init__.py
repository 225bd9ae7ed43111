"""The series' host code, unchanged, beside a released MLX: compiled against its headers and linked to its library.

``build`` needs g++ and no GPU. ``load`` hands the library to the MLX of this process: ``QuantizedMatmul::eval_gpu``
then begins with the lines of the series, for every program that calls it, C++ or Python.
"""

from __future__ import annotations

from upstream_patch.series.wheel.hook import Counts, Hook, load
from upstream_patch.series.wheel.library import BuildError, build
from upstream_patch.series.wheel.mlx import CUDA_WHEEL_FIX, CUDA_WHEEL_VARIABLE, MlxLibrary, find_mlx_library

__all__ = [
    "CUDA_WHEEL_FIX",
    "CUDA_WHEEL_VARIABLE",
    "BuildError",
    "Counts",
    "Hook",
    "MlxLibrary",
    "build",
    "find_mlx_library",
    "load",
]
