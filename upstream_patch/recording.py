"""Run one measurement on this machine's CUDA GPU and store it as a record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import probe
from upstream_patch.records import host_id, versions
from upstream_patch.records.kernel_hash import identity
from upstream_patch.records.provenance import require_commit
from upstream_patch.records.schema import Body
from upstream_patch.records.store import EVIDENCE, Root, write
from upstream_patch.terminal import bar

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


def record_correctness(command: str, evidence: Root = EVIDENCE, full: bool = False) -> Stored:
    """The matrix, or all of it. A wrong case is stored too, and then raised: evidence of a fault is evidence."""
    require_cuda()
    from upstream_patch.correctness import failures, run_matrix

    with bar("correctness") as advance:
        body = run_matrix(progress=advance, full=full)
    path = _store(body, command, evidence)
    wrong = failures(body)
    if wrong:
        raise UserError(f"{len(wrong)} complaints about {len(body.cases)} cases, first: {wrong[0]} ({path})")
    return Stored(path, f"{len(body.cases)} cases right")


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


def _store(body: Body, command: str, evidence: Root, raw: Mapping[str, bytes] | None = None) -> Path:
    machine = probe()
    return write(
        body,
        host=host_id(machine),
        command=command,
        machine=machine,
        versions=versions(),
        kernel=identity(KERNEL),
        root=evidence,
        attachments=raw,
    )
