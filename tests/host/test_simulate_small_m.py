"""The small-M kernel in the simulator: a part of the cover, every planted fault, every deleted barrier."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from upstream_patch import kernels
from upstream_patch.correctness import cover as covering
from upstream_patch.correctness import simulated
from upstream_patch.correctness.cover import CASES, all_picks, cover, device_launches, long_launches, uncovered_pairs
from upstream_patch.correctness.simulated import find_plants, run_sim_case
from upstream_patch.errors import UserError
from upstream_patch.kernels import Variant
from upstream_patch.kernels.tuning import DEVICE_CLASSES, FORMATS, MAX_ROWS, USUAL, SmallM
from upstream_patch.problem import Problem
from upstream_patch.reference import distributions, make_inputs
from upstream_patch.simulate import Kernel, Placement, run_small_m, small_m_kernel
from upstream_patch.simulate.mutations import EQUIVALENT, PLANTS, without_each_barrier
from upstream_patch.simulate.small_m import EXCUSED, FILE, excused_lines

VARIANT = Variant("bf16", SmallM(8, 4, 2, 2))


def test_the_cover_has_every_instance_and_every_pair() -> None:
    cases = cover()
    assert len(cases) == CASES >= 2500
    taken = {case.variant(case.problem.m) for case in cases}
    assert taken >= set(kernels.variants(formats=[USUAL]))
    formats = {(v.tuning.format, v.dtype, v.tuning.rows) for v in taken}
    assert formats == {(form, dtype, rows) for form in FORMATS for dtype in ("bf16", "f16") for rows in (8, 16)}
    assert {case.problem.m for case in cases} == set(range(1, MAX_ROWS + 1))
    batched = {(c.problem.mode, c.problem.layout, c.problem.m > 16) for c in cases if c.problem.batch > 1}
    assert len(batched) == 4 * 2 * 2
    assert {c.distribution for c in cases if c.problem.mode == "nvfp4"} == set(distributions("nvfp4"))
    assert uncovered_pairs() == 0
    assert cases == cover()
    assert cases != cover(seed=1)
    assert {picks.device.shared_per_block for picks in all_picks()} == {99 * 1024, 163 * 1024, 227 * 1024}
    odd = [case for case in cases if case.problem.group_size == 32 and case.problem.k % 64]
    assert len(odd) > 100
    assert {case.problem.k % 64 for case in cases if case.problem.group_size == 16} == {0, 16, 32, 48}
    assert {c.placement.offsets[2] % 2 for c in cases if c.problem.mode != "affine"} == {0, 1}


@pytest.mark.needs_simulator
@pytest.mark.parametrize("case", cover()[:: CASES // 40], ids=lambda case: case.id)
def test_a_part_of_the_cover(case: covering.SimCase) -> None:
    assert run_sim_case(case).failures == ()


def test_every_device_class_has_a_launch_of_its_own() -> None:
    cases = device_launches()
    assert [case.picks.name for case in cases] == [device.name for device in DEVICE_CLASSES.values()]
    assert any(case.blocks < 129 for case in cases)


def test_long_launches_have_three_passes_over_k_in_full_and_in_partial_batches() -> None:
    seen = set()
    for case in long_launches():
        tuning = case.variant(case.problem.m).tuning
        groups, tiles = case.problem.k // 64, case.problem.n // 16
        assert case.problem.n % 16 == 0
        assert groups % 8 == 0
        assert case.placement == Placement()
        seen.add((case.picks.name, tuning.rows, -(-groups // (4 * case.warps)), tiles >= tuning.tiles, tuning.tiles))
    for picks in all_picks():
        for rows in (8, 16):
            assert {passes for name, r, passes, *_ in seen if (name, r) == (picks.name, rows)} == {3, 4}
    assert {full for *_, full, batch in seen if batch > 1} == {True, False}


@pytest.mark.needs_simulator
def test_a_wait_that_only_a_third_pass_needs_is_missed_where_one_is_there() -> None:
    kernel = small_m_kernel(Variant("bf16", SmallM(8, 16, 2, 4)))
    late = kernel.edited("only in pass 0", FILE, "if (count < kStages) {", "if (count < kStages && phase.pass == 0) {")
    inputs = make_inputs(Problem(m=3, n=16, k=14336, dtype="bf16"), 1)
    where = Placement()
    variant = Variant("bf16", SmallM(8, 16, 2, 4))
    assert run_small_m(variant, 1, inputs, kernel=kernel, shared_limit=232448, placement=where).report.faults == ()
    (fault,) = run_small_m(variant, 1, inputs, kernel=late, shared_limit=232448, placement=where).report.faults
    assert fault.kind == "race"


@pytest.mark.needs_simulator
def test_every_planted_fault_and_every_deleted_barrier_is_reported() -> None:
    found = find_plants()
    assert found.failures == ()
    assert found.cases >= 2 * len(PLANTS) - 1 + 2 * 6 - len(EQUIVALENT)


def test_every_barrier_of_the_kernel_is_deleted_once() -> None:
    kernel = small_m_kernel(VARIANT)
    text = kernel.files["smxx_qmm_small_m.cuh"]
    barriers = without_each_barrier(kernel)
    assert len(barriers) == text.count("__syncthreads()") + text.count("__syncwarp()") + text.count("copy_async_wait<")
    for barrier in barriers:
        changed = barrier.kernel.files["smxx_qmm_small_m.cuh"]
        lines = [i for i, (a, b) in enumerate(zip(text.split("\n"), changed.split("\n"), strict=True), 1) if a != b]
        assert lines == [barrier.line]
    for (_, line), proof in EQUIVALENT.items():
        assert line in {barrier.text for barrier in barriers}
        assert len(proof) > 20


@pytest.mark.needs_simulator
@pytest.mark.parametrize("on", [0, 1])
def test_a_blind_checker_is_noticed(monkeypatch: pytest.MonkeyPatch, on: int) -> None:
    real: Callable[..., str | None] = simulated._found

    def blind(kernel: Kernel, where: int, odd_x: bool = False) -> str | None:
        kind = real(kernel, where, odd_x)
        return None if kind == "race" and where == on else kind

    monkeypatch.setattr(simulated, "_found", blind)
    assert any("blind checker: a wait for one group too few is not found" in line for line in find_plants().failures)


def test_a_plant_that_does_not_fit_the_kernel_is_an_error() -> None:
    kernel = small_m_kernel(VARIANT)
    with pytest.raises(UserError, match="is 0 times in"):
        kernel.edited("x", "smxx_qmm_small_m.cuh", "no such text", "")
    with pytest.raises(UserError, match="is 2 times in"):
        kernel.edited("x", "smxx_qmm_small_m.cuh", "__syncthreads();", "")


def test_every_excused_line_is_there_once_and_has_its_reason() -> None:
    assert len(excused_lines(small_m_kernel(VARIANT))) == len(EXCUSED)
    assert all(len(reason) > 15 for reason in EXCUSED.values())
