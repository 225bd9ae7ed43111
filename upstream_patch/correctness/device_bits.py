"""Whether an H200 and the simulator give the same bits: the checksums that a sanitizer record holds, recomputed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch.correctness.outcome import Outcome, outcome_of
from upstream_patch.correctness.paths import H200
from upstream_patch.kernels import Variant, variants
from upstream_patch.kernels.tuning import DEVICE_CLASSES, TILE
from upstream_patch.problem import DType
from upstream_patch.records import kernel_hash
from upstream_patch.records.schema import Sanitized, SanitizerBody
from upstream_patch.records.store import LoadedRecord
from upstream_patch.reference import from_bits, make_inputs
from upstream_patch.simulate import SUMS, Kernel, Run, Sums, run_small_m, small_m_kernel

H200_SUMS: Sums = "truncating"
_DEVICE = DEVICE_CLASSES[H200[0]]


@dataclass(frozen=True)
class Recorded:
    """What a record of an H200 holds of today's kernel."""

    record: str
    """Its id."""
    launches: tuple[Sanitized, ...]
    """Those with a checksum, of instances that are launched today; each instance's in a row, for few loaded libraries
    a process."""
    others: int
    """How many launches the record has besides."""


@dataclass(frozen=True)
class Difference:
    """One output, by its place in [batch * M, N], and its stored bits."""

    row: int
    column: int
    theirs: int
    ours: int

    def shown(self, dtype: DType, theirs: str, ours: str) -> str:
        def value(bits: int) -> str:
            return f"{float(from_bits(np.array([bits], np.uint16), dtype)[0]):.6g} (0x{bits:04x})"

        return f"row {self.row}, column {self.column} is {value(self.theirs)} {theirs} and {value(self.ours)} {ours}"


@dataclass(frozen=True)
class Compared:
    runs: tuple[Run, ...] = field(repr=False, compare=False)
    sums: Sums | None
    """The first order of sums that gave the GPU's bits; that of an H200 is tried first."""
    where: Difference | None = None
    """The first output that differs from the one in an H200's order of sums, where the checksum tells it."""
    why: str | None = None
    """In words; None where the bits are the same in an H200's order of sums."""


def newest(records: Iterable[LoadedRecord]) -> Recorded | None:
    """The last one of records, oldest first, that holds checksums of today's kernel on an H200 (or another sm_90)."""
    found = None
    for record in (loaded.record for loaded in records):
        body, gpu = record.body, record.machine.gpu
        if gpu is None or gpu.compute_capability != ".".join(map(str, H200[0])):
            continue
        if isinstance(body, SanitizerBody) and record.kernel == kernel_hash.identity("small_m"):
            known = [one for one in body.launched if one.output_sha256 and one.kernel in _variants()]
            if known:
                launches = tuple(sorted(known, key=lambda one: one.kernel))
                found = Recorded(record.id, launches, len(body.launched) - len(launches))
    return found


def compare(launch: Sanitized) -> Compared:
    """Simulates a launch in an H200's order of sums and, where that gives another checksum, in every one.

    A checksum tells that outputs differ, not which: the place is known where another order of sums has the checksum,
    or where one output alone differs, by one bit or to the next value.
    """
    first = _simulated(launch, H200_SUMS)
    if first.report.faults:
        return Compared((first,), None, None, f"the simulator found: {first.report.faults[0]}")
    if _checksum(first) == launch.output_sha256:
        return Compared((first,), H200_SUMS)
    runs = {H200_SUMS: first} | {sums: _simulated(launch, sums) for sums in SUMS if sums != H200_SUMS}
    ours, every, dtype = first.outputs[0], tuple(runs.values()), launch.problem.dtype
    for sums, run in runs.items():
        if _checksum(run) == launch.output_sha256:
            where = _first(run.outputs[0], ours)
            why = f"{where.shown(dtype, 'on the GPU', 'here')}: it sums in the order {sums}, an H200 {H200_SUMS}"
            return Compared(every, sums, where, why)
    alone = _one_output(ours, launch.output_sha256)
    if alone is not None:
        return Compared(every, None, alone, f"{alone.shown(dtype, 'on the GPU', 'here')}, and no other differs")
    why = f"outputs differ, in more than one bit, and the GPU's checksum {launch.output_sha256} does not tell where; "
    for sums, run in runs.items():
        if not np.array_equal(run.outputs[0], ours):
            other = _first(run.outputs[0], ours).shown(dtype, f"if summed {sums}", f"{H200_SUMS}")
            return Compared(every, None, None, f"{why}the order of sums matters: {other}")
    return Compared(every, None, None, f"{why}every order of sums gives {_checksum(first)}")


def run_recorded(launch: Sanitized) -> Outcome:
    """One case of the simulator's whole run."""
    found = compare(launch)
    name = f"{launch.kernel}, {launch.problem.id}, grid {launch.grid}, seed {launch.seed}, x padded by "
    failures = [f"{name}{launch.x_padding}: {found.why}"] if found.why else []
    return outcome_of(found.runs, len(found.runs) * launch.problem.batch * -(-launch.problem.n // TILE), failures)


def said(recorded: Recorded | None, outcome: Outcome) -> str:
    """A line for a person; each launch that differs is one failure of the outcome."""
    if recorded is None:
        return (
            "NOT COMPARED with an H200's bits: no record of one holds checksums of today's kernel (`nox -s sanitize`, "
            "there, makes one)"
        )
    compared, identical = outcome.cases, outcome.cases - len(outcome.failures)
    rest = f"; {recorded.others} more have no checksum, or an instance of another day" if recorded.others else ""
    return f"{compared} launches of {recorded.record} compared with the H200's bits, {identical} identical{rest}"


def find_changed_bit(launch: Sanitized) -> Outcome:
    """Flips one bit of one output behind a checksum. A line of ``failures`` unless just that is found."""
    run = _simulated(launch, H200_SUMS)
    row, column = (size // 2 for size in run.outputs[0].shape)
    theirs = run.outputs[0].copy()
    theirs[row, column] ^= 1
    planted = Difference(row, column, int(theirs[row, column]), int(theirs[row, column] ^ 1))
    found = compare(launch.model_copy(update={"output_sha256": sha256(theirs.tobytes()).hexdigest()}))
    blind = f"blind comparison: {planted} planted into {launch.kernel}, {launch.problem.id}, and found: {found.why}"
    return outcome_of(found.runs, 0, [] if found.where == planted else [blind])


def kernels_of(launches: Sequence[Sanitized]) -> list[Kernel]:
    """Every library that the launches need."""
    return [small_m_kernel(_variants()[name]) for name in sorted({launch.kernel for launch in launches})]


@cache
def _variants() -> dict[str, Variant]:
    return {variant.name: variant for variant in variants(_DEVICE.name)}


def _simulated(launch: Sanitized, sums: Sums) -> Run:
    return run_small_m(
        _variants()[launch.kernel],
        launch.grid[0],
        make_inputs(launch.problem, launch.seed),
        shared_limit=_DEVICE.shared_per_block,
        x_padding=launch.x_padding,
        sums=sums,
        checks=(),
    )


def _checksum(run: Run) -> str:
    return sha256(run.outputs[0].tobytes()).hexdigest()


def _first(theirs: NDArray[Any], ours: NDArray[Any]) -> Difference:
    """Of outputs that are not the same."""
    row, column = (int(at) for at in np.argwhere(theirs != ours)[0])
    return Difference(row, column, int(theirs[row, column]), int(ours[row, column]))


def _one_output(ours: NDArray[Any], checksum: str | None) -> Difference | None:
    """The one output whose change, of one bit or to a neighbour in value, gives the checksum."""
    flat = ours.reshape(-1)
    before = sha256()
    for at, stored in enumerate(flat):
        bits, after = int(stored), flat[at + 1 :].tobytes()
        for near in (*(bits ^ 1 << bit for bit in range(16)), bits + 1 & 0xFFFF, bits - 1 & 0xFFFF):
            tried = before.copy()
            tried.update(np.uint16(near).tobytes() + after)
            if tried.hexdigest() == checksum:
                row, column = divmod(at, ours.shape[1])
                return Difference(row, column, near, bits)
        before.update(stored.tobytes())
    return None
