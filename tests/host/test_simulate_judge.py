"""What a case of the simulator's run launches, and what it takes for wrong: with answers in the kernel's place."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from upstream_patch.correctness import cover as covering
from upstream_patch.correctness import (
    errors,
    metal_plants,
    metal_simulated,
    simulated,
    simulation,
    staged_plants,
    staged_simulated,
)
from upstream_patch.correctness import metal_cover as metal_covering
from upstream_patch.correctness import staged_cover as staged_covering
from upstream_patch.correctness.cover import SimCase, all_picks
from upstream_patch.correctness.outcome import Outcome
from upstream_patch.correctness.simulated import find_plants, kernels_of, run_sim_case, run_two_launches
from upstream_patch.correctness.simulation import FrontSummary, Summary
from upstream_patch.kernels import Variant
from upstream_patch.problem import Problem
from upstream_patch.reference import Inputs
from upstream_patch.simulate import Fault, Placement, Report, Run, Stats
from upstream_patch.simulate.mutations import EQUIVALENT, PLANTS, WRONG_ANSWER
from upstream_patch.simulate.small_m import to_bits

WHERE = Placement(at_end=True, offsets=(2, 4, 6, 8))
CASE = SimCase(
    distribution="normal",
    placement=WHERE,
    order="skew",
    other_order="random",
    sums="exact",
    fill=0xA5,
    seed=13,
    picks=all_picks()[0],
    warps=4,
    problem=Problem(m=10, n=33, k=256, dtype="f16", layout="b1k", batch=2),
    blocks=3,
)
FAULT = Fault("race", "told", "k", (0, 0, 0), 1, "k.cu", 2)
Change = Callable[[int, NDArray[Any]], None]


class Launches:
    """Stands in for run_small_m: the right answer, changed by ``change`` (number of the launch, stored bits)."""

    def __init__(self, change: Change = lambda number, bits: None, faulty: int | None = None) -> None:
        self.change, self.faulty = change, faulty
        self.seen: list[dict[str, Any]] = []

    def __call__(self, variant: Variant, blocks: int, inputs: Inputs, **how: Any) -> Run:
        number = len(self.seen)
        self.seen.append({"variant": variant, "blocks": blocks, "inputs": inputs, **how})
        bits = to_bits(inputs.reference(), inputs.problem.dtype)
        self.change(number, bits)
        faults = (FAULT,) if number == self.faulty else ()
        return Run((bits,), Report(faults, Stats(seconds=2.0)))


def outcome(monkeypatch: pytest.MonkeyPatch, stand_in: Launches, case: SimCase = CASE) -> Outcome:
    monkeypatch.setattr(simulated, "run_small_m", stand_in)
    return run_sim_case(case)


def test_a_case_is_three_launches_that_differ_in_schedule_fill_rows_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    done = outcome(monkeypatch, launches)
    assert done.failures == ()
    assert (done.cases, done.launches, done.tiles, done.simulated_seconds) == (1, 3, 3 * 2 * 3, 6.0)
    first, second, alone = launches.seen
    assert [each["order"] for each in launches.seen] == ["skew", "random", "in_order"]
    assert [each["fill"] for each in launches.seen] == [0xA5, 0x5A, 0xA5]
    assert [each["placement"] for each in launches.seen] == [WHERE, WHERE, Placement()]
    assert [each["inputs"].problem.m for each in launches.seen] == [10, 10, 1]
    assert first["inputs"] is second["inputs"]
    assert np.array_equal(alone["inputs"].x[0], first["inputs"].x[3])  # the seed modulo the rows
    assert [each["variant"] for each in launches.seen] == [CASE.variant(10), CASE.variant(10), CASE.variant(1)]
    assert CASE.variant(10) != CASE.variant(1)
    for each in launches.seen:
        assert (each["blocks"], each["seed"], each["sums"]) == (3, 13, "exact")
        assert each["shared_limit"] == CASE.picks.device.shared_per_block
    assert (first["inputs"].seed, first["inputs"].distribution) == (13, "normal")


@pytest.mark.parametrize(("seed", "orders"), [(13, ["skew", "random"]), (14, ["skew", "in_order"])])
def test_every_second_case_of_a_usual_run_has_a_row_alone(
    monkeypatch: pytest.MonkeyPatch, seed: int, orders: list[str]
) -> None:
    launches = Launches()
    monkeypatch.setattr(simulated, "run_small_m", launches)
    done = run_two_launches(replace(CASE, seed=seed))
    assert (done.failures, done.launches) == ((), 2)
    assert [each["order"] for each in launches.seen] == orders
    assert [each["inputs"].problem.m for each in launches.seen] == [10, 1 if seed == 14 else 10]


def test_a_difference_between_two_schedules_or_from_a_row_alone_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_bit(of: int) -> Change:
        def change(number: int, bits: NDArray[Any]) -> None:
            if number == of:
                bits[-1, -1] ^= 1
                bits[bits.shape[0] // 2 - 1 if number < 2 else 0, 0] ^= 1

        return change

    (second,) = outcome(monkeypatch, Launches(one_bit(1))).failures
    assert "the schedule, or what shared memory held before, changes the output" in second
    (alone,) = outcome(monkeypatch, Launches(one_bit(2))).failures
    assert alone == f"{CASE.id}: row 3 of the batch differs from the same row alone"


@pytest.mark.parametrize("steps", [1, 2, -2, 8])
def test_an_answer_that_is_wrong_everywhere_alike_is_a_failure(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """One rounding of the output is allowed, two are not."""

    def change(number: int, bits: NDArray[Any]) -> None:
        rows = [3, 13] if number < 2 else slice(None)
        bits[rows, 7] += np.uint16(steps % 2**16)

    failures = outcome(monkeypatch, Launches(change)).failures
    assert len(failures) == (abs(steps) > 1)


def test_the_judge_is_given_all_that_bounds_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = errors.check, []

    def check(*given: Any, **how: Any) -> Any:
        seen.append((given, how))
        return real(*given, **how)

    monkeypatch.setattr(errors, "check", check)
    launches = Launches()
    outcome(monkeypatch, launches)
    ((problem, _, reference, stock), how) = seen[0]
    inputs = launches.seen[0]["inputs"]
    assert (problem, stock, how["seed"], len(seen)) == (CASE.problem, None, 13, 1)
    assert np.array_equal(reference, inputs.reference())
    assert np.array_equal(how["magnitude"], inputs.magnitude())
    assert np.array_equal(how["removed"], inputs.removed())


@pytest.mark.parametrize(("number", "name"), [(0, "first run"), (1, "second run"), (2, "row 3 alone")])
def test_a_fault_of_any_launch_is_a_failure(monkeypatch: pytest.MonkeyPatch, number: int, name: str) -> None:
    assert outcome(monkeypatch, Launches(faulty=number)).failures == (f"{CASE.id}, {name}: {FAULT}",)


def test_plants_are_run_to_the_limit_of_the_device_at_the_end_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    monkeypatch.setattr(simulated, "run_small_m", launches)
    found = find_plants()
    assert {each["shared_limit"] for each in launches.seen} == {232448}
    assert {each["inputs"].seed for each in launches.seen} == {1}
    at = {each["kernel"].name.partition(":")[2]: each["placement"] for each in launches.seen}
    odd = {plant.name for plant in PLANTS if plant.odd_x}
    assert odd
    for name, place in at.items():
        assert place == (Placement(offsets=(2, 0, 0, 0)) if name in odd else Placement(at_end=True))
    # nothing is found, so every one of them is told
    sound = [each for each in launches.seen if ":" not in each["kernel"].name]
    assert len(sound) == len(simulated._BROKEN) + len(EQUIVALENT)
    assert len(found.failures) == found.cases - len(EQUIVALENT)
    assert found.cases == len(launches.seen) - len(sound) - 4 * len(EQUIVALENT)


def test_a_wrong_answer_is_a_kind_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(number: int, bits: NDArray[Any]) -> None:
        bits[0, 0] += np.uint16(4)

    monkeypatch.setattr(simulated, "run_small_m", Launches(change))
    assert any(f"the sound kernel shows {WRONG_ANSWER}" in line for line in find_plants().failures)


def test_every_library_that_a_case_needs_is_compiled_ahead() -> None:
    names = [kernel.name for kernel in kernels_of([CASE])]
    assert {CASE.variant(10).name, CASE.variant(1).name} <= set(names)
    assert len(names) == len(set(names))


def test_a_front_runs_the_cover_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def cover(count: int, seed: int) -> list[SimCase]:
        asked.append((count, seed))
        return [CASE]

    monkeypatch.setattr(covering, "cover", cover)
    monkeypatch.setattr(simulation, "compiler", lambda *_: None)
    monkeypatch.setattr(simulation, "today", lambda: 5)
    front = simulation.cuda_front(full=False, seed=None)
    whole = simulation.cuda_front(full=True, seed=0)
    every = covering.turning_launches()
    assert asked == [(covering.CASES, covering.SEED), (covering.FULL_CASES, 0)]
    assert front.cases == [*covering.fixed_launches(), *covering.turn_of(every, 5), CASE]
    assert whole.cases == [*covering.fixed_launches(), *every, CASE]
    assert simulation.cuda_front(full=False, seed=7).cases[-1 - covering.PER_TURN : -1] == covering.turn_of(every, 7)
    assert (front.run_case, front.find_plants) == (run_two_launches, find_plants)
    assert (whole.run_case, whole.find_plants) == (run_sim_case, find_plants)
    seeds: list[tuple[bool, int]] = []

    def metal_cover(full: bool, seed: int) -> list[Any]:
        seeds.append((full, seed))
        return []

    monkeypatch.setattr(metal_covering, "metal_cover", metal_cover)
    monkeypatch.setattr(metal_simulated, "kernels_of", lambda cases: [])
    monkeypatch.setattr(metal_plants, "kernels", list)
    simulation.metal_front(full=False, seed=None)
    simulation.metal_front(full=True, seed=0)
    assert seeds == [(False, metal_covering.SEED), (True, 0)]
    monkeypatch.setattr(staged_covering, "staged_cover", metal_cover)
    monkeypatch.setattr(staged_simulated, "kernels_of", lambda cases: [])
    monkeypatch.setattr(staged_plants, "kernels", list)
    ours = simulation.staged_front(full=False, seed=None)
    simulation.staged_front(full=True, seed=7)
    assert seeds[2:] == [(False, staged_covering.SEED), (True, 7)]
    assert (ours.run_case, ours.find_plants) == (staged_simulated.run_staged_case, staged_plants.find_staged_plants)


def test_what_a_run_took_is_told_by_tile() -> None:
    cover = Outcome(cases=5, launches=15, tiles=400, simulated_seconds=2.0, buffer_bytes=1 << 20, peak_bytes=300 << 20)
    whole = Summary((FrontSummary("a kernel", Outcome(cases=3), cover),), 1.25, 9.0)
    assert whole.per_tile.splitlines() == [
        "a kernel: 5.00 ms and 2.6 KiB of arguments a tile, 400 tiles, 300 MiB a process",
        "1.2 s to compile or find the kernels",
    ]
    assert whole.detail.startswith(
        "5 cases (15 launches) of a kernel agree with the fp64 reference, with no race, in 9 s; 3"
    )


def test_only_the_first_failures_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And BLAS has its threads back when the processes are started."""
    front = simulation.Front("x", [0], lambda case: Outcome(), Outcome, [])
    monkeypatch.setattr(simulation, "_gather", lambda full, seed: ([front], []))
    monkeypatch.setattr(simulation, "compile_kernels", lambda kernels, progress: None)
    before: list[str | None] = []

    class Pool:
        def __init__(self, workers: int | None, context: Any) -> None:
            before.append(os.environ.get("OPENBLAS_NUM_THREADS"))

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, call: Any, *_: Any) -> Any:
            future: Future[Outcome] = Future()
            future.set_result(Outcome(failures=tuple(f"line {n}" for n in range(30)) if call is Outcome else ()))
            return future

    monkeypatch.setattr(simulation, "ProcessPoolExecutor", Pool)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "6")
    said: list[str] = []
    done = simulation.simulate(said.append)
    assert said == [f"line {n}" for n in range(20)]
    assert len(done.failures) == 30
    assert (before, os.environ["OPENBLAS_NUM_THREADS"]) == (["1"], "6")
