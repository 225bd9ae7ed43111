"""Make sure that the checks on our staged Metal kernels see: plant every fault in them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from upstream_patch.correctness.outcome import Outcome
from upstream_patch.kernels.metal import COLUMNS, GROUP, Staged
from upstream_patch.problem import Problem
from upstream_patch.reference import make_inputs
from upstream_patch.simulate import Buffer, Check, Kernel, Placement, Run, run
from upstream_patch.simulate.metal.launches import How, run_matmul
from upstream_patch.simulate.metal.mutations import WRONG_ANSWER
from upstream_patch.simulate.metal.staged import part_of, run_staged
from upstream_patch.simulate.metal.staged_mutations import (
    EQUIVALENT,
    FAR_QUANTIZATION,
    FAR_ROWS,
    LAUNCHES,
    PLANTS,
    Launch,
    mutable_kernel,
)
from upstream_patch.simulate.metal.stock import Operands, make_operands
from upstream_patch.simulate.small_m import to_bits

Bits = NDArray[Any]
_WHERE = Placement(at_end=True)
_BUT_OUTPUTS: tuple[Check, ...] = ("races", "unwritten_reads", "bounds")
FAR_DOWN, FAR_ACROSS = 3_000, 70_000
"""The tile: row 192,000 and output 4,480,000. With K of 16,384 every offset is past 2^31."""
FAR_K = 16_384
FAR_INDEX = 3
"""Of the matrix, of 65,536 x 65,536 outputs each."""
_FAR_M = _FAR_N = 65_536


@cache
def _operands(launch: Launch) -> Operands:
    planting = LAUNCHES[launch]
    return make_operands(planting.problem, planting.layout, seed=1)


@cache
def wanted(launch: Launch) -> Bits:
    """The right answer: what MLX's kernel makes of it, or of the far ones our own where it is near."""
    if launch == "far":
        return far_tile(mutable_kernel("far"), 0, 0).outputs[0]
    if launch == "far batch":
        return far_matrix(mutable_kernel("far batch"), 0).outputs[0]
    operands, parts = _operands(launch), LAUNCHES[launch].parts
    cut = [part_of(operands, i, parts) for i in range(parts)] if parts > 1 else [operands]
    return np.concatenate([run_matmul("nax", each, 64, Placement()).outputs[0] for each in cut])


def shown(launch: Launch, kernel: Kernel, how: How | None = None) -> tuple[str | None, Bits | None]:
    """The kind of fault that a kernel shows, or None; and its output, where it came to one."""
    planting = LAUNCHES.get(launch)
    if planting is None:
        far = launch == "far"
        result = far_tile(kernel, FAR_DOWN, FAR_ACROSS) if far else far_matrix(kernel, FAR_INDEX)
    else:
        result = run_staged(planting.instance, _operands(launch), planting.parts, _WHERE, how, kernel)
    if result.report.faults:
        return result.report.faults[0].kind, None
    bits = result.outputs[0]
    if planting is not None and planting.parts > 1:
        bits = to_bits(bits.astype(np.float64), planting.problem.dtype)
    return None if np.array_equal(bits, wanted(launch)) else WRONG_ANSWER, bits


def far_tile(kernel: Kernel, down: int, across: int) -> Run:
    """Two rows of one tile of a product of ``down`` x ``across`` tiles before it. The output is [2, 64] in fp32."""
    q = FAR_QUANTIZATION
    problem = Problem(m=2, n=COLUMNS, k=FAR_K, bits=q.bits, group_size=q.group_size, dtype=q.dtype)
    operands = Operands(problem, LAUNCHES["whole"].layout, (inputs := (make_inputs(problem, 1),)), inputs)
    x, packed, scales, biases = (Buffer(each, at_end=True) for each in operands.arrays())
    n = (across + 1) * COLUMNS
    out = Buffer(np.empty(n + COLUMNS, np.uint32), output=True)
    sizes = (FAR_K, n, down * FAR_ROWS + problem.m, down, across)
    result = run(
        kernel,
        [0, packed, scales, biases, x, out, *sizes],
        (1, 1, 1),
        GROUP,
        shared_limit=Staged(q.bits, q.group_size, "bf16").shared_bytes,
        checks=_BUT_OUTPUTS,
    )
    stored = result.outputs[0].view(np.float32)
    return Run((np.stack([stored[:COLUMNS], stored[n:]]),), result.report)


def far_matrix(kernel: Kernel, index: int) -> Run:
    """The first tile of matrix ``index`` of a batch. The output is its [64, 64] of stored bits."""
    q = FAR_QUANTIZATION
    problem = Problem(m=FAR_ROWS, n=COLUMNS, k=2 * COLUMNS, bits=q.bits, group_size=q.group_size, dtype=q.dtype)
    x, packed, scales, biases = (Buffer(each, at_end=True) for each in make_operands(problem, seed=1).arrays())
    out = Buffer(np.empty((FAR_ROWS - 1) * _FAR_N + COLUMNS, np.uint16), output=True, at_end=True)
    batch = (1, Buffer(np.array([FAR_INDEX + 1], np.int32)), Buffer(np.array([0], np.int64)))
    result = run(
        kernel,
        [0, packed, scales, biases, x, out, problem.k, _FAR_N, _FAR_M, index, *batch],
        (1, 1, 1),
        GROUP,
        shared_limit=Staged(q.bits, q.group_size, "bf16").shared_bytes,
        checks=_BUT_OUTPUTS,
    )
    stored = np.append(result.outputs[0], np.zeros(_FAR_N - COLUMNS, np.uint16)).reshape(FAR_ROWS, _FAR_N)
    return Run((stored[:, :COLUMNS],), result.report)


def kernels() -> Iterator[Kernel]:
    """What find_staged_plants runs."""
    yield from (mutable_kernel(launch) for launch in get_args(Launch))
    yield from (plant.apply() for plant in (*PLANTS, *EQUIVALENT))


def find_staged_plants() -> Outcome:
    """A line of ``failures`` for each planted fault that nothing reports, and each harmless change that shows one."""
    failures = []
    sound = {launch: shown(launch, mutable_kernel(launch))[0] for launch in get_args(Launch)}
    failures += [f"staged {name}: the sound kernel shows {kind}" for name, kind in sound.items() if kind is not None]
    for plant in PLANTS:
        kind = shown(plant.launch, plant.apply())[0]
        if kind not in plant.kinds:
            seen = f"shows {kind}" if kind else "is not found"
            failures.append(f"blind checker: {plant.name} {seen}, not {' or '.join(plant.kinds)} (staged kernel)")
    for change in EQUIVALENT:
        kind = shown(change.launch, change.apply())[0]
        if kind is not None:
            failures.append(f"staged kernel: {change.name} shows {kind}, and should change nothing")
    count = len(PLANTS) + len(EQUIVALENT)
    return Outcome(cases=count, launches=count + len(sound), failures=tuple(failures))
