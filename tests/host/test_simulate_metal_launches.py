"""What the simulator launches of MLX's Metal kernels, argument by argument, and what a case compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from upstream_patch.correctness import metal_simulated
from upstream_patch.correctness.metal_cover import MetalCase, metal_cover
from upstream_patch.correctness.metal_simulated import run_metal_case
from upstream_patch.correctness.stock_metal import judge
from upstream_patch.problem import Problem
from upstream_patch.reference import from_bits
from upstream_patch.simulate import CHECKS, Buffer, Kernel, Placement, Report, Run
from upstream_patch.simulate.metal import launches
from upstream_patch.simulate.metal.launches import accumulate_launch, launch_of, run_accumulate, run_matmul
from upstream_patch.simulate.metal.source import metal_kernel
from upstream_patch.simulate.metal.stock import FLAT, HEADERS, LAYOUTS, Layout, Quantization, Route, make_operands

PADDED = next(layout for layout in LAYOUTS if layout.padding)
QUANTIZATION = Quantization(4, 64, "bf16")
PLACE = Placement(offsets=(2, 4, 6, 8))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Instance, grid, group, arguments and keywords of every launch; none is run, and the outputs are 0."""
    found: list[tuple[Any, ...]] = []

    def run(kernel: Kernel, arguments: Sequence[Any], grid: Any, group: Any, **how: Any) -> Run:
        found.append((kernel.instances[arguments[0]], grid, group, list(arguments[1:]), how))
        outputs = [np.zeros_like(a.data) for a in arguments[1:] if isinstance(a, Buffer) and a.output]
        return Run(tuple(outputs), Report())

    def stock_kernel(family: Any, quantization: Quantization) -> Kernel:
        calls = tuple(instance.call for instance in quantization.instances(family))
        return Kernel(f"{family} {quantization}", {}, "", 0, "metal", calls)

    monkeypatch.setattr(launches, "run", run)
    monkeypatch.setattr(launches, "stock_kernel", stock_kernel)
    return found


def problem(m: int, n: int, k: int = 128) -> Problem:
    return Problem(m=m, n=n, k=k, bits=4, group_size=64, dtype="bf16")


@pytest.mark.parametrize(
    ("route", "of", "layout", "tile", "instance", "grid", "group"),
    [
        ("nax", problem(65, 128), FLAT, 64, QUANTIZATION.nax(True, False, 64), (2, 2, 1), (32, 2, 2)),
        ("nax", problem(65, 129), PADDED, 32, QUANTIZATION.nax(False, True, 32), (3, 3, 2), (32, 2, 2)),
        ("wide", problem(6, 17), FLAT, 5, QUANTIZATION.wide(5, False), (2, 3, 1), (32, 2, 1)),
        ("wide", problem(6, 16), PADDED, 3, QUANTIZATION.wide(3, True), (2, 2, 2), (32, 2, 1)),
        ("splitk", problem(33, 64), FLAT, 2, QUANTIZATION.splitk(True), (2, 2, 2), (32, 2, 2)),
        ("splitk", problem(32, 65), FLAT, 1, QUANTIZATION.splitk(False), (3, 1, 1), (32, 2, 2)),
    ],
)
def test_instances_grids_and_groups(
    route: Route, of: Problem, layout: Layout, tile: int, instance: Any, grid: Any, group: Any, launched: list[Any]
) -> None:
    planned = launch_of(route, of, layout, tile)
    assert (planned.instance, planned.grid, planned.group, planned.groups) == (instance, grid, group, np.prod(grid))
    run_matmul(route, make_operands(of, layout), tile, PLACE)
    assert launched[0][:3] == (instance.call, grid, group)
    assert launched[0][4] == {"shared_limit": 32 * 1024, "checks": CHECKS}


def test_the_sum_of_the_parts_has_a_lane_for_each_output(launched: list[Any]) -> None:
    assert accumulate_launch(problem(3, 96)).grid == (2, 3, 1)
    run_accumulate(problem(3, 96), np.zeros((4, 3, 96), np.float32), {"order": "skew"}, at_end=True)
    instance, grid, group, (partials, out, *sizes), how = launched[0]
    assert (instance, grid, group) == ("gemm_splitk_accum<float, bfloat16_t>", (2, 3, 1), (48, 1, 1))
    assert sizes == [4, 288, 96]
    assert partials.at_end and out.at_end and out.output and out.data.shape == (3, 96)
    assert how["order"] == "skew" and how["shared_limit"] == 32 * 1024


@pytest.mark.parametrize("route", ["nax", "wide", "splitk"])
def test_arguments_lie_where_the_placement_says(route: Route, launched: list[Any]) -> None:
    layout = FLAT if route == "splitk" else PADDED
    operands = make_operands(problem(5, 33), layout, seed=3)
    for where in (PLACE, Placement(at_end=True)):
        run_matmul(route, operands, 32 if route == "nax" else 2, where)
        w, scales, biases, x, out, *sizes = launched.pop()[3]
        for buffer, offset, data in zip((x, w, scales, biases), where.offsets, operands.arrays(), strict=True):
            assert (buffer.offset, buffer.at_end, buffer.output) == (offset, where.at_end, False)
            assert np.array_equal(buffer.data, data)
        assert out.output and out.at_end == where.at_end
        if route == "splitk":
            assert sizes == [128, 33, 5, 64, 5 * 33]
            assert out.data.shape == (2, 5, 33)
        else:
            assert sizes[:3] == [128, 33, 5]
            assert out.data.shape == (2, 5, 33)
            numbers = [each if isinstance(each, int) else each.data.tolist() for each in sizes[3:]]
            # rank, shape and strides of x (with two rows of padding), of w, and the strides of scales and biases
            assert numbers == [
                *(1, [2, 5, 128], [7 * 128, 128, 1], 1, [2, 33, 16], [33 * 16, 16, 1]),
                *([33 * 2, 2, 1], [33 * 2, 2, 1]),
            ]


def test_without_a_batch_its_buffers_are_not_bound(launched: list[Any]) -> None:
    run_matmul("nax", make_operands(problem(5, 33)), 32, PLACE)
    assert launched[0][3][8:] == [None] * 8


def test_rows_of_padding_are_nan() -> None:
    x = make_operands(problem(5, 33), PADDED).arrays()[0]
    assert x.shape == (5 + 2 + 5, 128)
    nan = np.isnan((x.astype(np.uint32) << 16).view(np.float32))
    assert nan[5:7].all() and not nan[:5].any() and not nan[7:].any()


def some(route: Route) -> MetalCase:
    return next(case for case in metal_cover() if case.route == route and case.placement.at_end)


@pytest.mark.parametrize("route", ["nax", "wide", "splitk"])
def test_a_case_is_two_launches_that_differ_in_all_that_must_not_matter(route: Route, launched: list[Any]) -> None:
    case = some(route)
    run_metal_case(case)
    first, other = launched[:2]
    assert [each[0] for each in (first, other)] == [launch.instance.call for launch in case.launches]
    assert (first[0] == other[0]) is (route == "splitk")
    assert [each[4]["order"] for each in (first, other)] == [case.order, case.other_order]
    assert case.order != case.other_order
    assert [each[4]["fill"] for each in (first, other)] == [case.fill, case.fill ^ 0xFF]
    assert all(each[4]["seed"] == case.seed and each[4]["sums"] == case.sums for each in (first, other))
    assert all(each[3][4].at_end for each in (first, other))
    # the outputs of these launches are 0, which is wrong; a wrong sum of parts is found before it is judged
    sums = launched[2:]
    assert len(sums) == (route == "splitk")
    assert all(buffer.at_end for each in sums for buffer in each[3][:2])


def test_a_layout_tells_every_operand_and_every_axis_from_another() -> None:
    """Else an exchange of two strides would change nothing."""
    axes = make_operands(problem(5, 33), LAYOUTS[-1]).batch_arguments()
    x_shape, x, w_shape, w, scales, biases = (each.data[:2].tolist() for each in axes if isinstance(each, Buffer))
    assert x_shape == w_shape == [3, 2]
    strides = [tuple(each) for each in (x, w, scales, biases)]
    assert len(set(strides)) == len({each[0] for each in strides}) == len({each[1] for each in strides}) == 4
    assert all(first != second for first, second in strides)


def test_matrices_are_made_of_the_operands_that_the_strides_say() -> None:
    operands = make_operands(problem(5, 33), LAYOUTS[-1])
    fourth = operands.batch[3]  # at (1, 1)
    assert np.array_equal(fourth.x, operands.x[1 + 3].x)
    assert np.array_equal(fourth.packed, operands.w[2 + 1].packed)
    assert np.array_equal(fourth.scales, operands.w[1 + 3].scales)
    assert np.array_equal(fourth.biases, operands.w[1].biases)


EXCHANGES = [
    ("s_strides, b_strides, w_batch_ndims", "s_strides, s_strides, w_batch_ndims"),
    ("w_strides, s_strides, b_strides", "w_strides, b_strides, s_strides"),
]


@pytest.mark.needs_metal_front
@pytest.mark.parametrize(("old", "new"), EXCHANGES)
def test_biases_with_the_strides_of_scales_are_found_in_mlxs_kernel(old: str, new: str) -> None:
    operands = make_operands(problem(5, 64), LAYOUTS[-1])
    header, instance = HEADERS["nax"][-1], QUANTIZATION.nax(True, True, 32)
    kernel = metal_kernel("one_batched", [instance], headers=HEADERS["nax"])
    for tried, wrong in ((kernel, False), (kernel.edited("strides", header, old, new, 0), True)):
        found = run_matmul("nax", operands, 32, Placement(), kernel=tried)
        assert found.report.faults == ()
        values = from_bits(found.outputs[0], "bf16")
        judged = [judge(inputs, ours, True) for inputs, ours in zip(operands.batch, values, strict=True)]
        assert any(judged) == wrong


@pytest.mark.parametrize(("route", "rounded"), [("nax", True), ("wide", False), ("splitk", True)])
def test_every_matrix_is_judged_with_the_weights_that_its_kernel_holds(
    route: Route, rounded: bool, launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def judge(inputs: object, ours: object, how: bool) -> None:
        seen.append(how)

    monkeypatch.setattr(metal_simulated, "judge", judge)
    case = next(case for case in metal_cover() if case.route == route and (route == "splitk" or case.layout == PADDED))
    outcome = run_metal_case(case)
    assert outcome.failures == ()
    assert outcome.tiles == sum(launch.groups for launch in case.launches)
    assert seen == [rounded] * (1 if route == "splitk" else 2)
