"""Two faults of stock MLX's Metal kernels, shown by the simulator: each run calls MLX's own functions, unchanged.

They are facts for reports of their own, apart from the contribution. What a GPU does with them was not seen by us.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from upstream_patch.correctness.stock_metal import judge
from upstream_patch.problem import Problem
from upstream_patch.reference import from_bits, make_inputs
from upstream_patch.simulate import Buffer, Fault, Kernel, run
from upstream_patch.simulate.metal import Instance, Quantization, metal_kernel
from upstream_patch.simulate.metal.launches import SHARED_LIMIT
from upstream_patch.simulate.metal.stock import HEADERS, NAX_TILE
from upstream_patch.simulate.small_m import to_bits

# One threadgroup of qmm_t_nax, as if it were number `tile` along N. Only that tile's rows of w are stored: the pointers
# are moved back by what the kernel will move them forward, in 64 bits, so no buffer has to be as large as w.
_ONE_TILE = """
template <typename T, int group_size, int bits>
[[kernel]] void one_tile(
    const device uint32_t* w [[buffer(0)]], const device T* scales [[buffer(1)]], const device T* biases [[buffer(2)]],
    const device T* x [[buffer(3)]], device T* y [[buffer(4)]], const constant int& K [[buffer(5)]],
    const constant int& N [[buffer(6)]], const constant int& M [[buffer(7)]], const constant int& tile [[buffer(8)]],
    uint3 tid [[threadgroup_position_in_grid]], uint lid [[thread_index_in_threadgroup]],
    uint simd_gid [[simdgroup_index_in_threadgroup]], uint simd_lid [[thread_index_in_simdgroup]]) {
  threadgroup T Ws[64 * (64 + 16 / sizeof(T))];
  tid.x = tile;
  const int64_t row = int64_t(tile) * 64;
  const device uint8_t* rows = (const device uint8_t*)w - row * K * bits / 8;
  const int64_t groups = row * (K / group_size);
  qmm_t_nax_tgp_impl<T, group_size, bits, true, 64, 64, 64, 2, 2>(
      (const device uint32_t*)rows, scales - groups, biases - groups, x, y, Ws, K, N, M, tid, lid, simd_gid,
      simd_lid);
}
"""
_ONE_PRODUCT = """
template <int rows, int columns>
[[kernel]] void one_product(
    const device float* a [[buffer(0)]], const device float* b [[buffer(1)]], device float* d [[buffer(2)]]) {
  mlx::steel::NAXTile<float, rows, 1> A;
  mlx::steel::NAXTile<float, columns, 1> B;
  mlx::steel::NAXTile<float, rows, columns> D;
  D.clear();
  A.load(a, 16);
  B.load(b, 16);
  mlx::steel::tile_matmad_nax(D, A, metal::bool_constant<false>{}, B, metal::bool_constant<true>{});
  D.store(d, 16 * columns);
}
"""
SIZE = 2**31
"""Bytes that an int of the row offset reaches."""
SEEN = "no GPU has shown these faults yet, only the simulator has, on MLX's own text"
HEAD = Problem(m=1, n=250112, k=16384, bits=8)
"""Weights of 4.1 GB: a vocabulary and width that models have."""
SMALL = Problem(m=1, n=SIZE // 512 + NAX_TILE, k=512, bits=8)
"""The first tile past the limit at a K that is simulated in a moment, and the last before it."""


@dataclass(frozen=True)
class Observation:
    """``unit`` is that of ``records.facts``."""

    id: str
    value: float | str
    unit: str


@cache
def tile_kernel(problem: Problem) -> Kernel:
    """What runs one tile of any problem of that format."""
    arguments = Quantization.of(problem).arguments
    return metal_kernel("one_tile", (Instance("one_tile", arguments),), headers=HEADERS["nax"], text=_ONE_TILE)


def row_offset(problem: Problem, tile: int) -> int:
    """Bytes from the start of w to the tile's first row."""
    return tile * NAX_TILE * problem.k * problem.bits // 8


def as_int32(value: int) -> int:
    """What is left of a number in 32 bits with a sign."""
    return (value + SIZE) % (2 * SIZE) - SIZE


def run_tile(problem: Problem, tile: int, kernel: Kernel | None = None) -> Fault | str | None:
    """Tile ``tile`` of N of stock's ``qmm_t_nax``: the fault that it shows, why its result is wrong, or None.

    ``kernel`` takes the place of ``tile_kernel``, to try a correction.
    """
    p = problem
    inputs = make_inputs(p.model_copy(update={"n": NAX_TILE}), seed=tile)
    x, scales, biases = (to_bits(each.astype(np.float64), p.dtype) for each in (inputs.x, inputs.scales, inputs.biases))
    out = Buffer(np.empty((p.m, p.n), np.uint16), output=True)
    operands = [Buffer(inputs.packed), Buffer(scales), Buffer(biases), Buffer(x), out]
    found = run(
        kernel or tile_kernel(p),
        [0, *operands, p.k, p.n, p.m, tile],
        (1, 1, 1),
        (128, 1, 1),
        shared_limit=SHARED_LIMIT,
        checks=("races", "unwritten_reads", "bounds"),  # the other tiles' outputs are never written
    )
    if found.report.faults:
        return found.report.faults[0]
    columns = found.outputs[0][:, tile * NAX_TILE : (tile + 1) * NAX_TILE]
    return judge(inputs, from_bits(columns, p.dtype), rounded=True)


def tile_product(rows: int, columns: int) -> tuple[float, float]:
    """Largest output of the product of a tile of ``rows`` x ``columns`` fragments, and its largest error."""
    shapes = ((1, 1), (1, 2))
    instances = tuple(Instance("one_product", f"{m}, {n}") for m, n in shapes)
    kernel = metal_kernel("one_product", instances, headers=HEADERS["nax"], text=_ONE_PRODUCT)
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 9, (16 * each, 16)).astype(np.float32) for each in (rows, columns))
    out = Buffer(np.empty((16 * rows, 16 * columns), np.uint32), output=True)
    number = shapes.index((rows, columns))
    found = run(kernel, [number, Buffer(a), Buffer(b), out], (1, 1, 1), (32, 1, 1), shared_limit=SHARED_LIMIT)
    if found.report.faults:
        raise AssertionError(str(found.report.faults[0]))
    values = found.outputs[0].view(np.float32)
    return float(np.abs(values).max()), float(np.abs(values - a @ b.T).max())


def observe() -> Iterator[Observation]:
    """Both faults, each beside the nearest case that is right. Raises MissingTool without clang or an MLX wheel."""
    yield Observation("seen_on", SEEN, "text")
    last = HEAD.n // NAX_TILE - 1
    first = SIZE // (NAX_TILE * HEAD.k * HEAD.bits // 8)
    yield Observation("weight_offset.problem", HEAD.id, "text")
    yield Observation("weight_offset.weights", HEAD.weight_bytes, "byte")
    yield Observation("weight_offset.wrong_columns", HEAD.n - first * NAX_TILE, "count")
    yield Observation("weight_offset.last_tile.offset", row_offset(HEAD, last), "byte")
    yield Observation("weight_offset.last_tile.offset_in_32_bits", as_int32(row_offset(HEAD, last)), "byte")
    edge = SMALL.n // NAX_TILE - 1
    for name, problem, tile in (
        ("last_tile", HEAD, last),
        ("first_tile_past_2_31", SMALL, edge),
        ("tile_before", SMALL, edge - 1),
    ):
        yield Observation(f"weight_offset.{name}.simulated", _said(run_tile(problem, tile)), "text")
    for rows, columns in ((1, 1), (1, 2)):
        largest, error = tile_product(rows, columns)
        yield Observation(f"fragment_tile.{rows}x{columns}.largest_output", largest, "norm")
        yield Observation(f"fragment_tile.{rows}x{columns}.largest_error", error, "norm")


def _said(found: Fault | str | None) -> str:
    if isinstance(found, Fault):
        return f"{found.kind} at {found.file}:{found.line}: {found.text}"
    return found or "right"
