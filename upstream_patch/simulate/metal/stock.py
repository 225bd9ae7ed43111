"""MLX's own quantized matmul kernels for Metal: which libraries they make, and what operands they take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from upstream_patch.problem import DType, Problem
from upstream_patch.reference import Distribution, Inputs, make_inputs
from upstream_patch.simulate.api import Buffer
from upstream_patch.simulate.metal.source import Instance, metal_kernel
from upstream_patch.simulate.small_m import to_bits
from upstream_patch.simulate.source import Kernel

Array = NDArray[Any]
Family = Literal["nax", "vector"]
"""Two headers that define the same names differently: ``nax`` has qmm_t_nax; ``vector`` the kernels for older GPUs."""
Route = Literal["nax", "wide", "splitk"]
"""``affine_qmm_t_nax``; ``affine_qmv_wide``; ``affine_qmm_t_splitk``, whose parts ``steel_gemm_splitk_accum`` adds."""
FAMILY: dict[Route, Family] = {"nax": "nax", "wide": "vector", "splitk": "vector"}
TYPES: dict[DType, str] = {"bf16": "bfloat16_t", "f16": "float16_t", "f32": "float"}
NAX_ROWS = (64, 32)
"""BM: rows of a threadgroup's tile. MLX takes 32 where M is at most 32."""
NAX_TILE = 64
SPLITK_TILE = 32
VECTORS = (2, 3, 4, 5)
"""Rows of x that a threadgroup of qmv_wide takes."""
K_LANES = 8
"""Lanes of qmv_wide that share one output."""
_FOLDER = "mlx/backend/metal/kernels"
HEADERS: dict[Family, tuple[str, ...]] = {
    "nax": tuple(f"{_FOLDER}/{name}" for name in ("utils.h", "steel/utils.h", "steel/gemm/nax.h", "quantized_nax.h")),
    "vector": tuple(
        f"{_FOLDER}/{name}"
        for name in (
            "utils.h",
            "steel/gemm/gemm.h",
            "quantized_utils.h",
            "quantized.h",
            "steel/gemm/kernels/steel_gemm_splitk.h",
        )
    ),
}


def _word(value: bool) -> str:
    return "true" if value else "false"


@dataclass(frozen=True)
class Quantization:
    """What a library of stock kernels is compiled for."""

    bits: int
    group_size: int
    dtype: DType

    @staticmethod
    def of(problem: Problem) -> Quantization:
        return Quantization(problem.bits, problem.group_size, problem.dtype)

    @property
    def arguments(self) -> str:
        return f"{TYPES[self.dtype]}, {self.group_size}, {self.bits}"

    def nax(self, aligned: bool, batched: bool, rows: int) -> Instance:
        """``aligned``: N is a multiple of 64. ``rows``: BM."""
        tile = f"{rows}, {NAX_TILE}, {NAX_TILE}, 2, 2"
        return Instance("affine_qmm_t_nax", f"{self.arguments}, {_word(aligned)}, {_word(batched)}, {tile}")

    def wide(self, vectors: int, batched: bool) -> Instance:
        return Instance("affine_qmv_wide", f"{self.arguments}, {vectors}, {K_LANES}, {_word(batched)}")

    def splitk(self, aligned: bool) -> Instance:
        """``aligned``: N is a multiple of 32."""
        return Instance("affine_qmm_t_splitk", f"{self.arguments}, {_word(aligned)}")

    def accumulate(self) -> Instance:
        return Instance("gemm_splitk_accum", f"float, {TYPES[self.dtype]}")

    def instances(self, family: Family) -> tuple[Instance, ...]:
        if family == "nax":
            return tuple(self.nax(*each) for each in product((True, False), (True, False), NAX_ROWS))
        wide = [self.wide(*each) for each in product(VECTORS, (True, False))]
        return (*wide, self.splitk(True), self.splitk(False), self.accumulate())


@cache
def stock_kernel(family: Family, quantization: Quantization, root: Path | None = None) -> Kernel:
    """All instances of one family for one quantization. ``root`` is where MLX's headers are, if not in its wheel.

    Raises MissingTool without an MLX wheel, UserError where its headers are not what the simulator knows.
    """
    name = f"{family}_{quantization.dtype}_gs_{quantization.group_size}_b_{quantization.bits}"
    kernel = metal_kernel(name, quantization.instances(family), headers=HEADERS[family], root=root)
    return replace(kernel, many_launches=True)


@dataclass(frozen=True)
class Layout:
    """Batch dimensions, and how far apart the matrices of neighbours in each of them lie, counted in matrices."""

    name: str
    shape: tuple[int, ...] = ()
    x: tuple[int, ...] = ()
    w: tuple[int, ...] = ()
    padding: int = 0
    """Rows between one matrix of x and the next, which belong to none."""
    apart: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Scales and biases, where they lie in another way than the weights."""

    @property
    def scales(self) -> tuple[int, ...]:
        return self.w if self.apart is None else self.apart[0]

    @property
    def biases(self) -> tuple[int, ...]:
        return self.w if self.apart is None else self.apart[1]

    def indices(self, strides: tuple[int, ...]) -> list[int]:
        """Which stored matrix each one of the batch is."""
        return [
            sum(i * s for i, s in zip(at, strides, strict=True))
            for at in product(*(range(size) for size in self.shape))
        ]


FLAT = Layout("flat")
LAYOUTS = (
    FLAT,
    Layout("batch", (2,), (1,), (1,)),
    Layout("one x", (2,), (0,), (1,)),
    Layout("one w", (3,), (1,), (0,)),
    Layout("padded", (2,), (1,), (1,), padding=2),
    Layout("transposed", (3, 2), (1, 3), (2, 1), apart=((1, 3), (0, 1))),
)
"""The last has axes of two sizes, and strides of its own for each operand."""


@dataclass(frozen=True, eq=False)
class Operands:
    """What a launch takes, as it is stored: ``x`` has one [M, K] for each index, the weights one [N, K] with its scales
    and biases."""

    problem: Problem
    layout: Layout
    x: tuple[Inputs, ...]
    w: tuple[Inputs, ...]

    @property
    def batch(self) -> tuple[Inputs, ...]:
        """The problems of the batch, one matmul each."""
        layout = self.layout
        places = zip(*map(layout.indices, (layout.x, layout.w, layout.scales, layout.biases)), strict=True)
        return tuple(
            replace(self.w[w], x=self.x[x].x, scales=self.w[scales].scales, biases=self.w[biases].biases)
            for x, w, scales, biases in places
        )

    def stored(self, values: Any) -> Array:
        return to_bits(np.asarray(values, np.float64), self.problem.dtype)

    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """x, packed weights, scales, biases. Rows of padding are NaN."""
        gap = np.full((self.layout.padding, self.problem.k), np.nan)
        x = np.concatenate([part for inputs in self.x for part in (inputs.x, gap)])
        x = x[: len(x) - self.layout.padding]
        packed = np.concatenate([inputs.packed for inputs in self.w])
        scales, biases = (np.concatenate([getattr(i, name) for i in self.w]) for name in ("scales", "biases"))
        return self.stored(x), packed, self.stored(scales), self.stored(biases)

    def batch_arguments(self) -> list[Buffer | int | None]:
        """Buffers 8 to 15 of the batched kernels; unbound without a batch."""
        p, layout = self.problem, self.layout
        if not layout.shape:
            return [None] * 8
        words, groups = p.k * p.bits // 32, p.k // p.group_size

        def strides(matrices: tuple[int, ...], rows: int, columns: int) -> Buffer:
            return Buffer(np.array([*(s * rows * columns for s in matrices), columns, 1], np.int64))

        def shape(*matrix: int) -> Buffer:
            return Buffer(np.array([*layout.shape, *matrix], np.int32))

        rank = len(layout.shape)
        return [
            *(rank, shape(p.m, p.k), strides(layout.x, p.m + layout.padding, p.k)),
            *(rank, shape(p.n, words), strides(layout.w, p.n, words)),
            *(strides(layout.scales, p.n, groups), strides(layout.biases, p.n, groups)),
        ]


def make_operands(
    problem: Problem, layout: Layout = FLAT, seed: int = 0, distribution: Distribution = "normal"
) -> Operands:
    """Operands of their own for every matrix that the layout stores."""
    x, *weights = (max(layout.indices(each)) + 1 for each in (layout.x, layout.w, layout.scales, layout.biases))
    made = [make_inputs(problem, seed + i, distribution) for i in range(max(x, *weights))]
    return Operands(problem, layout, tuple(made[:x]), tuple(made[: max(weights)]))
