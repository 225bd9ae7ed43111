"""Faults planted in our staged Metal kernels. Each must be found; what changes nothing is listed with its proof."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from upstream_patch.kernels.metal import FILES, IMPLEMENTATION, Staged, path_of, sources
from upstream_patch.problem import Problem
from upstream_patch.simulate.metal.mutations import WRONG_ANSWER
from upstream_patch.simulate.metal.source import Instance, metal_kernel
from upstream_patch.simulate.metal.staged import library, of_kind
from upstream_patch.simulate.metal.stock import FLAT, LAYOUTS, Layout, Quantization
from upstream_patch.simulate.source import Kernel

Launch = Literal["whole", "parts", "batch", "far", "far batch"]


@dataclass(frozen=True)
class Planting:
    """What a fault is planted in: whole and partial tiles of rows, more than two steps of K."""

    problem: Problem
    rows: int
    layout: Layout = FLAT
    parts: int = 1

    @property
    def instance(self) -> Staged:
        return of_kind(Quantization.of(self.problem), self.rows, bool(self.layout.shape), self.parts > 1)


_WHOLE, _SPLIT = FILES[False], FILES[True]
LAUNCHES: dict[Launch, Planting] = {
    "whole": Planting(Problem(m=70, n=128, k=320), 64),
    "parts": Planting(Problem(m=40, n=128, k=384, bits=3, group_size=32, dtype="f16"), 32, parts=2),
    "batch": Planting(Problem(m=20, n=64, k=128, bits=8, dtype="f16"), 32, LAYOUTS[-1]),
}
"""The far ones have arguments of their own: see ``FAR`` and ``FAR_BATCH``."""
FAR = """#include "{include}"
template <typename T, const int group_size, const int bits, const int BM>
[[kernel]] void far_tile(
    const device uint32_t* w [[buffer(0)]], const device T* scales [[buffer(1)]], const device T* biases [[buffer(2)]],
    const device T* x [[buffer(3)]], device float* y [[buffer(4)]], const constant int& K [[buffer(5)]],
    const constant int& N [[buffer(6)]], const constant int& M [[buffer(7)]], const constant int& down [[buffer(8)]],
    const constant int& across [[buffer(9)]], uint lid [[thread_index_in_threadgroup]],
    uint simd_gid [[simdgroup_index_in_threadgroup]]) {{
  threadgroup metal::vec<T, 4> Ws[qmm_t_nax_staged_vectors<T>()];
  const int64_t row = int64_t(down) * BM, column = int64_t(across) * 64;
  uint3 at = 0;
  at.x = across;
  at.y = down;
  qmm_t_nax_staged_impl<T, float, group_size, bits, BM>(
      w - column * (K / 32 * bits), scales - column * (K / group_size), biases - column * (K / group_size),
      x - row * K, y - (row * N + column), Ws, K, N, M, K - 128, K, at, lid, simd_gid);
}}
"""
"""One tile of a product so large that no offset of its operands fits 32 bits; the buffers hold that tile alone."""
FAR_BATCH = """#include "{include}"
template <typename T, const int group_size, const int bits, const int BM>
[[kernel]] void far_matrix(
    const device uint32_t* w [[buffer(0)]], const device T* scales [[buffer(1)]], const device T* biases [[buffer(2)]],
    const device T* x [[buffer(3)]], device T* y [[buffer(4)]], const constant int& K [[buffer(5)]],
    const constant int& N [[buffer(6)]], const constant int& M [[buffer(7)]], const constant int& index [[buffer(8)]],
    const constant int& ndims [[buffer(9)]], const constant int* shape [[buffer(10)]],
    const constant int64_t* strides [[buffer(11)]], uint lid [[thread_index_in_threadgroup]],
    uint simd_gid [[simdgroup_index_in_threadgroup]]) {{
  uint3 at = 0;
  at.z = index;
  affine_qmm_t_nax_staged<T, group_size, bits, BM, true>(
      w, scales, biases, x, y - int64_t(index) * M * N, K, N, M, ndims, shape, strides, ndims, shape, strides, strides,
      strides, at, lid, simd_gid);
}}
"""
"""The first tile of a late matrix of a batch whose outputs are past 2^31; every matrix has the same operands."""
FAR_QUANTIZATION = Quantization(8, 32, "bf16")
FAR_ROWS = 64


@cache
def mutable_kernel(launch: Launch) -> Kernel:
    """Only the instance of ``LAUNCHES``, so that a changed copy compiles in a second."""
    name = f"staged_{launch.replace(' ', '_')}_to_break"
    if launch in LAUNCHES:
        return library(name, [LAUNCHES[launch].instance])
    function, text, include = {
        "far": ("far_tile", FAR, IMPLEMENTATION),
        "far batch": ("far_matrix", FAR_BATCH, _WHOLE),
    }[launch]
    instance = Instance(function, f"{FAR_QUANTIZATION.arguments}, {FAR_ROWS}")
    own = {**sources(), "far.h": text.format(include=path_of(include))}
    return metal_kernel(name, [instance], headers=["far.h"], own=own)


@dataclass(frozen=True)
class StagedPlant:
    """``old`` becomes ``new`` in one place of a header."""

    name: str
    launch: Launch
    old: str
    new: str
    kinds: tuple[str, ...]
    """One of these faults must be reported; none of an equivalent change."""
    file: str = IMPLEMENTATION
    occurrence: int | None = None

    def apply(self) -> Kernel:
        return mutable_kernel(self.launch).edited(self.name, path_of(self.file), self.old, self.new, self.occurrence)


_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
_WRONG = (WRONG_ANSWER,)
_OUT = ("out of bounds",)
_LARGE = ("overflow", "out of bounds")
_BUFFERS = "scales [[buffer(1)]],\n    const device T* biases [[buffer(2)]]"
_EXCHANGED = "scales [[buffer(2)]],\n    const device T* biases [[buffer(1)]]"
PLANTS = (
    StagedPlant("no barrier", "whole", _BARRIER, "", ("race", "unwritten read")),
    StagedPlant("a barrier without a fence", "whole", "mem_flags::mem_threadgroup", "mem_flags::mem_none", ("race",)),
    StagedPlant(
        "a barrier that lanes without rows skip",
        "whole",
        _BARRIER,
        f"if (has_rows) {_BARRIER}",
        ("deadlock", "divergence"),
    ),
    StagedPlant("one tile", "whole", "other = tile + BN * BK_padded", "other = tile", ("race",)),
    StagedPlant("the tile in use overwritten", "whole", "weights.store(other)", "weights.store(tile)", ("race",)),
    StagedPlant("tiles that stay in place", "whole", "tile = other;", "", ("race",)),
    StagedPlant("the first tile not stored", "whole", "weights.store(tile);", "", ("unwritten read",)),
    StagedPlant("weights of the step before", "whole", "weights.fetch(k + BK)", "weights.fetch(k)", _WRONG),
    StagedPlant("x of the step before", "whole", "rows.fetch(k + BK, next)", "rows.fetch(k, next)", _WRONG),
    StagedPlant("x of a step kept", "whole", "now[i] = next[i];", "", _WRONG),
    StagedPlant("a fetch past the last step", "whole", "more = k + BK < k_end", "more = true", _OUT),
    StagedPlant("the last step not fetched", "whole", "more = k + BK < k_end", "more = k + 2 * BK < k_end", _WRONG),
    StagedPlant("the last step left out", "whole", "k < k_end; k += BK", "k < k_end - BK; k += BK", _WRONG),
    StagedPlant("a row past M", "whole", "metal::min(row + at.y, M - 1)", "(row + at.y)", _OUT),
    StagedPlant("a lower row past M", "whole", "metal::min(row + at.y + 8, M - 1)", "(row + at.y + 8)", _OUT),
    StagedPlant("rows 7 apart", "whole", "at.y + 8", "at.y + 7", _WRONG),
    StagedPlant("a store past M", "whole", "sums.store_rows(y, N, short(M - row))", "sums.store(y, N)", _OUT),
    StagedPlant("a row never stored", "whole", "short(M - row)", "short(M - row - 1)", ("never written",)),
    StagedPlant("a value not masked", "whole", "byte & (kMask << shift)", "byte", _WRONG),
    StagedPlant("a word read twice", "whole", "words[i] = from[i]", "words[i] = from[0]", _WRONG),
    StagedPlant("rows of the tile overlap", "whole", "row * tile_ld +", "row * (tile_ld - 16) +", ("race",)),
    StagedPlant("tiles without their padding", "whole", "(BK + 16 / int(sizeof(T)))", "BK", _OUT),
    StagedPlant("a lane's value out of its half", "whole", "lane % kLanesOfRow", "lane / kLanesOfRow % 2", ("race",)),
    StagedPlant("a scale of the neighbour group", "parts", "(k + column) / group_size", "k / group_size", _WRONG),
    StagedPlant("high bits lost", "parts", "code |= words[word + 1] << (32 - shift);", "", _WRONG),
    StagedPlant("columns of another simdgroup", "parts", "tile + own * BK_padded", "tile", _WRONG),
    StagedPlant("outputs of another simdgroup", "parts", "column + own;", "column;", ("written twice",)),
    StagedPlant("a part begins at 0", "parts", "int(tid.z) * k_partition_size", "0", _WRONG, _SPLIT),
    StagedPlant("a part goes on to the end", "parts", "k_begin + k_partition_size", "K", _WRONG, _SPLIT),
    StagedPlant("parts a row apart", "parts", "* split_k_partition_stride", "* N", ("written twice",), _SPLIT),
    StagedPlant("one output for the whole batch", "batch", "y += index * y_stride;", "", ("written twice",)),
    StagedPlant("x of the first matrix", "batch", "x += elem_to_loc(", "(void)elem_to_loc(", _WRONG),
    StagedPlant("biases of the first matrix", "batch", "biases += at.z;", "", _WRONG),
    StagedPlant(
        "biases with the strides of scales",
        "batch",
        "w_strides, s_strides, b_str",
        "w_strides, s_strides, s_str",
        _WRONG,
    ),
    StagedPlant("buffers of scales and biases exchanged", "whole", _BUFFERS, _EXCHANGED, _WRONG, _WHOLE),
    StagedPlant("32 bits for a matrix of y", "far batch", "int64_t(M) * N", "M * N", _LARGE, _WHOLE),
    StagedPlant("32 bits for a batch of y", "far batch", "index * y_stride", "int(index) * int(y_stride)", _LARGE),
    StagedPlant("32 bits for rows of w", "far", "w + int64_t(column)", "w + column", _LARGE),
    StagedPlant("32 bits for scales", "far", "scales + int64_t(column)", "scales + column", _LARGE),
    StagedPlant("32 bits for biases", "far", "biases + int64_t(column)", "biases + column", _LARGE),
    StagedPlant("32 bits for upper rows", "far", "int64_t(metal::min(row + at.y, M - 1))", "(row + at.y)", _LARGE),
    StagedPlant("32 bits for lower rows", "far", "int64_t(metal::min(row + at.y + 8, M - 1))", "(M - 1)", _LARGE),
    StagedPlant("32 bits for y", "far", "int64_t(row) * N", "row * N", _LARGE),
)
EQUIVALENT = {
    StagedPlant("every simdgroup has rows", "whole", "has_rows = row < M", "has_rows = true", ()): (
        "rows past M are the last one again, and store_rows then stores nothing: only time is lost"
    ),
    StagedPlant("every store is checked", "whole", "if (row + 16 <= M) {", "if (false) {", ()): (
        "where all 16 rows are inside M, no row is past the M - row that store_rows stops at"
    ),
}
"""Changes that cost time and change no bit, each with its proof."""
