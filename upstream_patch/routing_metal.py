"""Which route a quantized matmul takes on Metal: in stock MLX, and with our change. Pure functions of shapes.

Stock is the dispatch of MLX 0.32.4 as far as it is public: its headers, its tests, and its sources at the commits that
the limits below came with. No Apple GPU has confirmed it. ``kernels/metal/qmm_nax_routing.h`` is what the change ships;
a test compares it with ``parts`` over every shape.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from upstream_patch.kernels.metal import COLUMNS, STEP, X_ALIGNMENT, Staged
from upstream_patch.problem import Problem

Kernel = Literal["qmv", "qmv_quad", "qmv_wide", "qmm_t", "qmm_t_splitk", "qmm_t_nax", "qmm_t_nax_splitk"]

TILE, SHORT_TILE = 64, 32
"""Rows of a NAX threadgroup's tile (BM), and where M is no more than 32."""
MIN_ROWS = 8
MIN_OUTPUTS = 16384
"""M * N that a problem below the limit of the vector kernels needs to leave them."""
MAX_THREADGROUPS = 256
MIN_PARTITION = 256
"""Columns of K in one part."""
MIN_SPLIT_K = 512
PARTS = (4, 3, 2)
"""The first that fits is taken. The request says at most 4; that 3 may follow where only 4 does not divide K is our
choice, and without 3 in this list (and in the header's loop) it is undone."""
_SPLITK_TILE, _SPLITK_THREADGROUPS = 32, 512
_NAX_OS = (26, 2)


@dataclass(frozen=True)
class AppleGpu:
    """What MLX asks of a device. ``kind`` is the last letter of its architecture: g, s (Max), d (Ultra), p (phone)."""

    generation: int
    kind: str
    nax: bool
    """It has matrix units, and this system lets MLX use them."""


_ARCHITECTURE = re.compile(r"applegpu_g(\d+)([a-z])")


def apple_gpu(architecture: str, macos: Sequence[int]) -> AppleGpu | None:
    """``architecture`` as ``mx.device_info`` has it, e.g. ``applegpu_g17s``; None where it is not of that form."""
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        return None
    generation, kind = int(match[1]), match[2]
    return AppleGpu(generation, kind, tuple(macos) >= _NAX_OS and generation >= (18 if kind == "p" else 17))


M5 = AppleGpu(17, "g", nax=True)

_ULTRA = (32, 18, 12)
_OLD = (18, 12, 10)


def _limits(gpu: AppleGpu) -> tuple[int, int, int]:
    """By K and N: both up to 2048, both up to 4096, larger."""
    if gpu.kind == "d":
        return _ULTRA
    if gpu.generation >= 17:
        return (33, 25, 13)
    if gpu.generation >= 15:
        return (13, 15, 13)
    return (14, 10, 6) if gpu.generation >= 13 else _OLD


def qmv_batch_limit(gpu: AppleGpu, n: int, k: int) -> int:
    """Rows from which MLX takes a tile kernel."""
    small, middle, large = _limits(gpu)
    longest = max(n, k)
    return small if longest <= 2048 else middle if longest <= 4096 else large


@dataclass(frozen=True)
class MetalRoute:
    kernel: Kernel
    parts: int = 1
    """Of K; their sums are added by a kernel of their own where there are several."""
    rows: int = 0
    """BM of a NAX tile; 0 for other kernels."""
    staged: bool = False
    """Our schedule, not MLX's."""

    @property
    def text(self) -> str:
        parts = f" in {self.parts} parts" if self.parts > 1 else ""
        return self.kernel + parts + (", staged" if self.staged else "")


def rows_and_batch(problem: Problem) -> tuple[int, int]:
    """M and the number of matrices as MLX counts them, for contiguous x: the leading axes of x are rows of one w."""
    if problem.batch == 1:
        return problem.m, 1
    return (1, problem.m * problem.batch) if problem.layout == "b1k" else (problem.m, problem.batch)


def tile_rows(m: int) -> int:
    """BM."""
    return SHORT_TILE if m <= SHORT_TILE else TILE


def splitk_parts(m: int, n: int, k: int, group_size: int) -> int:
    """Parts of stock's ``qmm_t_splitk``, which does not use matrix units; 1: it is not taken."""
    step = max(32, group_size)
    tiles = -(-m // _SPLITK_TILE) * -(-n // _SPLITK_TILE)
    parts = min(max(1, _SPLITK_THREADGROUPS // tiles), k // step)
    while parts > 1 and k % (parts * step):
        parts -= 1
    return max(1, parts)


def stock_route(problem: Problem, gpu: AppleGpu, tf32: bool = True) -> MetalRoute:
    """Stock's route for contiguous affine operands. Raises ValueError for other modes, which we leave alone."""
    if problem.mode != "affine":
        raise ValueError(f"{problem.id}: only affine weights have a Metal route here")
    (m, batch), n, k = rows_and_batch(problem), problem.n, problem.k
    if m < qmv_batch_limit(gpu, n, k):
        if k in (64, 128) and problem.bits & (problem.bits - 1) == 0:
            return MetalRoute("qmv_quad")
        return MetalRoute("qmv_wide" if m >= 2 and gpu.generation >= 15 else "qmv")
    if batch == 1 and (parts := splitk_parts(m, n, k, problem.group_size)) > 1:
        return MetalRoute("qmm_t_splitk", parts)
    if gpu.nax and k % STEP == 0 and (problem.dtype != "f32" or tf32):
        return MetalRoute("qmm_t_nax", rows=tile_rows(m))
    return MetalRoute("qmm_t")


def takes_staged(problem: Problem, x_bytes: int = 0) -> bool:
    """Whether our schedule can run it. ``x_bytes``: the offset of x or-ed with its strides over a batch, in bytes."""
    p = problem
    return (
        p.mode == "affine"
        and p.dtype in ("bf16", "f16")
        and p.n % COLUMNS == 0
        and p.k % STEP == 0
        and x_bytes % X_ALIGNMENT == 0
    )


def parts(problem: Problem, gpu: AppleGpu) -> int:
    """Parts of K of the split-K route: 0 where it is not taken, 1 where NAX runs unsplit, else 2 to 4."""
    (m, batch), n, k = rows_and_batch(problem), problem.n, problem.k
    if not gpu.nax or batch != 1 or m < MIN_ROWS or not takes_staged(problem):
        return 0
    if m < qmv_batch_limit(gpu, n, k) and m * n < MIN_OUTPUTS:
        return 0
    tiles = n // COLUMNS * -(-m // TILE)
    step = max(STEP, problem.group_size)
    if 2 * tiles > MAX_THREADGROUPS or (k >= MIN_SPLIT_K and k % (2 * step)):
        return 0
    if k < MIN_SPLIT_K:
        return 1
    fitting = (s for s in PARTS if s * tiles <= MAX_THREADGROUPS and k % (s * step) == 0 and k // s >= MIN_PARTITION)
    return next(fitting, 1)


def route(problem: Problem, gpu: AppleGpu, tf32: bool = True, x_bytes: int = 0) -> MetalRoute:
    """The route with our change. Raises ValueError for modes other than affine.

    The split-K route copies an x that is not aligned, so ``x_bytes`` matters to the unsplit kernel only.
    """
    found = parts(problem, gpu)
    rows = tile_rows(rows_and_batch(problem)[0])
    if found > 1:
        return MetalRoute("qmm_t_nax_splitk", found, rows, staged=True)
    stock = stock_route(problem, gpu, tf32)
    if found == 1 or stock.kernel == "qmm_t_nax":
        return MetalRoute("qmm_t_nax", rows=rows, staged=takes_staged(problem, x_bytes))
    return stock


def instance(problem: Problem, taken: MetalRoute) -> Staged | None:
    """Our kernel's instance for a route; None where it is not of our schedule."""
    if not taken.staged or problem.dtype == "f32":
        return None
    batched = rows_and_batch(problem)[1] > 1
    return Staged(problem.bits, problem.group_size, problem.dtype, taken.rows, batched, split=taken.parts > 1)
