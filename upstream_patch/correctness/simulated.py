"""Run the cover of the CUDA kernel through the simulator and judge every launch; see whether planted faults show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from upstream_patch.correctness.cover import SimCase
from upstream_patch.correctness.errors import why_wrong
from upstream_patch.correctness.outcome import Outcome, outcome_of
from upstream_patch.kernels import Variant
from upstream_patch.kernels.tuning import TILE, Format, SmallM
from upstream_patch.problem import Problem
from upstream_patch.reference import Inputs, make_inputs
from upstream_patch.simulate import ORDERS, Kernel, Order, Placement, Run, run_small_m, small_m_kernel
from upstream_patch.simulate.mutations import (
    EQUIVALENT,
    MXFP8,
    NVFP4,
    PLANTS,
    RAGGED,
    REGULAR,
    THREE_BITS,
    WRONG_ANSWER,
    Barrier,
    Plant,
    without_each_barrier,
)

_LIMIT = 227 * 1024


def run_two_launches(case: SimCase) -> Outcome:
    """As ``run_sim_case``, and with the first launch the second schedule or the row alone, in turn: the race checker is
    exact in any schedule, and neighbours in the cover share an instance."""
    return run_sim_case(case, schedules=1 + case.seed % 2, alone=case.seed % 2 == 0)


def run_sim_case(case: SimCase, schedules: int = 2, alone: bool = True) -> Outcome:
    """A launch, the same in another schedule over another fill of shared memory, and one row alone, as asked for. Never
    raises for a fault."""
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
    other = single = None
    if schedules == 2:
        other = launch(inputs, "second run", case.placement, order=case.other_order, fill=case.fill ^ 0xFF)
    row = case.seed % problem.m
    if alone:  # and aligned: the row must come out the same by the other way of loading too
        single = launch(inputs.row(row), f"row {row} alone", Placement(), order="in_order", fill=case.fill)
    if not failures:
        if other is not None and not np.array_equal(first.outputs[0], other.outputs[0]):
            failures.append(f"{case.id}: the schedule, or what shared memory held before, changes the output")
        if single is not None and not np.array_equal(first.outputs[0][row :: problem.m], single.outputs[0]):
            failures.append(f"{case.id}: row {row} of the batch differs from the same row alone")
        wrong = why_wrong(inputs, first.outputs[0])
        if wrong is not None:
            failures.append(f"{case.id}: {wrong}")
    return outcome_of(runs, len(runs) * problem.batch * -(-problem.n // TILE), failures)


@dataclass(frozen=True)
class _Broken:
    """An instance to break, and a problem in which what is broken matters."""

    variant: Variant
    problem: Problem

    @property
    def kernel(self) -> Kernel:
        return small_m_kernel(self.variant)


# Of the first two, each barrier is needed: two passes over K, and a last batch that is not full.
_BROKEN = {
    REGULAR: _Broken(Variant("bf16", SmallM(8, 4, 2, 2)), Problem(m=4, n=80, k=2048, dtype="bf16")),
    RAGGED: _Broken(Variant("f16", SmallM(8, 4, 4, 4)), Problem(m=7, n=65, k=1088, dtype="f16")),
    MXFP8: _Broken(
        Variant("bf16", SmallM(8, 4, 3, 4, Format(8, 32, "mxfp8"))),
        Problem(m=3, n=33, k=832, bits=8, group_size=32, mode="mxfp8", dtype="bf16"),
    ),
    NVFP4: _Broken(
        Variant("f16", SmallM(8, 4, 2, 2, Format(4, 16, "nvfp4"))),
        Problem(m=5, n=33, k=592, bits=4, group_size=16, mode="nvfp4", dtype="f16"),
    ),
    THREE_BITS: _Broken(
        Variant("bf16", SmallM(8, 4, 2, 8, Format(3, 64))), Problem(m=6, n=33, k=1088, bits=3, dtype="bf16")
    ),
}


def _run_broken(kernel: Kernel, on: int, odd_x: bool = False, order: Order = "in_order") -> tuple[Inputs, Run]:
    inputs = make_inputs(_BROKEN[on].problem, 1)
    where = Placement(offsets=(2, 0, 0, 0)) if odd_x else Placement(at_end=True)
    how = {"kernel": kernel, "shared_limit": _LIMIT, "placement": where, "order": order}
    return inputs, run_small_m(_BROKEN[on].variant, 1, inputs, **how)  # type: ignore[arg-type]


def _found(kernel: Kernel, on: int, odd_x: bool = False) -> str | None:
    """The kind of fault that a changed kernel shows, or None; the text where it is a fault of the simulator's."""
    inputs, run = _run_broken(kernel, on, odd_x)
    if run.report.faults:
        return run.report.faults[0].kind
    return WRONG_ANSWER if why_wrong(inputs, run.outputs[0]) else None


def _unlike(kernel: Kernel, on: int) -> str | None:
    """What shows in any order of lanes that a changed kernel is not the sound one."""
    _, sound = _run_broken(_BROKEN[on].kernel, on)
    for order in ORDERS:
        _, run = _run_broken(kernel, on, order=order)
        if run.report.faults:
            return f"{run.report.faults[0].kind} ({order})"
        if not np.array_equal(run.outputs[0], sound.outputs[0]):
            return f"other bits ({order})"
    return None


def _plants(on: int) -> list[Plant]:
    return [plant for plant in PLANTS if on in plant.on]


def _barriers(on: int, equivalent: bool) -> list[Barrier]:
    """Those that must be missed, or those that need not be."""
    if on not in (REGULAR, RAGGED):
        return []
    barriers = without_each_barrier(_BROKEN[on].kernel)
    return [barrier for barrier in barriers if ((on == REGULAR, barrier.text) in EQUIVALENT) == equivalent]


def find_plants() -> Outcome:
    """Plants every fault and deletes every barrier. A line of ``failures`` for each one that nothing reports, and for
    each of ``EQUIVALENT`` that is not."""
    failures = []
    tried = 0
    for on, broken in _BROKEN.items():
        name, kernel = broken.variant.name, broken.kernel
        sound = _found(kernel, on)
        if sound is not None:
            failures.append(f"{name}: the sound kernel shows {sound} where faults are to be planted")
        for plant in _plants(on):
            tried += 1
            kind = _found(plant.apply(kernel), on, plant.odd_x)
            if kind not in plant.kinds:
                seen = f"shows {kind}" if kind else "is not found"
                failures.append(f"blind checker: {plant.name} {seen}, not {' or '.join(plant.kinds)} ({name})")
        for barrier in _barriers(on, equivalent=False):
            tried += 1
            if _found(barrier.kernel, on) is None:
                failures.append(
                    f"blind checker: nothing is reported when the barrier of {barrier.file}:{barrier.line} is deleted: "
                    f"{barrier.text} ({name})"
                )
        for barrier in _barriers(on, equivalent=True):
            tried += 1
            unlike = _unlike(barrier.kernel, on)
            if unlike is not None:
                failures.append(
                    f"no equivalent: {unlike} when the barrier of {barrier.file}:{barrier.line} is deleted: "
                    f"{barrier.text} ({name})"
                )
    return Outcome(cases=tried, launches=tried, failures=tuple(failures))


def _mutants() -> Iterator[Kernel]:
    """What find_plants runs."""
    for on, broken in _BROKEN.items():
        yield from (plant.apply(broken.kernel) for plant in _plants(on))
        yield from (barrier.kernel for equivalent in (False, True) for barrier in _barriers(on, equivalent))


def kernels_of(cases: Sequence[SimCase]) -> list[Kernel]:
    """Every library that the cases and ``find_plants`` need."""
    variants = {v.name: v for case in cases for v in (case.variant(case.problem.m), case.variant(1))}
    variants |= {broken.variant.name: broken.variant for broken in _BROKEN.values()}
    return [*(small_m_kernel(v) for v in variants.values()), *_mutants()]
