"""The simulator's whole run over both fronts: compile, make sure that the checks see, run every case, sum up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from typing import Any

from upstream_patch.correctness import (
    cover,
    device_bits,
    metal_cover,
    metal_plants,
    metal_simulated,
    simulated,
    staged_cover,
    staged_plants,
    staged_simulated,
)
from upstream_patch.correctness.outcome import Outcome, add
from upstream_patch.correctness.run import Progress
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.records.store import EVIDENCE, Root, load_all
from upstream_patch.simulate import Kernel, compiler
from upstream_patch.simulate.library import build
from upstream_patch.simulate.metal.source import metal_compiler

_THREADS = "OPENBLAS_NUM_THREADS"
STRICT = "UPSTREAM_PATCH_STRICT"
"""Set to 1, a front that cannot run is a failure and not a line in the summary."""
SHOWN = 20


@dataclass(frozen=True)
class Front:
    """What is run for one GPU language. The callables are functions of a module: they go to other processes."""

    name: str
    cases: Sequence[Any]
    run_case: Callable[[Any], Outcome]
    find_plants: Callable[[], Outcome]
    kernels: Sequence[Kernel]
    """Every library that cases and planted faults need."""


@dataclass(frozen=True)
class FrontSummary:
    name: str
    plants: Outcome
    cover: Outcome

    @property
    def failures(self) -> tuple[str, ...]:
        return self.plants.failures + self.cover.failures


@dataclass(frozen=True)
class Summary:
    fronts: tuple[FrontSummary, ...]
    compile_seconds: float
    seconds: float
    missing: tuple[str, ...] = ()
    """Fronts that this machine cannot run, each with the reason and the way out."""
    bits: FrontSummary | None = None
    """The launches of an H200's record; None where none fits, and in a run that is not full."""
    bits_said: str = ""
    """How many were compared with what record, or why none was; empty in a run that is not full."""

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(line for part in self._parts for line in part.failures)

    @property
    def _parts(self) -> tuple[FrontSummary, ...]:
        return self.fronts if self.bits is None else (*self.fronts, self.bits)

    @property
    def detail(self) -> str:
        ran = ", ".join(f"{f.cover.cases} cases ({f.cover.launches} launches) of {f.name}" for f in self.fronts)
        plants = sum(part.plants.cases for part in self._parts)
        lacking = "".join(f"; NOT RUN: {reason}" for reason in self.missing)
        return (
            f"{ran} agree with the fp64 reference, with no race, in {self.seconds:.0f} s; {plants} planted faults and "
            f"deleted barriers are found{lacking}"
        )

    @property
    def per_tile(self) -> str:
        """Time and memory of every front, a line each, for --stats."""
        lines = []
        for front in self._parts:
            took, tiles = front.cover, max(1, front.cover.tiles)
            lines.append(
                f"{front.name}: {1e3 * took.simulated_seconds / tiles:.2f} ms and "
                f"{took.buffer_bytes / 2**10 / tiles:.1f} KiB of arguments a tile, {took.tiles} tiles, "
                f"{took.peak_bytes / 2**20:.0f} MiB a process"
            )
        return "\n".join([*lines, f"{self.compile_seconds:.1f} s to compile or find the kernels"])


def today() -> int:
    """A number that every day has another of."""
    return datetime.now(UTC).toordinal()


def cuda_front(full: bool, seed: int | None) -> Front:
    """``full``: every instance and reported input; else some of the day, or of the seed.

    Raises MissingTool without a compiler.
    """
    compiler()
    count = cover.FULL_CASES if full else cover.CASES
    turning = cover.turning_launches()
    if not full:
        turning = cover.turn_of(turning, today() if seed is None else seed)
    cases = [*cover.fixed_launches(), *turning, *cover.cover(count, cover.SEED if seed is None else seed)]
    run_case = simulated.run_sim_case if full else simulated.run_two_launches
    return Front("the CUDA kernel", cases, run_case, simulated.find_plants, simulated.kernels_of(cases))


def metal_front(full: bool, seed: int | None) -> Front:
    """Raises MissingTool without clang or an MLX wheel, UserError where its headers are not those that are known."""
    metal_compiler()
    cases = metal_cover.metal_cover(full, metal_cover.SEED if seed is None else seed)
    kernels = [*metal_simulated.kernels_of(cases), *metal_plants.kernels()]
    return Front("MLX's Metal kernels", cases, metal_simulated.run_metal_case, metal_plants.find_metal_plants, kernels)


def staged_front(full: bool, seed: int | None) -> Front:
    """Raises as ``metal_front`` does."""
    metal_compiler()
    cases = staged_cover.staged_cover(full, staged_cover.SEED if seed is None else seed)
    kernels = [*staged_simulated.kernels_of(cases), *staged_plants.kernels()]
    return Front(
        "our Metal kernels", cases, staged_simulated.run_staged_case, staged_plants.find_staged_plants, kernels
    )


def bits_front(recorded: device_bits.Recorded) -> Front:
    """The launches of a record of an H200, and one of them with another checksum."""
    launches = recorded.launches
    plant = partial(device_bits.find_changed_bit, launches[0])
    return Front("the H200's launches", launches, device_bits.run_recorded, plant, device_bits.kernels_of(launches))


FRONTS: tuple[Callable[[bool, int | None], Front], ...] = (cuda_front, metal_front, staged_front)


def compile_kernels(kernels: Sequence[Kernel], progress: Progress | None = None) -> None:
    """In parallel; libraries of an earlier run are there already."""
    build(kernels[0])  # the engine, once
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done, _ in enumerate(pool.map(build, kernels), 1):
            if progress is not None:
                progress(done, len(kernels), "compiled")


def _run_several(run_case: Callable[[Any], Outcome], cases: Sequence[Any]) -> Outcome:
    return add([run_case(case) for case in cases])


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


def _gather(full: bool, seed: int | None) -> tuple[list[Front], list[MissingTool]]:
    fronts: list[Front] = []
    missing: list[MissingTool] = []
    for make in FRONTS:
        try:
            fronts.append(make(full, seed))
        except MissingTool as error:
            if str(error) not in map(str, missing):
                missing.append(error)
    if not fronts:
        raise missing[0]
    if missing and os.environ.get(STRICT) == "1":
        raise UserError(f"{STRICT}=1, and a front of the simulator cannot run: {missing[0]}")
    return fronts, missing


def simulate(
    say: Callable[[str], None],
    progress: Progress | None = None,
    *,
    full: bool = False,
    seed: int | None = None,
    workers: int | None = None,
    evidence: Root = EVIDENCE,
) -> Summary:
    """Compile, plant, run; ``say`` gets the first failures, a line each. ``full`` compares the bits of an H200's record
    in ``evidence``, too, if one fits today's kernel.

    Raises MissingTool where no front can run, UserError where the sources of one do not lower or compile.
    """
    fronts, missing = _gather(full, seed)
    recorded = device_bits.newest(load_all(evidence)) if full else None
    if recorded is not None:
        fronts.append(bits_front(recorded))
    start = time.perf_counter()
    compile_kernels([kernel for front in fronts for kernel in front.kernels], progress)
    compiled = time.perf_counter() - start
    parts = [(f, list(f.cases[i : i + 10])) for f in fronts for i in range(0, len(f.cases), 10)]
    with _one_blas_thread(), ProcessPoolExecutor(workers or os.cpu_count(), get_context("spawn")) as processes:
        planted = [processes.submit(front.find_plants) for front in fronts]
        runs: list[tuple[Front, Future[Outcome]]] = [
            (front, processes.submit(_run_several, front.run_case, cases)) for front, cases in parts
        ]
        for done, (_, run) in enumerate(runs, 1):
            run.result()
            if progress is not None:
                progress(done, len(runs), "simulated")
        summaries = tuple(
            FrontSummary(front.name, plants.result(), add([run.result() for of, run in runs if of is front]))
            for front, plants in zip(fronts, planted, strict=True)
        )
    bits = None if recorded is None else summaries[-1]
    summary = Summary(
        fronts=summaries if bits is None else summaries[:-1],
        compile_seconds=compiled,
        seconds=time.perf_counter() - start,
        missing=tuple(str(error) for error in missing),
        bits=bits,
        bits_said=device_bits.said(recorded, bits.cover if bits else Outcome()) if full else "",
    )
    for failure in summary.failures[:SHOWN]:
        say(failure)
    return summary


class SimulatorFinding(UserError):
    """The simulator found a fault in a kernel, or is blind to a planted one."""

    exit_code = 1


def verdict(summary: Summary) -> str:
    """The summary's line. Raises SimulatorFinding where something failed."""
    if summary.failures:
        more = f" (and {len(summary.failures) - 1} more)" if len(summary.failures) > 1 else ""
        raise SimulatorFinding(f"the simulator found: {summary.failures[0]}{more}")
    return summary.detail
