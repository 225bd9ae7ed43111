"""Make sure that the checks on Metal kernels see: plant every fault, delete every barrier."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from numpy.typing import NDArray

from upstream_patch.correctness.outcome import Outcome
from upstream_patch.correctness.stock_metal import judge
from upstream_patch.reference import from_bits
from upstream_patch.simulate import Kernel, Placement
from upstream_patch.simulate.metal.launches import How, run_accumulate, run_matmul
from upstream_patch.simulate.metal.mutations import (
    PLANTS,
    PROBLEMS,
    TILES,
    WRONG_ANSWER,
    MetalBarrier,
    mutable_kernel,
    without_each_barrier,
)
from upstream_patch.simulate.metal.stock import Operands, Route, make_operands

ROUTES: tuple[Route, ...] = get_args(Route)
WITHOUT_BARRIER = ("race", "unwritten read")
"""What a deleted barrier must show: a lane that reads before anybody wrote meets memory that nobody wrote."""
_WHERE = Placement(at_end=True)


@cache
def _operands(route: Route) -> Operands:
    return make_operands(PROBLEMS[route], seed=1)


def shown(route: Route, kernel: Kernel, how: How | None = None) -> tuple[str | None, NDArray[Any] | None]:
    """The kind of fault that a kernel shows, or None; and its output, where it came to one."""
    operands = _operands(route)
    run = run_matmul(route, operands, TILES[route], _WHERE, how, kernel)
    if route == "splitk" and not run.report.faults:
        run = run_accumulate(operands.problem, run.outputs[0], how, kernel, at_end=True)
    if run.report.faults:
        return run.report.faults[0].kind, None
    bits = run.outputs[0].reshape(operands.problem.m, operands.problem.n)
    wrong = judge(operands.batch[0], from_bits(bits, operands.problem.dtype), route != "wide")
    return WRONG_ANSWER if wrong else None, bits


def barriers(route: Route) -> tuple[MetalBarrier, ...]:
    """Those whose removal must be reported."""
    return tuple(each for each in without_each_barrier(route, mutable_kernel(route)) if each.proof is None)


def kernels() -> Iterator[Kernel]:
    """What find_metal_plants runs."""
    sound = {route: mutable_kernel(route) for route in ROUTES}
    yield from sound.values()
    yield from (plant.apply(sound[plant.route]) for plant in PLANTS)
    yield from (barrier.kernel for route in ROUTES for barrier in barriers(route))


def find_metal_plants() -> Outcome:
    """Plants every fault and deletes every barrier. A line of ``failures`` for each one that nothing reports."""
    failures = []
    tried = 0
    for route in ROUTES:
        kernel = mutable_kernel(route)
        sound = shown(route, kernel)[0]
        if sound is not None:
            failures.append(f"{kernel.name}: the sound kernel shows {sound} where faults are to be planted")
        for plant in (plant for plant in PLANTS if plant.route == route):
            tried += 1
            kind = shown(route, plant.apply(kernel))[0]
            if kind not in plant.kinds:
                seen = f"shows {kind}" if kind else "is not found"
                failures.append(f"blind checker: {plant.name} {seen}, not {' or '.join(plant.kinds)} ({kernel.name})")
        for barrier in barriers(route):
            tried += 1
            kind = shown(route, barrier.kernel)[0]
            if kind not in WITHOUT_BARRIER:
                failures.append(
                    f"blind checker: {kind or 'nothing'} is reported when the barrier of line {barrier.line} is "
                    f"deleted, not a race ({barrier.signature} {kernel.name})"
                )
    return Outcome(cases=tried, launches=tried, failures=tuple(failures))
