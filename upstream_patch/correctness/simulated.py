"""Run the cover through the lane simulator and judge every launch; first make sure that the simulator's checks see."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

import numpy as np

from upstream_patch.correctness.cover import SimCase
from upstream_patch.correctness.errors import check
from upstream_patch.correctness.run import Progress
from upstream_patch.errors import UserError
from upstream_patch.kernels import Variant
from upstream_patch.kernels.tuning import TILE, SmallM
from upstream_patch.problem import Problem
from upstream_patch.reference import Inputs, from_bits, make_inputs
from upstream_patch.simulate import Kernel, Placement, Run, compiler, row_alone, run_small_m, small_m_kernel
from upstream_patch.simulate.library import build
from upstream_patch.simulate.mutations import EQUIVALENT, PLANTS, WRONG_ANSWER, Barrier, Plant, without_each_barrier

_LIMIT = 227 * 1024
_THREADS = "OPENBLAS_NUM_THREADS"
_PARTS_A_PROCESS = 25
"""Each kernel that a process has launched keeps its lanes' stacks, two mappings a lane: 60 of them are Linux's limit."""


@dataclass(frozen=True)
class Outcome:
    """What came of some cases, or of the planted faults. ``failures`` are lines."""

    cases: int = 0
    launches: int = 0
    tiles: int = 0
    simulated_seconds: float = 0.0
    peak_bytes: int = 0
    """Of the process."""
    failures: tuple[str, ...] = field(default=())


def _judge(inputs: Inputs, run: Run) -> str | None:
    """Why the output is wrong, or None."""
    verdict = check(
        inputs.problem,
        from_bits(run.outputs[0], inputs.problem.dtype),
        inputs.reference(),
        None,
        magnitude=inputs.magnitude(),
        removed=inputs.removed(),
        seed=inputs.seed,
    )
    return None if verdict.passed else verdict.bound


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
    alone = launch(row_alone(inputs, row), f"row {row} alone", Placement(), order="in_order", fill=case.fill)
    if not failures:
        if not np.array_equal(first.outputs[0], other.outputs[0]):
            failures.append(f"{case.id}: the schedule, or what shared memory held before, changes the output")
        if not np.array_equal(first.outputs[0][row], alone.outputs[0][0]):
            failures.append(f"{case.id}: row {row} of the batch differs from the same row alone")
        wrong = _judge(inputs, first)
        if wrong is not None:
            failures.append(f"{case.id}: {wrong}")
    return Outcome(
        cases=1,
        launches=len(runs),
        tiles=len(runs) * -(-problem.n // TILE),
        simulated_seconds=sum(run.report.stats.seconds for run in runs),
        peak_bytes=_peak_bytes(),
        failures=tuple(failures),
    )


def _peak_bytes() -> int:
    kilo = 1 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilo


def _sum(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        cases=sum(o.cases for o in outcomes),
        launches=sum(o.launches for o in outcomes),
        tiles=sum(o.tiles for o in outcomes),
        simulated_seconds=sum(o.simulated_seconds for o in outcomes),
        peak_bytes=max((o.peak_bytes for o in outcomes), default=0),
        failures=tuple(line for o in outcomes for line in o.failures),
    )


def _run_several(cases: Sequence[SimCase]) -> Outcome:
    return _sum([run_sim_case(case) for case in cases])


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
    return WRONG_ANSWER if _judge(inputs, run) else None


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


def compile_kernels(cases: Sequence[SimCase], progress: Progress | None = None) -> None:
    """Every library that the run needs, in parallel; those of an earlier run are there already."""
    variants = {v.name: v for case in cases for v in (case.variant(case.problem.m), case.variant(1))}
    kernels = [*(small_m_kernel(v) for v in (*variants.values(), *_PLANT_ON)), *_mutants()]
    build(kernels[0])  # the engine, once
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done, _ in enumerate(pool.map(build, kernels), 1):
            if progress is not None:
                progress(done, len(kernels), "compiled")


@dataclass(frozen=True)
class Summary:
    plants: Outcome
    cover: Outcome
    compile_seconds: float
    seconds: float

    @property
    def failures(self) -> tuple[str, ...]:
        return self.plants.failures + self.cover.failures

    @property
    def detail(self) -> str:
        return (
            f"{self.cover.cases} cases ({self.cover.launches} launches) of the CUDA kernel agree with the fp64 "
            f"reference, with no race, in {self.seconds:.0f} s; {self.plants.cases} planted faults and deleted "
            "barriers are found"
        )

    @property
    def per_tile(self) -> str:
        """Time and memory, for --stats."""
        tiles = max(1, self.cover.tiles)
        return (
            f"{1e3 * self.cover.simulated_seconds / tiles:.2f} ms a tile of {TILE} columns ({tiles} tiles), "
            f"{self.cover.peak_bytes / 2**20:.0f} MiB a process, {self.compile_seconds:.1f} s to compile or find"
        )


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """For processes started meanwhile: there is one for every core already."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


def simulate_cover(cases: Sequence[SimCase], progress: Progress | None = None, workers: int | None = None) -> Summary:
    """Compile, plant, run. Raises MissingTool without a compiler, UserError with the first failures."""
    compiler()
    start = time.perf_counter()
    compile_kernels(cases, progress)
    compiled = time.perf_counter() - start
    parts = [list(cases[i : i + 10]) for i in range(0, len(cases), 10)]
    outcomes = []
    pool = ProcessPoolExecutor(workers or os.cpu_count(), get_context("spawn"), max_tasks_per_child=_PARTS_A_PROCESS)
    with _one_blas_thread(), pool as processes:
        planted = processes.submit(find_plants)
        for done, outcome in enumerate(processes.map(_run_several, parts), 1):
            outcomes.append(outcome)
            if progress is not None:
                progress(done, len(parts), "simulated")
        plants = planted.result()
    return Summary(plants, _sum(outcomes), compiled, time.perf_counter() - start)


class SimulatorFinding(UserError):
    """The simulator found a fault in the kernel, or is blind to a planted one."""

    exit_code = 1


def verdict(summary: Summary) -> str:
    """The summary's line. Raises SimulatorFinding where something failed."""
    if summary.failures:
        more = f" (and {len(summary.failures) - 1} more)" if len(summary.failures) > 1 else ""
        raise SimulatorFinding(f"the simulator found: {summary.failures[0]}{more}")
    return summary.detail
