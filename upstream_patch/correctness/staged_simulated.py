"""Run the cover of our staged Metal kernels through the simulator: against MLX's own kernel, and against fp64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch.correctness.outcome import Outcome, outcome_of
from upstream_patch.correctness.staged_cover import StagedCase
from upstream_patch.correctness.stock_metal import held_weights, judge
from upstream_patch.kernels.metal import STEP
from upstream_patch.problem import DType
from upstream_patch.reference import F32, F64, Inputs, from_bits, round_to
from upstream_patch.simulate import Kernel, Placement
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
    parts = case.form.parts
    common: How = {"seed": case.seed, "sums": case.sums}
    hows: tuple[How, How] = (
        {**common, "order": case.order, "fill": case.fill},
        {**common, "order": case.other_order, "fill": case.fill ^ 0xFF},
    )
    first, other = case.instances
    runs = [
        run_staged(first, operands, parts, case.placement, hows[0]),
        run_staged(other, operands, parts, case.placement, hows[1]),
    ]
    launched = list(case.instances)
    if case.from_text:
        runs.append(run_text(other, operands, parts, case.placement, hows[0]))
        launched.append(other)
    groups = [np.prod(each.grid(case.problem.m, case.problem.n, _count(case, operands))) for each in launched]
    failures = [f"{case.id}, launch {i}: {fault}" for i, run in enumerate(runs, 1) for fault in run.report.faults]
    if failures:
        return outcome_of(runs, int(sum(groups)), failures)
    for instance, run, count in zip(launched, runs, groups, strict=True):
        steps = int(count) * (case.problem.k // parts // STEP)
        if run.report.stats.barriers != steps:
            failures.append(f"{case.id}: {instance.host_name} met {run.report.stats.barriers} barriers, not {steps}")
    result = runs[0].outputs[0]
    if any(result.tobytes() != run.outputs[0].tobytes() for run in runs[1:]):
        failures.append(f"{case.id}: the schedule, the tile, or what threadgroup memory held before changes the output")
    stock = stock_bits(case, operands, common)
    dtype = case.problem.dtype
    ours = to_bits(result.astype(np.float64), dtype) if parts > 1 else result
    if not same_values(ours, stock, dtype):
        failures.append(f"{case.id}: not the bits of MLX's own kernel at the same split")
    if parts > 1 and not failures:
        failures += [f"{case.id}: {why}" for why in wrong_parts(case, operands, result)]
        summed = run_accumulate(
            case.problem, result, {"order": case.order}, accumulate_kernel(dtype), case.placement.at_end
        )
        runs.append(summed)
        failures += [f"{case.id}, sum of the parts: {fault}" for fault in summed.report.faults]
        if not failures and not same_values(summed.outputs[0], rounded_sum(result, dtype), dtype):
            failures.append(f"{case.id}: the sum of the parts is not that of fp32 in their order, rounded once")
        result = summed.outputs[0][None]
    if not failures:
        values = from_bits(result, dtype)
        wrong = [judge(inputs, values[i], True) for i, inputs in enumerate(operands.batch)]
        failures += [f"{case.id}, matrix {i}: {why}" for i, why in enumerate(wrong) if why is not None]
        if parts > 1 and case.distribution == "normal":
            error = mean_error(operands.batch[0], values[0])
            if error > MEAN_ERROR:
                failures.append(f"{case.id}: the mean error is {error:.3f} times that of one rounding")
    return outcome_of(runs, int(sum(groups)), failures)


def _count(case: StagedCase, operands: Operands) -> int:
    return case.form.parts if case.form.parts > 1 else len(operands.batch)


def stock_bits(case: StagedCase, operands: Operands, how: How) -> NDArray[Any]:
    """What MLX's kernel makes of the problem, [batch, M, N] of stored bits; of parts of K, of each one's columns."""
    parts = case.form.parts
    if parts == 1:
        return run_matmul("nax", operands, case.stock_rows, Placement(), how).outputs[0]
    cut = (part_of(operands, index, parts) for index in range(parts))
    return np.concatenate([run_matmul("nax", part, case.stock_rows, Placement(), how).outputs[0] for part in cut])


def wrong_parts(case: StagedCase, operands: Operands, result: F32) -> list[str]:
    """Where sums ascend, every bit of a part is known: that of fp32 sums over K, one product after the other."""
    if case.sums != "ascending":
        return []
    wanted = [ascending(part_of(operands, i, case.form.parts).batch[0]) for i in range(case.form.parts)]
    wrong = [i for i, part in enumerate(wanted) if not np.array_equal(part, result[i], equal_nan=True)]
    return [f"part {i} is not the model's bits" for i in wrong]


def ascending(inputs: Inputs) -> F32:
    """x w^T [M, N] in fp32, one product after the other along K; weights as the kernel holds them."""
    weights = held_weights(inputs, True).astype(np.float32)
    sums = np.zeros((len(inputs.x), len(weights)), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for k in range(inputs.problem.k):
            sums += inputs.x[:, k, None] * weights[None, :, k]
    return sums


def rounded_sum(parts: F32, dtype: DType) -> NDArray[Any]:
    """Parts [parts, M, N] added in fp32 in their order, and rounded once: stored bits."""
    total = np.zeros(parts.shape[1:], np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in parts:
            total = total + part
        return to_bits(total.astype(np.float64), dtype)


def mean_error(inputs: Inputs, ours: F64) -> float:
    """Mean distance of ``ours`` [M, N] from the fp64 answer, as a multiple of that of the rounded answer."""
    exact = inputs.x.astype(np.float64) @ held_weights(inputs, True).T
    rounding = np.abs(round_to(exact, inputs.problem.dtype) - exact).mean()
    return float(np.abs(ours - exact).mean() / rounding)


def same_values(a: NDArray[Any], b: NDArray[Any], dtype: DType) -> bool:
    """Bit for bit, but for which NaN it is."""
    wide: tuple[F64, F64] = (from_bits(a, dtype), from_bits(b, dtype))
    nan = [np.isnan(each) for each in wide]
    return bool(np.array_equal(nan[0], nan[1]) and np.array_equal(a[~nan[0]], b[~nan[1]]))
