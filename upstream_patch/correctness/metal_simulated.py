"""Run the cover of MLX's Metal kernels through the simulator and judge every launch."""

from __future__ import annotations

from collections.abc import Sequence

from upstream_patch.correctness.metal_cover import MetalCase
from upstream_patch.correctness.outcome import Outcome, outcome_of
from upstream_patch.correctness.stock_metal import judge, rounded_sum, same_values
from upstream_patch.reference import from_bits
from upstream_patch.simulate import Kernel
from upstream_patch.simulate.metal.launches import How, run_accumulate, run_matmul
from upstream_patch.simulate.metal.stock import FAMILY, make_operands, stock_kernel


def kernels_of(cases: Sequence[MetalCase]) -> list[Kernel]:
    """The libraries that the cases need."""
    wanted = dict.fromkeys((FAMILY[case.route], case.quantization) for case in cases)
    return [stock_kernel(*each) for each in wanted]


def run_metal_case(case: MetalCase) -> Outcome:
    """Two launches: two schedules, two fills of threadgroup memory, two tile sizes. Never raises for a fault.

    After split-K, the sum of its parts is a third one, and must be numpy's bits.
    """
    operands = make_operands(case.problem, case.layout, case.seed, case.distribution)
    common: How = {"seed": case.seed, "sums": case.sums}
    hows: tuple[How, How] = (
        {**common, "order": case.order, "fill": case.fill},
        {**common, "order": case.other_order, "fill": case.fill ^ 0xFF},
    )
    tiles = (case.tile, case.other_tile)
    runs = [run_matmul(case.route, operands, tile, case.placement, how) for tile, how in zip(tiles, hows, strict=True)]
    first, other = runs
    failures = [f"{case.id}, run {i}: {fault}" for i, run in enumerate(runs, 1) for fault in run.report.faults]
    if not failures and first.outputs[0].tobytes() != other.outputs[0].tobytes():
        failures.append(f"{case.id}: the schedule, the tile, or what threadgroup memory held before changes the output")
    result = first.outputs[0]
    if case.route == "splitk" and not failures:
        summed = run_accumulate(case.problem, result, {"order": case.order}, at_end=case.placement.at_end)
        runs.append(summed)
        failures += [f"{case.id}, sum of the parts: {fault}" for fault in summed.report.faults]
        wanted = rounded_sum(result, case.problem.dtype)
        if not failures and not same_values(summed.outputs[0], wanted, case.problem.dtype):
            failures.append(f"{case.id}: the sum of the parts is not that of fp32 in their order, rounded once")
        result = summed.outputs[0][None]
    if not failures:
        values = from_bits(result, case.problem.dtype)
        wrong = [judge(inputs, values[i], case.route != "wide") for i, inputs in enumerate(operands.batch)]
        failures += [f"{case.id}, matrix {i}: {why}" for i, why in enumerate(wrong) if why is not None]
    return outcome_of(runs, sum(launch.groups for launch in case.launches), failures)
