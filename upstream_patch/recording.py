"""Run one measurement on this machine's CUDA GPU and store it as a record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import probe
from upstream_patch.records import host_id, versions
from upstream_patch.records.kernel_hash import METAL, identity
from upstream_patch.records.provenance import require_commit
from upstream_patch.records.schema import Body
from upstream_patch.records.store import EVIDENCE, Root, write
from upstream_patch.terminal import bar

if TYPE_CHECKING:
    from upstream_patch.series.building import Backend

KERNEL = "small_m"


@dataclass(frozen=True)
class Stored:
    """A record that was written, and what is in it, in a few words."""

    path: Path
    detail: str


def require_cuda() -> None:
    """Raise MissingTool where MLX is missing, or cannot use a CUDA GPU; UserError where the record would be refused."""
    try:
        from upstream_patch import ops
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mlx":
            raise
        raise MissingTool(
            "MLX is not installed", "pip install -e '.[cuda]' in the clone, on a machine with an NVIDIA GPU"
        ) from error
    ops.require_cuda()
    require_commit(host_id(probe()), versions())


def record_correctness(
    command: str, evidence: Root = EVIDENCE, full: bool = False, limit_s: float = math.inf
) -> Stored:
    """The matrix, or as much of the whole cross as starts in time.

    A wrong case is stored too, and then raised: evidence of a fault is evidence.
    """
    require_cuda()
    from upstream_patch.correctness import failures, run_matrix

    with bar("correctness") as advance:
        body = run_matrix(progress=advance, full=full, limit_s=limit_s)
    path = _store(body, command, evidence)
    wrong = failures(body)
    if wrong:
        raise UserError(f"{len(wrong)} complaints about {len(body.cases)} cases, first: {wrong[0]} ({path})")
    of = f" of {body.planned}" if body.planned != len(body.cases) else ""
    return Stored(path, f"{len(body.cases)}{of} cases right")


def record_bench(
    command: str,
    suite: str,
    evidence: Root = EVIDENCE,
    limit_s: float = math.inf,
    out: Path = Path("out"),
    fresh: bool = False,
) -> Stored:
    """One benchmark suite; every row's result is checked in the same run.

    No row starts after ``limit_s`` seconds; what is compiled ahead is not counted. Goes on where a run stopped that did
    not end, unless ``fresh`` (``resuming.Benchmark.run``).
    """
    require_cuda()
    from upstream_patch.correctness import Case, compile_ahead
    from upstream_patch.measure.journal import FOLDER
    from upstream_patch.measure.suites import suite as known
    from upstream_patch.resuming import Benchmark

    chosen = known(suite)
    compile_ahead([Case("bench", spec.problem) for spec in chosen.rows])
    said = Console(stderr=True)
    benchmark = Benchmark(
        suite=chosen,
        command=command,
        machine=probe(),
        versions=versions(),
        kernel=identity(KERNEL),
        evidence=evidence,
        say=lambda line: said.print(line, style="yellow", markup=False),
    )
    with bar(f"bench {suite}") as advance:
        path, detail = benchmark.run(out / FOLDER, limit_s=limit_s, fresh=fresh, progress=advance)
    return Stored(path, f"suite {suite}, {detail}")


def record_profile(command: str, evidence: Root = EVIDENCE) -> Stored:
    """Nsight Compute on stock and ours."""
    require_cuda()
    from upstream_patch.measure.ncu import profile

    with bar("profile") as advance:
        body, raw = profile(progress=advance)
    return Stored(_store(body, command, evidence, raw), f"{len(body.launches)} launches")


def record_sanitizer(command: str, evidence: Root = EVIDENCE, keep: Path | None = None) -> Stored:
    """compute-sanitizer on the kernel outside MLX. What it finds is stored too, and then raised."""
    require_commit(host_id(probe()), versions())
    from upstream_patch.correctness.sanitize import faults, sanitize

    with bar("sanitize") as advance:
        body, logs = sanitize(progress=advance, keep=keep)
    path = _store(body, command, evidence, logs)
    found = faults(body)
    if found:
        raise UserError(f"{'; '.join(found)} ({path})")
    planted = len(body.runs) - len(body.sound)
    tools = ", ".join(run.tool for run in body.sound)
    return Stored(path, f"{tools} clean on {len(body.launched)} launches, {planted} planted faults found")


def record_peers(command: str, evidence: Root = EVIDENCE) -> Stored:
    """PyTorch's prepacked int4 against our kernel; every row's two results are checked in the same run."""
    require_commit(host_id(probe()), versions())
    from upstream_patch.measure.peers import run_peers

    with bar("peers") as advance:
        body = run_peers(progress=advance)
    return Stored(_store(body, command, evidence), f"{body.peer}, {len(body.rows)} rows")


def record_decode(
    command: str,
    models: Sequence[str],
    batches: Sequence[int],
    evidence: Root = EVIDENCE,
    limit_s: float = math.inf,
) -> Stored:
    """Batched decode of whole models; every arm's step is checked against dense weights in the same run. A wrong
    answer is raised once the other rows are stored.

    Three quarters of ``limit_s`` seconds are for rows, the rest is for the last row to end and for the traces.
    """
    require_cuda()
    from upstream_patch.measure.decode import run_decode
    from upstream_patch.measure.decode.run import WRONG

    with bar("decode") as advance:
        body = run_decode(models, batches, machine=probe(), progress=advance, limit_s=limit_s)
    path = _store(body, command, evidence)
    if wrong := [note for note in body.notes if note.startswith(WRONG)]:
        raise UserError(f"{wrong[0]} ({len(wrong)} such rows; the others are in {path})")
    left_out = len(models) * len(batches) - len(body.rows)
    detail = f"decode of {', '.join(model.name for model in body.models)}, {len(body.rows)} rows"
    return Stored(path, detail + (f", {left_out} left out (see its notes)" if left_out else ""))


def record_wheel(
    command: str, evidence: Root = EVIDENCE, built: Path | None = None, every: int = 1, decoding: bool = True
) -> Stored:
    """The wheel build on this GPU. What is wrong is stored too, and then raised."""
    require_cuda()
    from upstream_patch.measure.wheel.run import failures, run_wheel, summary

    with bar("wheel") as advance:
        body = run_wheel(built, every, decoding, progress=advance)
    path = _store(body, command, evidence)
    if wrong := failures(body):
        raise UserError(f"{len(wrong)} complaints about the wheel build, first: {'; '.join(wrong[:3])} ({path})")
    return Stored(path, summary(body))


def record_build(
    command: str,
    mlx: str,
    evidence: Root = EVIDENCE,
    out: Path = Path("out"),
    names: Sequence[str] = (),
    backend: Backend | None = None,
) -> Stored:
    """MLX from a checkout or URL, as it is and with the series. What the series breaks is stored too, and then raised.

    ``names`` are contributions; left out, those of the backend.
    """
    from upstream_patch.machine import System
    from upstream_patch.series import load
    from upstream_patch.series.building import Plan, backend_of, build
    from upstream_patch.series.checkout import open_or_clone

    require_commit(host_id(probe()), versions())
    backend = backend or backend_of(System())
    usual = ("metal",) if backend == "metal" else ("folding", "cuda")
    planned = Plan(
        checkout=open_or_clone(mlx, out / "mlx"),
        contributions=[load(name) for name in names or usual],
        backend=backend,
        folder=out / "build" / backend,
    )
    body, logs = build(planned)
    path = _store(body, command, evidence, logs, METAL if backend == "metal" else KERNEL)
    if body.broken:
        raise UserError(f"{len(body.broken)} tests fail with the series alone, first: {body.broken[0]} ({path})")
    if body.matrix is not None and body.matrix.wrong:
        wrong = body.matrix.wrong
        raise UserError(f"{len(wrong)} complaints of our matrix about the built MLX, first: {wrong[0]} ({path})")
    unproven = sorted(set(body.new_tests) - set(body.proven))
    if unproven:
        raise UserError(f"{', '.join(unproven)} passes on the base: it does not show the change ({path})")
    known = f"{len(body.known)} known failures of the base" if body.known else "no failure of the base"
    return Stored(path, f"{len(body.proven)} new tests fail on the base and pass with the series; {known}")


def record_metal(body: Body, command: str, evidence: Root = EVIDENCE) -> Path:
    """What was measured of the staged Metal kernels on this Mac."""
    return _store(body, command, evidence, kernel=METAL)


def _store(
    body: Body, command: str, evidence: Root, raw: Mapping[str, bytes] | None = None, kernel: str = KERNEL
) -> Path:
    machine = probe()
    return write(
        body,
        host=host_id(machine),
        command=command,
        machine=machine,
        versions=versions(),
        kernel=identity(kernel),
        root=evidence,
        attachments=raw,
    )
