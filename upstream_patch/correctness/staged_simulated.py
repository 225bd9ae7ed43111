"""Run the cover of our staged Metal kernels through the simulator: against MLX's own kernel, and against fp64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch.correctness.outcome import Outcome, outcome_of
from upstream_patch.correctness.staged_cover import StagedCase
from upstream_patch.correctness.stock_metal import held_weights, judge, rounded_sum, same_values
from upstream_patch.kernels.metal import STEP, Staged
from upstream_patch.reference import F32, F64, Inputs, from_bits, round_to
from upstream_patch.simulate import Kernel, Placement, Run
from upstream_patch.simulate.metal.launches import How, run_accumulate, run_matmul
from upstream_patch.simulate.metal.staged import (
    accumulate_kernel,
    part_of,
    run_staged,
    run_text,
    staged_kernel,
    text_kernel,
)
from upstream_patch.simulate.metal.stock import Operands, make_operands, stock_kernel
from upstream_patch.simulate.small_m import to_bits

MEAN_ERROR = 1.1
"""The most that the mean error of parts of K may be, as a multiple of that of one rounding of the right answer."""


def kernels_of(cases: Sequence[StagedCase]) -> list[Kernel]:
    """The libraries that the cases need."""
    quantizations = dict.fromkeys(case.quantization for case in cases)
    ours = [kernel for q in quantizations for kernel in (staged_kernel(q), stock_kernel("nax", q))]
    texts = dict.fromkeys((case.quantization, case.instances[1].bm) for case in cases if case.from_text)
    sums = [accumulate_kernel(dtype) for dtype in dict.fromkeys(case.problem.dtype for case in cases)]
    return [*ours, *(text_kernel(*each) for each in texts), *sums]


def run_staged_case(case: StagedCase) -> Outcome:
    """Two launches of ours, with other tiles, schedules and fills of threadgroup memory, and the stock kernel's; a
    third where the case is of what ``mx.fast`` compiles.

    All bits must agree; parts of K with the stock kernel on those columns of K. Never raises for a fault.
    """
    operands = make_operands(case.problem, case.form.layout, case.seed, case.distribution)
    parts, where = case.form.parts, case.placement
    common: How = {"seed": case.seed, "sums": case.sums}
    one: How = {**common, "order": case.order, "fill": case.fill}
    two: How = {**common, "order": case.other_order, "fill": case.fill ^ 0xFF}
    first, other = case.instances
    launched = [(first, run_staged(first, operands, parts, where, one))]
    launched.append((other, run_staged(other, operands, parts, where, two)))
    if case.from_text:
        launched.append((other, run_text(other, operands, parts, where, one)))
    runs = [run for _, run in launched]
    groups = [_groups(case, operands, instance) for instance, _ in launched]
    failures = [f"{case.id}, launch {i}: {fault}" for i, run in enumerate(runs, 1) for fault in run.report.faults]
    if not failures:
        failures = [f"{case.id}: {why}" for why in _wrong_launches(case, launched, groups)]
        result = runs[0].outputs[0]
        failures += [f"{case.id}: {why}" for why in _unlike_stock(case, operands, result, common)]
    if not failures and parts > 1:
        runs.append(run_accumulate(case.problem, result, one, accumulate_kernel(case.problem.dtype), where.at_end))
        failures = [f"{case.id}, sum of the parts: {why}" for why in _wrong_sum(case, result, runs[-1])]
        result = runs[-1].outputs[0][None] if not failures else result
    if not failures:
        failures = [f"{case.id}: {why}" for why in _wrong_answers(case, operands, result)]
    return outcome_of(runs, sum(groups), failures)


def _groups(case: StagedCase, operands: Operands, instance: Staged) -> int:
    """Threadgroups of a launch."""
    return prod(instance.grid(case.problem.m, case.problem.n, max(case.form.parts, len(operands.batch))))


def _wrong_launches(case: StagedCase, launched: Sequence[tuple[Staged, Run]], groups: Sequence[int]) -> Iterator[str]:
    """One barrier a step of K in every threadgroup, and the same bits from all launches."""
    for (instance, run), count in zip(launched, groups, strict=True):
        steps = count * (case.problem.k // case.form.parts // STEP)
        if run.report.stats.barriers != steps:
            yield f"{instance.host_name} met {run.report.stats.barriers} barriers, not {steps}"
    if len({run.outputs[0].tobytes() for _, run in launched}) > 1:
        yield "the schedule, the tile, or what threadgroup memory held before changes the output"


def _unlike_stock(case: StagedCase, operands: Operands, result: NDArray[Any], how: How) -> Iterator[str]:
    """The bits of MLX's kernel; of parts of K rounded ones, and in fp32 those of the model where sums ascend."""
    dtype, parts = case.problem.dtype, case.form.parts
    ours = to_bits(result.astype(np.float64), dtype) if parts > 1 else result
    cut = [part_of(operands, i, parts) for i in range(parts)] if parts > 1 else [operands]
    stock = [run_matmul("nax", each, case.stock_rows, Placement(), how).outputs[0] for each in cut]
    if not same_values(ours, np.concatenate(stock), dtype):
        yield "not the bits of MLX's own kernel at the same split"
    if parts > 1 and case.sums == "ascending":
        for i, part in enumerate(cut):
            if not np.array_equal(ascending(part.batch[0]), result[i], equal_nan=True):
                yield f"part {i} is not the model's bits"


def _wrong_sum(case: StagedCase, partials: F32, summed: Run) -> Iterator[str]:
    yield from map(str, summed.report.faults)
    if not summed.report.faults:
        dtype = case.problem.dtype
        if not same_values(summed.outputs[0], rounded_sum(partials, dtype), dtype):
            yield "not that of fp32 in their order, rounded once"


def _wrong_answers(case: StagedCase, operands: Operands, result: NDArray[Any]) -> Iterator[str]:
    """Against fp64: ``result`` is [batch, M, N] of stored bits."""
    values = from_bits(result, case.problem.dtype)
    for i, inputs in enumerate(operands.batch):
        why = judge(inputs, values[i], True)
        if why is not None:
            yield f"matrix {i}: {why}"
    if case.form.parts > 1 and case.distribution == "normal":
        error = mean_error(operands.batch[0], values[0])
        if error > MEAN_ERROR:
            yield f"the mean error is {error:.3f} times that of one rounding"


def ascending(inputs: Inputs) -> F32:
    """x w^T [M, N] in fp32, one product after the other along K; weights as the kernel holds them."""
    weights = held_weights(inputs, True).astype(np.float32)
    sums = np.zeros((len(inputs.x), len(weights)), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for k in range(inputs.problem.k):
            sums += inputs.x[:, k, None] * weights[None, :, k]
    return sums


def mean_error(inputs: Inputs, ours: F64) -> float:
    """Mean distance of ``ours`` [M, N] from the fp64 answer, as a multiple of that of the rounded answer."""
    exact = inputs.x.astype(np.float64) @ held_weights(inputs, True).T
    rounding = np.abs(round_to(exact, inputs.problem.dtype) - exact).mean()
    return float(np.abs(ours - exact).mean() / rounding)
