"""What a quantized matmul costs on Metal, stock and staged, counted from the kernels' structure: a prediction.

Nothing here was measured, and no Apple GPU has run the staged kernels. Bytes are those that threadgroups ask for; what
a cache answers is not known. A test compares barriers and threadgroup memory with what the simulator sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from upstream_patch.kernels.metal import COLUMNS, STEP
from upstream_patch.problem import DTYPE_BYTES, Problem
from upstream_patch.routing_metal import AppleGpu, MetalRoute, instance, route, rows_and_batch, stock_route

LABEL = "A prediction from the kernels' structure, not a measurement; no Apple GPU has run the staged kernels."
LANES = 128
_WIDE_OUTPUTS = 8
"""Of a threadgroup of two simdgroups."""
_WIDE_ROWS = 5
_POINTERS = 12
"""Registers for addresses and counters, in every kernel alike: a guess."""


@dataclass(frozen=True)
class Cost:
    """``partial_bytes`` are written, and read again. ``barriers``: of a threadgroup in 64 columns of K. ``registers``:
    of 32 bits a lane, what must be held at once at least; None where the kernel does not use the matrix units."""

    route: MetalRoute
    launches: int
    threadgroups: int
    steps: int
    barriers: int
    weight_bytes: int
    x_bytes: int
    partial_bytes: int
    shared_bytes: int
    registers: int | None


def cost(problem: Problem, taken: MetalRoute) -> Cost:
    """Of one call whose operands are contiguous."""
    (m, batch), p = rows_and_batch(problem), problem
    size = DTYPE_BYTES[p.dtype]
    one_x = m * p.k * size * batch
    packed = p.packed_bytes

    def found(grid: Sequence[int], barriers: int, weight: int, x: int, shared: int, registers: int | None) -> Cost:
        parts = taken.parts
        partial = parts * m * p.n * 4 if parts > 1 else 0
        steps = -(-p.k // parts // STEP)
        launches = 2 if parts > 1 else 1
        return Cost(
            taken, launches, prod(grid), steps, barriers, weight * packed, x * one_x, partial, shared, registers
        )

    across, down = -(-p.n // COLUMNS), -(-m // taken.rows) if taken.rows else 0
    match taken.kernel:
        case "qmm_t_nax" | "qmm_t_nax_splitk":
            grid = (across, down, taken.parts * batch)
            staged = instance(p, taken)
            if staged is None:
                shared = COLUMNS * (STEP * size + 16)
                # two by two simdgroups: each reads the rows of its half
                return found(grid, 2, down, 2 * across, shared, _registers(taken.rows // 2, 32, size, p.bits, False))
            _, wn = staged.simdgroups
            registers = _registers(16, COLUMNS // wn, size, p.bits, True)
            return found(grid, 1, down, wn * across, staged.shared_bytes, registers)
        case "qmm_t_splitk" | "qmm_t":
            grid = (-(-p.n // 32), -(-m // 32), taken.parts * batch)
            return found(grid, 4, grid[1], grid[0], 2 * 32 * (32 * size + 16), None)
        case _:
            tiles = m if taken.kernel != "qmv_wide" else -(-m // _WIDE_ROWS)
            grid = (tiles, -(-p.n // _WIDE_OUTPUTS), batch)
            return found(grid, 0, tiles, 2 * grid[1], 0, None)


def _registers(rows: int, columns: int, size: int, bits: int, staged: bool) -> int:
    """Sums in fp32; A and B of a slice of 32 columns of K; staged: A of two steps of K, and the packed weights."""
    sums = rows * columns // 32
    x = rows * 32 * size // 32 // 4
    b = columns * 32 * size // 32 // 4
    ahead = (3 * x + bits + 1) if staged else 0
    return sums + x + b + ahead + _POINTERS


def report(problems: Sequence[Problem], gpu: AppleGpu, name: str) -> str:
    """Markdown: stock against ours for each problem."""
    head = (
        *("problem", "kernel", "launches", "threadgroups", "steps of 64 of K", "barriers a step"),
        *("MB of weights", "MB of x", "MB of partial sums", "threadgroup bytes", "registers a lane, at least"),
    )
    rows = []
    for problem in problems:
        stock, ours = stock_route(problem, gpu), route(problem, gpu)
        for arm, taken in (("stock", stock), ("ours", ours)) if stock != ours else (("both", stock),):
            c = cost(problem, taken)
            asked = (f"{each / 1e6:.2f}" for each in (c.weight_bytes, c.x_bytes, c.partial_bytes))
            counts = (str(each) for each in (c.launches, c.threadgroups, c.steps, c.barriers))
            registers = "-" if c.registers is None else str(c.registers)
            rows.append((problem.id, f"{arm}: {taken.text}", *counts, *asked, str(c.shared_bytes), registers))
    cells = (head, ["---"] * len(head), *rows)
    return "\n".join([f"{LABEL} Routes of {name}.", "", *(f"| {' | '.join(row)} |" for row in cells)])
