"""Run one measurement on this machine's CUDA GPU and store it as a record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import probe
from upstream_patch.records import host_id, rules, versions
from upstream_patch.records.journal import FOLDER
from upstream_patch.records.keeping import Keeper
from upstream_patch.records.kernel_hash import METAL, identity
from upstream_patch.records.provenance import require_commit
from upstream_patch.records.schema import Body, CorrectnessBody, SanitizerBody
from upstream_patch.records.store import EVIDENCE, Root, readable, write
from upstream_patch.records.wheel_facts import host_hash
from upstream_patch.terminal import bar

if TYPE_CHECKING:
    from upstream_patch.records.forward import Forward
    from upstream_patch.resuming import Measurement
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
    command: str,
    evidence: Root = EVIDENCE,
    full: bool = False,
    limit_s: float = math.inf,
    out: Path = Path("out"),
    fresh: bool = False,
) -> Stored:
    """The matrix, or as much of the whole cross as starts in time. Goes on where a run was stopped, unless ``fresh``.

    A wrong case is stored too, and then raised: evidence of a fault is evidence.
    """
    require_cuda()
    from upstream_patch.correctness import failures, run_matrix
    from upstream_patch.correctness.run import planned

    names = [case.id for case in planned(full)[0]]
    bodies: list[CorrectnessBody] = []

    def measure(keeper: Keeper) -> Body:
        with bar("correctness") as advance:
            bodies.append(run_matrix(progress=advance, full=full, limit_s=limit_s, keeper=keeper))
        return bodies[0]

    matrix = _resumable("correctness", names, (names, full), measure, command, evidence, words="cases", parts=False)
    path, detail, _ = matrix.run(out / FOLDER, fresh=fresh)
    if not bodies:
        return Stored(path, detail)
    (body,) = bodies
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
    """One benchmark suite, on the machine that it is for; every row's result is checked in the same run.

    No row starts after ``limit_s`` seconds; what is compiled ahead is not counted. Goes on where a run stopped that did
    not end, unless ``fresh`` (``resuming.Measurement.run``).
    """
    from upstream_patch.correctness import Case, compile_ahead
    from upstream_patch.measure.bench import run_suite
    from upstream_patch.measure.suites import suite as known

    chosen = known(suite)
    if chosen.where == "m5":
        return record_request(command, evidence)
    require_cuda()
    least = _least_gbps(evidence)
    compile_ahead([Case("bench", spec.problem) for spec in chosen.rows])

    def measure(keeper: Keeper) -> Body:
        with bar(f"bench {suite}") as advance:
            return run_suite(suite, progress=advance, machine=probe(), limit_s=limit_s, keeper=keeper, least_gbps=least)

    names = [spec.id for spec in chosen.rows]
    bench = _resumable(f"bench.{suite}", names, (chosen.rows, chosen.rounds), measure, command, evidence)
    done = bench.run(out / FOLDER, fresh=fresh)
    return Stored(done.path, f"suite {suite}, {done.detail}")


def record_request(command: str, evidence: Root = EVIDENCE, forwards: Sequence[Forward] = ()) -> Stored:
    """The Metal request's operators on this Mac, with passes of models that were measured. Raises MissingTool where it
    is no M5."""
    from upstream_patch.contribution.m5 import need_record
    from upstream_patch.measure.m5.operators import run_table
    from upstream_patch.measure.suites import REQUEST_METAL

    try:
        gpu = need_record()
    except MissingTool as error:
        raise MissingTool(f"suite {REQUEST_METAL.name} runs on an M5 only ({error.what})", error.fix) from None
    with bar("operators") as advance:
        body = run_table(gpu, progress=advance).model_copy(update={"forwards": list(forwards)})
    detail = f"{len(body.rows)} operators, {len(body.forwards)} passes of models"
    return Stored(record_metal(body, command, evidence), detail)


def record_profile(
    command: str, evidence: Root = EVIDENCE, out: Path = Path("out"), fresh: bool = False, plan: str = "ncu"
) -> Stored:
    """Nsight Compute on stock and ours. Goes on as ``record_bench`` does."""
    require_cuda()
    from upstream_patch.measure.ncu import by_weights, profile
    from upstream_patch.measure.suites import profile_plan

    def measure(keeper: Keeper) -> Body:
        with bar("profile") as advance:
            return profile(plan, progress=advance, keeper=keeper)

    planned = profile_plan(plan)
    names = list(by_weights(planned))
    run = _resumable(f"profile.{plan}", names, planned, measure, command, evidence, words="profiles")
    done = run.run(out / FOLDER, fresh=fresh)
    return Stored(done.path, done.detail)


def record_sanitizer(
    command: str,
    evidence: Root = EVIDENCE,
    keep: Path | None = None,
    out: Path = Path("out"),
    fresh: bool = False,
) -> Stored:
    """compute-sanitizer on the kernel outside MLX. What it finds is stored too, and then raised. Goes on where a run
    was stopped, unless ``fresh``."""
    require_commit(host_id(probe()), versions())
    from upstream_patch.correctness.sanitize import faults, find, jobs, sanitize, version_of

    bodies: list[SanitizerBody] = []

    def measure(keeper: Keeper) -> Body:
        with bar("sanitize") as advance:
            bodies.append(sanitize(progress=advance, keep=keep, keeper=keeper))
        return bodies[0]

    names = list(jobs())
    asked = (names, version_of(find()))
    runs = _resumable("sanitize", names, asked, measure, command, evidence, words="runs", parts=False)
    path, detail, _ = runs.run(out / FOLDER, fresh=fresh)
    if not bodies:
        return Stored(path, detail)
    (body,) = bodies
    found = faults(body)
    if found:
        raise UserError(f"{'; '.join(found)} ({path})")
    planted = len(body.runs) - len(body.sound)
    tools = ", ".join(run.tool for run in body.sound)
    return Stored(path, f"{tools} clean on {len(body.launched)} launches, {planted} planted faults found")


def record_peers(command: str, evidence: Root = EVIDENCE, out: Path = Path("out"), fresh: bool = False) -> Stored:
    """PyTorch's prepacked int4 against our kernel; every row's two results are checked in the same run. Goes on as
    ``record_bench`` does."""
    require_commit(host_id(probe()), versions())
    from upstream_patch.measure.peers import PEER, ROUNDS, problems, run_peers
    from upstream_patch.measure.torch_device import torch_here

    def measure(keeper: Keeper) -> Body:
        with bar("peers") as advance:
            return run_peers(progress=advance, keeper=keeper)

    names = [problem.id for problem in problems()]
    asked = (names, ROUNDS, str(torch_here().__version__))
    done = _resumable("peers", names, asked, measure, command, evidence).run(out / FOLDER, fresh=fresh)
    return Stored(done.path, f"{PEER}, {done.detail}")


def record_decode(
    command: str,
    models: Sequence[str],
    batches: Sequence[int],
    evidence: Root = EVIDENCE,
    limit_s: float = math.inf,
    out: Path = Path("out"),
    fresh: bool = False,
) -> Stored:
    """Batched decode of whole models; every arm's step is checked against dense weights in the same run. A wrong
    answer is raised once the other rows are stored. Goes on as ``record_bench`` does.

    Three quarters of ``limit_s`` seconds are for rows, the rest is for the last row to end and for the traces.
    """
    require_cuda()
    from upstream_patch.measure.decode import TRACES, plan, run_decode
    from upstream_patch.measure.decode.run import ROUNDS, WRONG

    least = _least_gbps(evidence)

    def measure(keeper: Keeper) -> Body:
        with bar("decode") as advance:
            return run_decode(
                models,
                batches,
                machine=probe(),
                progress=advance,
                limit_s=limit_s,
                keeper=keeper,
                least_gbps=least,
            )

    asked = ([(model, _files(Path(model))) for model in models], tuple(batches), ROUNDS)
    decode = _resumable("decode", plan(models, batches), asked, measure, command, evidence, beside=(TRACES,))
    done = decode.run(out / FOLDER, fresh=fresh)
    if wrong := [note for note in getattr(done.body, "notes", ()) if note.startswith(WRONG)]:
        raise UserError(f"{wrong[0]} ({len(wrong)} such rows; the others are in {done.path})")
    return Stored(done.path, f"decode of {', '.join(models)}, {done.detail}")


def _least_gbps(evidence: Root) -> float:
    """Below it the writer would refuse what a run has measured."""
    host = host_id(probe())
    return rules.PROBE_SHARE_OF_BEST * rules.best_probe(host, readable(evidence, host))


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of what is in a model's folder; nothing where the model is none."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found]


def record_wheel(
    command: str, evidence: Root = EVIDENCE, built: Path | None = None, every: int = 1, decoding: bool = True
) -> Stored:
    """The wheel build on this GPU. What is wrong is stored too, and then raised."""
    require_cuda()
    from upstream_patch.measure.wheel.run import failures, run_wheel, summary

    host = host_id(probe())
    least = rules.least_wheel_cases(host, host_hash(), identity(KERNEL), readable(evidence, host))
    with bar("wheel") as advance:
        body = run_wheel(built, every, decoding, progress=advance, least_cases=least)
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
    from upstream_patch.series import load_each
    from upstream_patch.series.building import Plan, backend_of, build
    from upstream_patch.series.checkout import open_or_clone

    require_commit(host_id(probe()), versions())
    backend = backend or backend_of(System())
    usual = ("metal",) if backend == "metal" else ("folding", "cuda")
    planned = Plan(
        checkout=open_or_clone(mlx, out / "mlx"),
        contributions=load_each(names or usual),
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
    if body.unproven:
        name = body.unproven[0]
        fault = "or was skipped, and guards nothing" if name in body.guards else "and does not show the change"
        side = "fails on the base" if name in body.guards else "passes on the base"
        raise UserError(f"{name} {side} {fault} ({path})")
    known = f"{len(body.known)} known failures of the base" if body.known else "no failure of the base"
    kept = f", {len(body.kept)} pass on both" if body.kept else ""
    return Stored(path, f"{len(body.proven)} new tests fail on the base and pass with the series{kept}; {known}")


def record_metal(body: Body, command: str, evidence: Root = EVIDENCE) -> Path:
    """What was measured of the staged Metal kernels on this Mac."""
    return _store(body, command, evidence, kernel=METAL)


def _resumable(
    name: str,
    plan: Sequence[str],
    asked: object,
    measure: Callable[[Keeper], Body],
    command: str,
    evidence: Root,
    **about: Any,
) -> Measurement:
    """A measurement of our CUDA kernel on this machine, as it is now."""
    from upstream_patch.resuming import Measurement

    said = Console(stderr=True)
    return Measurement(
        name=name,
        plan=plan,
        asked=asked,
        measure=measure,
        command=command,
        machine=probe(),
        versions=versions(),
        kernel=identity(KERNEL),
        evidence=evidence,
        say=lambda line: said.print(line, style="yellow", markup=False),
        **about,
    )


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
