"""The small-M kernel in the simulator: a part of the cover, every planted fault, every deleted barrier."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from upstream_patch import cli, kernels
from upstream_patch.correctness import cover as covering
from upstream_patch.correctness import simulated
from upstream_patch.correctness.cover import CASES, all_picks, cover, device_launches, uncovered_pairs
from upstream_patch.correctness.simulated import Outcome, SimulatorFinding, Summary, find_plants, run_sim_case, verdict
from upstream_patch.errors import UserError
from upstream_patch.kernels import Variant
from upstream_patch.kernels.tuning import DEVICE_CLASSES, SmallM
from upstream_patch.simulate import Kernel, small_m_kernel
from upstream_patch.simulate.mutations import EQUIVALENT, PLANTS, without_each_barrier
from upstream_patch.simulate.small_m import EXCUSED, excused_lines

VARIANT = Variant("bf16", SmallM(8, 4, 2, 2))


def test_the_cover_has_every_instance_and_every_pair() -> None:
    cases = cover()
    assert len(cases) == CASES >= 2500
    assert {case.variant(case.problem.m).name for case in cases} == {v.name for v in kernels.variants()}
    assert uncovered_pairs() == 0
    assert cases == cover()
    assert cases != cover(seed=1)
    assert {picks.shared_limit for picks in all_picks()} >= {99 * 1024, 163 * 1024, 227 * 1024}


@pytest.mark.needs_simulator
@pytest.mark.parametrize("case", cover()[:: CASES // 40], ids=lambda case: case.id)
def test_a_part_of_the_cover(case: covering.SimCase) -> None:
    assert run_sim_case(case).failures == ()


def test_every_device_class_has_a_launch_of_its_own() -> None:
    cases = device_launches()
    assert [case.picks.name for case in cases] == [device.name for device in DEVICE_CLASSES.values()]
    assert {case.picks.by_rows for case in cases} <= {picks.by_rows for picks in all_picks()}
    assert any(case.blocks < 129 for case in cases)


@pytest.mark.needs_simulator
def test_every_planted_fault_and_every_deleted_barrier_is_reported() -> None:
    found = find_plants()
    assert found.failures == ()
    assert found.cases >= 2 * len(PLANTS) - 1 + 2 * 6


def test_every_barrier_of_the_kernel_is_deleted_once() -> None:
    kernel = small_m_kernel(VARIANT)
    text = kernel.files["smxx_affine_qmm_small_m.cuh"]
    barriers = without_each_barrier(kernel)
    assert len(barriers) == text.count("__syncthreads()") + text.count("__syncwarp()") + text.count("copy_async_wait<")
    for barrier in barriers:
        changed = barrier.kernel.files["smxx_affine_qmm_small_m.cuh"]
        lines = [i for i, (a, b) in enumerate(zip(text.split("\n"), changed.split("\n"), strict=True), 1) if a != b]
        assert lines == [barrier.line]
    assert all(len(proof) > 20 for proof in EQUIVALENT.values())


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
        kernel.edited("x", "smxx_affine_qmm_small_m.cuh", "no such text", "")
    with pytest.raises(UserError, match="is 2 times in"):
        kernel.edited("x", "smxx_affine_qmm_small_m.cuh", "__syncthreads();", "")


def test_every_excused_line_is_there_once_and_has_its_reason() -> None:
    assert len(excused_lines(small_m_kernel(VARIANT))) == len(EXCUSED)
    assert all(len(reason) > 15 for reason in EXCUSED.values())


def test_a_finding_ends_in_one_line_and_a_failure() -> None:
    bad = Summary(Outcome(failures=("blind checker: x",)), Outcome(failures=("a", "b")), 0.0, 1.0)
    with pytest.raises(SimulatorFinding, match=r"^the simulator found: blind checker: x \(and 2 more\)$"):
        verdict(bad)
    good = Summary(Outcome(cases=3), Outcome(cases=5, launches=15), 0.0, 1.0)
    assert verdict(good).startswith("5 cases (15 launches) of the CUDA kernel agree")


@pytest.mark.needs_simulator
def test_the_verb_prints_one_line_and_fails_with_each_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = cover()[:2]
    monkeypatch.setattr(covering, "cover", lambda count, seed: launches)
    monkeypatch.setattr(covering, "device_launches", list)
    cli.simulate(stats=True)
    tile, said = capsys.readouterr().out.splitlines()
    assert "ms a tile" in tile
    assert said.startswith("2 cases (6 launches)")
    monkeypatch.setattr(
        simulated, "simulate_cover", lambda cases, advance: Summary(Outcome(), Outcome(failures=("a", "b")), 0.0, 0.0)
    )
    with pytest.raises(SimulatorFinding):
        cli.simulate()
    assert capsys.readouterr().out.splitlines() == ["a", "b"]
