"""The matrix reaches every path of every kernel instance that a device launches; the paths as the kernel cuts them."""

from __future__ import annotations

from itertools import product

import pytest

from upstream_patch import kernels
from upstream_patch.correctness import Case, matrix
from upstream_patch.correctness.cases import DISTINCT_ROWS
from upstream_patch.correctness.paths import Device, instance_problems, path_problems, paths
from upstream_patch.kernels.tuning import DEVICE_CLASSES, SLICE, USUAL, format_of, small_m_launch
from upstream_patch.problem import Mode, Problem
from upstream_patch.routing import takes_small_m

DEVICES: dict[str, Device] = {
    "h200": ((9, 0), 132),
    "gb10": ((12, 1), 48),
    "a100": ((8, 0), 108),
    "rtx4090": ((8, 9), 128),
    "b200": ((10, 0), 148),
    "rtx5090": ((12, 0), 170),
    "orin": ((8, 7), 16),
    "rtx3090": ((8, 6), 82),
    "b300": ((10, 3), 148),
    "thor": ((11, 0), 20),
}
Cell = tuple[str, str, str, str]


def cells(problem: Problem, device: Device) -> set[Cell]:
    """As smxx_qmm_small_m.cuh works: block by block, batch by batch, pass by pass."""
    variant, launch = kernels.small_m_variant(problem, *device)
    blocks = launch.blocks
    tuning, groups = variant.tuning, problem.k // 64
    passes = -(-groups // (4 * tuning.warps))
    regular = "regular" if problem.n % 16 == 0 and groups % 8 == 0 else "irregular"
    all_tiles = -(-problem.n // 16)
    found = set()
    for block in range(blocks):
        tiles = len(range(block, all_tiles, blocks))
        batches = [min(tuning.tiles, tiles - first) for first in range(0, tiles, tuning.tiles)]
        last = "full" if batches[-1] == tuning.tiles else "ragged"
        found.add((variant.name, f"{min(len(batches), 2)} {last}", str(min(passes, 2)), regular))
    return found


def work(count: int, batch: int) -> str:
    return f"{min(-(-count // batch), 2)} {'ragged' if count % batch else 'full'}"


def wanted(device: Device) -> set[Cell]:
    """From the tuning tables alone: every instance, and what its batch and its warps allow."""
    limits = DEVICE_CLASSES[device[0]]
    cut: set[Cell] = set()
    for variant in kernels.variants(limits.name, [USUAL]):
        tuning = variant.tuning
        choices = limits.choices(tuning.rows, tuning.warps, USUAL)
        at = [chosen for _, chosen in choices].index(tuning)
        # from what this pick asks for (its last blocks may have one less) to what a better one does
        better = min((pick.least for pick, _ in choices[:at]), default=1000)
        counts = range(max(1, choices[at][0].least - 1), better)
        works = {work(count, tuning.tiles) for count in counts} - {"2 full" if tuning.tiles > 1 else ""}
        passes = ["1", "2"] if tuning.warps == 16 else ["1"]
        cut |= set(product([variant.name], works, passes, ["regular", "irregular"]))
    return cut


def empty(cases: list[Case], device: Device) -> set[Cell]:
    ours = [case.problem for case in cases if case.route == "small_m" and case.form == "plain"]
    assert all(takes_small_m(problem, device[0]) for problem in ours)
    usual = [problem for problem in ours if format_of(problem) == USUAL]
    return wanted(device) - set().union(*(cells(problem, device) for problem in usual))


def test_every_class_has_a_device_here() -> None:
    assert {capability for capability, _ in DEVICES.values()} == set(DEVICE_CLASSES)


@pytest.mark.parametrize("name", DEVICES)
def test_no_path_is_without_a_case(name: str) -> None:
    cases = matrix(DEVICES[name])
    assert empty(cases, DEVICES[name]) == set()
    assert len({case.id for case in cases}) == len(cases) < 2100


@pytest.mark.parametrize("name", ["h200", "gb10"])
def test_each_path_problem_is_needed(name: str) -> None:
    device = DEVICES[name]
    base = [case for case in matrix(device) if case.name != "paths"]
    assert len(empty(base, device)) > 40
    problems = list(path_problems(device))
    taken = [cells(problem, device) for problem in problems]
    for i, mine in enumerate(taken):
        assert mine - set().union(*taken[:i], *taken[i + 1 :]), problems[i].id


def test_the_headline_instance_runs_batches_on_the_h200() -> None:
    device = DEVICES["h200"]
    found = set().union(*(cells(problem, device) for problem in path_problems(device)))
    pick = DEVICE_CLASSES[9, 0].picks[8][0]
    deep = {cell[1:] for cell in found if cell[0] == f"small_m_bf16_b4_g64_r8_w16_s{pick.stages}_t{pick.tiles}"}
    assert deep >= set(product(["2 ragged"], ["1", "2"], ["regular", "irregular"]))


@pytest.mark.parametrize("name", DEVICES)
def test_the_cost_is_bounded_and_the_repeated_rows_tell_tiles_apart(name: str) -> None:
    device = DEVICES[name]
    problems = list(path_problems(device))
    assert sum(problem.weight_bytes for problem in problems) < 4e9
    assert max(problem.weight_bytes for problem in problems) < 250e6
    for problem in problems:
        _, launch = kernels.small_m_variant(problem, *device)
        own = range(0, -(-problem.n // 16), launch.blocks)
        assert len({tile * 16 % DISTINCT_ROWS for tile in own}) == len(own)


@pytest.mark.parametrize(("mode", "group", "scales"), [("affine", 64, 8), ("mxfp4", 32, 16), ("nvfp4", 16, 16)])
def test_regular_is_what_16_byte_copies_of_scales_reach(mode: Mode, group: int, scales: int) -> None:
    """A copy holds 8 scales of two bytes or 16 of one."""
    like = Problem(m=8, n=256, k=group * 3 * scales, group_size=group, mode=mode)
    for groups, regular in ((3 * scales, True), (3 * scales - 8, scales == 8), (3 * scales - 1, False)):
        assert {path.regular for path in paths(like.model_copy(update={"k": group * groups}))} == {regular}


def test_a_device_without_instances_has_no_path() -> None:
    assert list(path_problems(((7, 5), 40))) == list(instance_problems(((7, 5), 40))) == []


@pytest.mark.parametrize("name", DEVICES)
def test_the_full_matrix_launches_every_instance(name: str) -> None:
    device = DEVICES[name]
    cases = [case.problem for case in matrix(device, full=True) if case.route == "small_m" and case.form == "plain"]
    launched = {kernels.small_m_variant(problem, *device)[0] for problem in cases}
    tunings = {variant.tuning for variant in launched}
    for tuning in {variant.tuning for variant in kernels.variants(DEVICE_CLASSES[device[0]].name)} - tunings:
        # a pick that a better one, with other blocks on a multiprocessor, leaves no number of tiles
        sizes = tuning.warps * SLICE, DEVICE_CLASSES[device[0]], device[1], tuning.format
        assert all(small_m_launch(tuning.rows, 16 * tiles, *sizes).tuning != tuning for tiles in range(1, 9000))
    assert {variant.tuning for variant in launched if variant.dtype == "f16"} == tunings
    assert max(problem.weight_bytes for problem in instance_problems(device)) < 250e6
    usual = {kernels.small_m_variant(problem, *device)[0] for problem in path_problems(device)}
    assert set(kernels.variants(DEVICE_CLASSES[device[0]].name, [USUAL])) <= usual
