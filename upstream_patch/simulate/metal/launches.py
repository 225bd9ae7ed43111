"""How MLX's host code launches its quantized matmul kernels: instance, grid, group and arguments of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from upstream_patch.problem import DType, Problem
from upstream_patch.simulate.api import CHECKS, Buffer, Check, Order, Run, Sums, run
from upstream_patch.simulate.metal.source import Instance
from upstream_patch.simulate.metal.stock import (
    FAMILY,
    K_LANES,
    NAX_TILE,
    SPLITK_TILE,
    Layout,
    Operands,
    Quantization,
    Route,
    stock_kernel,
)
from upstream_patch.simulate.small_m import Placement
from upstream_patch.simulate.source import Kernel

SHARED_LIMIT = 32 * 1024
"""Threadgroup memory of every Apple GPU, in bytes."""


class How(TypedDict, total=False):
    """How a launch is scheduled, as ``run`` takes it."""

    seed: int
    order: Order
    sums: Sums
    fill: int
    checks: Sequence[Check]


@dataclass(frozen=True)
class Launch:
    """``grid`` counts threadgroups, ``group`` the lanes of each."""

    instance: Instance
    grid: tuple[int, int, int]
    group: tuple[int, int, int]

    @property
    def groups(self) -> int:
        return prod(self.grid)


def launch_of(route: Route, problem: Problem, layout: Layout, tile: int, aligned: bool = True) -> Launch:
    """``tile``: rows (BM) of qmm_t_nax, rows of x a threadgroup of qmv_wide, parts of K of qmm_t_splitk.

    Without ``aligned`` qmm_t_nax is the instance for any N, whatever N is.
    """
    p, q, batched, batch = problem, Quantization.of(problem), bool(layout.shape), prod(layout.shape)
    match route:
        case "nax":
            grid = (-(-p.n // NAX_TILE), -(-p.m // tile), batch)
            return Launch(q.nax(aligned and p.n % NAX_TILE == 0, batched, tile), grid, (32, 2, 2))
        case "wide":
            results = 2 * 32 // K_LANES
            return Launch(q.wide(tile, batched), (-(-p.m // tile), -(-p.n // results), batch), (32, 2, 1))
        case "splitk":
            grid = (-(-p.n // SPLITK_TILE), -(-p.m // SPLITK_TILE), tile)
            return Launch(q.splitk(p.n % SPLITK_TILE == 0), grid, (32, 2, 2))


def accumulate_launch(problem: Problem) -> Launch:
    """One lane an output: the grid ends where the output does, as Metal's non-uniform threadgroups do."""
    width = max(w for w in range(1, 65) if problem.n % w == 0)
    return Launch(Quantization.of(problem).accumulate(), (problem.n // width, problem.m, 1), (width, 1, 1))


def accumulate_arguments(m: int, n: int, parts: int) -> tuple[str | int, ...]:
    """What its buffers hold, from 0 on: operands by name, and int32 sizes."""
    return ("partials", "y", parts, m * n, n)


def _output(shape: tuple[int, ...], dtype: DType, at_end: bool) -> Buffer:
    return Buffer(np.empty(shape, np.uint32 if dtype == "f32" else np.uint16), output=True, at_end=at_end)


def _run(
    kernel: Kernel | None, route: Route, q: Quantization, launch: Launch, arguments: Sequence[Any], how: How | None
) -> Run:
    kernel = kernel or stock_kernel(FAMILY[route], q)
    return run(
        kernel,
        [kernel.instances.index(launch.instance.call), *arguments],
        launch.grid,
        launch.group,
        shared_limit=SHARED_LIMIT,
        **{"checks": CHECKS, **(how or {})},  # type: ignore[arg-type]
    )


def run_matmul(
    route: Route,
    operands: Operands,
    tile: int,
    where: Placement,
    how: How | None = None,
    kernel: Kernel | None = None,
    launch: Launch | None = None,
) -> Run:
    """A launch of ``launch_of``, or the one given. The output is [batch, M, N] of stored bits; of splitk [parts, M, N]
    in fp32.

    K is a multiple of 64 for nax, of ``tile`` x max(32, group) for splitk, which takes no batch. ``kernel`` takes the
    place of the stock one, for mutations.
    """
    p = operands.problem
    x, packed, scales, biases = (
        Buffer(data, at_end=where.at_end, offset=offset)
        for data, offset in zip(operands.arrays(), where.offsets, strict=True)
    )
    if route == "splitk":
        out = _output((tile, p.m, p.n), "f32", where.at_end)
        rest: list[Buffer | int | None] = [p.k // tile, p.m * p.n]
    else:
        out = _output((len(operands.batch), p.m, p.n), p.dtype, where.at_end)
        rest = operands.batch_arguments()
    arguments = [packed, scales, biases, x, out, p.k, p.n, p.m, *rest]
    launch = launch or launch_of(route, p, operands.layout, tile)
    result = _run(kernel, route, Quantization.of(p), launch, arguments, how)
    return replace(result, outputs=(result.outputs[0].view(np.float32),)) if route == "splitk" else result


def run_accumulate(
    problem: Problem,
    partials: NDArray[np.float32],
    how: How | None = None,
    kernel: Kernel | None = None,
    at_end: bool = False,
) -> Run:
    """``steel_gemm_splitk_accum`` on partials [parts, M, N] in fp32. The output is [M, N] of stored bits."""
    p = problem
    buffers = {"partials": Buffer(partials, at_end=at_end), "y": _output((p.m, p.n), p.dtype, at_end)}
    named = accumulate_arguments(p.m, p.n, len(partials))
    arguments = [buffers[each] if isinstance(each, str) else each for each in named]
    return _run(kernel, "splitk", Quantization.of(p), accumulate_launch(p), arguments, how)
