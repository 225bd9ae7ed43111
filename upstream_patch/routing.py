"""Which route a problem takes: in stock MLX 0.32.4 on CUDA, and in ours. Pure functions of shapes and the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from upstream_patch.kernels.tuning import DEVICE_CLASSES, FORMATS, MAX_BATCH, MAX_ROWS, format_of
from upstream_patch.problem import Problem

Capability = tuple[int, int]
LARGEST = 1 << 30
"""N; beyond, 32-bit counts of columns in the kernel would overflow. K has a limit for each width, `largest_k`."""
Route = Literal["small_m", "stock", "stock_folded"]
StockRoute = Literal["qmv", "fp_qmv", "qmm_sm80", "qmm_sm90", "qmm_naive", "unsupported"]


@dataclass(frozen=True)
class Crossover:
    """From which M stock's kernel is the better one on a device class, and what says so."""

    rows: int = MAX_ROWS
    """The most rows our kernel takes; stock from the next one on."""
    measured: bool = False
    """Against stock on such a card. Else ``rows`` is the kernel's own limit, and nobody has looked."""
    slower_in_a_queue: frozenset[tuple[int, int, int]] = frozenset()
    """(M, N, K) that ours takes although independent calls, which the GPU may overlap, are faster in stock: calls that
    wait for one another, as those of a decode step do, are not."""


CROSSOVER: Mapping[Capability, Crossover] = {device: Crossover() for device in DEVICE_CLASSES} | {
    (9, 0): Crossover(measured=True, slower_in_a_queue=frozenset({(16, 1024, 4096), (32, 1024, 4096)}))
}
"""A test compares it with the records."""

QMV_ROWS = 8
"""Stock takes a row-by-row kernel below this many rows (M times the batch)."""

KERNEL_SYMBOLS: dict[StockRoute, str] = {
    "qmv": "qmv_kernel",
    "fp_qmv": "fp_qmv",
    "qmm_sm80": "qmm_sm80_kernel",
    "qmm_sm90": "qmm_sm90",
    "qmm_naive": "qmm_naive_kernel",
}
"""What a profiler's kernel name contains. Read off runs: qmv and qmm_sm80; the others off the wheel's symbols."""


def route(problem: Problem, device: Capability | None) -> Route:
    """Our route for contiguous weights on a CUDA device of that compute capability; None is any other backend."""
    if device is None:
        return "stock"
    if takes_small_m(problem, device):
        return "small_m"
    # Stock never folds the batch of [B, 1, K] into rows, so a tile kernel reads the weights once per batch entry.
    if (
        problem.batch == 1
        and problem.layout == "b1k"
        and problem.m >= QMV_ROWS
        and stock_route(problem, device).startswith("qmm")
    ):
        return "stock_folded"
    return "stock"


def largest_k(bits: int) -> int:
    """The most elements in a row of the weights: what the lanes of a warp step over at once must fit 32 bits, signed.

    A row of a chunk, 256 of K, is 2 x bits units of 16 bytes. A power of two of lanes shares it, the largest that
    divides them, so 16 / (the largest power of two in bits) rows are copied at a time.
    """
    rows = 16 // (bits & -bits)
    return (2**31 - 1) // rows * 8 // bits


def takes_small_m(problem: Problem, device: Capability) -> bool:
    return (
        device in DEVICE_CLASSES
        and format_of(problem) in FORMATS
        and problem.dtype in ("bf16", "f16")
        and problem.k % problem.group_size == 0
        and problem.m <= CROSSOVER[device].rows
        and problem.batch <= MAX_BATCH
        and problem.n <= LARGEST
        and problem.k <= largest_k(problem.bits)
    )


def stock_route(problem: Problem, device: Capability) -> StockRoute:
    """The route of MLX 0.32.4's ``QuantizedMatmul::eval_gpu`` for contiguous, transposed weights.

    Source: the released library's code, first match wins. M counts the rows of one batch entry, B the entries.
    """
    m, batch = (1, problem.m) if problem.layout == "b1k" else (problem.m, 1)
    batch *= problem.batch
    qmv: StockRoute = "unsupported"
    if problem.mode != "affine" and device[0] > 9 and problem.m <= QMV_ROWS:
        qmv = "fp_qmv"
    elif problem.k % 8 == 0:
        qmv = "qmv"
    aligned_k = problem.k % max(64, problem.group_size) == 0
    even = problem.mode == "affine" and problem.bits % 2 == 0
    if device[0] == 9 and even and problem.k % 64 == 0 and problem.group_size >= problem.k:
        few = m == 1 and batch == 1 and problem.n <= 16384 and problem.k <= 16384
        return qmv if few and qmv != "unsupported" else "qmm_sm90"
    tile: StockRoute = "unsupported"
    if device[0] >= 8 and problem.n % 128 == 0 and aligned_k and problem.dtype != "f32" and problem.bits in (4, 8):
        tile = "qmm_sm80"
    elif aligned_k:
        tile = "qmm_naive"
    if tile == "unsupported" or (qmv != "unsupported" and m * batch < QMV_ROWS):
        return qmv
    return tile
