"""Run the cover of the CUDA kernel through the simulator and judge every launch; see whether planted faults show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from upstream_patch.correctness.cover import SimCase
from upstream_patch.correctness.errors import why_wrong
from upstream_patch.correctness.outcome import Outcome, outcome_of
from upstream_patch.kernels import Variant
from upstream_patch.kernels.tuning import TILE, SmallM
from upstream_patch.problem import Problem
from upstream_patch.reference import Inputs, make_inputs
from upstream_patch.simulate import Kernel, Placement, Run, run_small_m, small_m_kernel
from upstream_patch.simulate.mutations import EQUIVALENT, PLANTS, WRONG_ANSWER, Barrier, Plant, without_each_barrier

_LIMIT = 227 * 1024


def run_sim_case(case: SimCase) -> Outcome:
    """Three launches: two schedules with two fills of shared memory, and one row alone. Never raises for a fault."""
    problem = case.problem
    inputs = make_inputs(problem, case.seed, case.distribution)
    failures: list[str] = []
    runs: list[Run] = []

    def launch(given: Inputs, name: str, placement: Placement, **how: object) -> Run:
        result = run_small_m(
            case.variant(given.problem.m),
            case.blocks,
            given,
            shared_limit=case.picks.device.shared_per_block,
            placement=placement,
            seed=case.seed,
            sums=case.sums,
            **how,  # type: ignore[arg-type]
        )
        failures.extend(f"{case.id}, {name}: {fault}" for fault in result.report.faults)
        runs.append(result)
        return result

    first = launch(inputs, "first run", case.placement, order=case.order, fill=case.fill)
    other = launch(inputs, "second run", case.placement, order=case.other_order, fill=case.fill ^ 0xFF)
    row = case.seed % problem.m
    # alone, and aligned: the row must come out the same by the other way of loading too
    alone = launch(inputs.row(row), f"row {row} alone", Placement(), order="in_order", fill=case.fill)
    if not failures:
        if not np.array_equal(first.outputs[0], other.outputs[0]):
            failures.append(f"{case.id}: the schedule, or what shared memory held before, changes the output")
        if not np.array_equal(first.outputs[0][row :: problem.m], alone.outputs[0]):
            failures.append(f"{case.id}: row {row} of the batch differs from the same row alone")
        wrong = why_wrong(inputs, first.outputs[0])
        if wrong is not None:
            failures.append(f"{case.id}: {wrong}")
    return outcome_of(runs, len(runs) * problem.batch * -(-problem.n // TILE), failures)


# Two instances and the shapes in which each barrier is needed: two passes over K, and a last batch that is not full.
_PLANT_ON = (Variant("bf16", SmallM(8, 4, 2, 2)), Variant("f16", SmallM(8, 4, 4, 4)))
_REGULAR = (True, False)  # whole tiles and rows of scales that 16-byte copies reach
_PLANT_PROBLEMS = (Problem(m=4, n=80, k=2048, dtype="bf16"), Problem(m=7, n=65, k=1088, dtype="f16"))


def _found(kernel: Kernel, on: int, odd_x: bool = False) -> str | None:
    """The kind of fault that a changed kernel shows, or None; the text where it is a fault of the simulator's."""
    inputs = make_inputs(_PLANT_PROBLEMS[on], 1)
    where = Placement(offsets=(2, 0, 0, 0)) if odd_x else Placement(at_end=True)
    run = run_small_m(_PLANT_ON[on], 1, inputs, kernel=kernel, shared_limit=_LIMIT, placement=where)
    if run.report.faults:
        return run.report.faults[0].kind
    return WRONG_ANSWER if why_wrong(inputs, run.outputs[0]) else None


def _plants(on: int) -> list[Plant]:
    return [plant for plant in PLANTS if _REGULAR[on] or not plant.odd_x]


def _deleted(on: int) -> list[Barrier]:
    barriers = without_each_barrier(small_m_kernel(_PLANT_ON[on]))
    return [barrier for barrier in barriers if (_REGULAR[on], barrier.text) not in EQUIVALENT]


def find_plants() -> Outcome:
    """Plants every fault and deletes every barrier. A line of ``failures`` for each one that nothing reports."""
    failures = []
    tried = 0
    for on, variant in enumerate(_PLANT_ON):
        kernel = small_m_kernel(variant)
        sound = _found(kernel, on)
        if sound is not None:
            failures.append(f"{variant.name}: the sound kernel shows {sound} where faults are to be planted")
        for plant in _plants(on):
            tried += 1
            kind = _found(plant.apply(kernel), on, plant.odd_x)
            if kind not in plant.kinds:
                seen = f"shows {kind}" if kind else "is not found"
                failures.append(f"blind checker: {plant.name} {seen}, not {' or '.join(plant.kinds)} ({variant.name})")
        for barrier in _deleted(on):
            tried += 1
            if _found(barrier.kernel, on) is None:
                failures.append(
                    f"blind checker: nothing is reported when the barrier of line {barrier.line} is deleted: "
                    f"{barrier.text} ({variant.name})"
                )
    return Outcome(cases=tried, launches=tried, failures=tuple(failures))


def _mutants() -> Iterator[Kernel]:
    """What find_plants runs."""
    for on, variant in enumerate(_PLANT_ON):
        kernel = small_m_kernel(variant)
        yield from (plant.apply(kernel) for plant in _plants(on))
        yield from (barrier.kernel for barrier in _deleted(on))


def kernels_of(cases: Sequence[SimCase]) -> list[Kernel]:
    """Every library that the cases and ``find_plants`` need."""
    variants = {v.name: v for case in cases for v in (case.variant(case.problem.m), case.variant(1))}
    return [*(small_m_kernel(v) for v in (*variants.values(), *_PLANT_ON)), *_mutants()]
