"""The stages of the main job, in order. Each only calls its room and says what came out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from upstream_patch.contribution.chain import Context, Outcome, Result, Stage
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.recording import Stored


def _doctor(context: Context) -> Result:
    from upstream_patch.machine import diagnose
    from upstream_patch.terminal import show_findings

    with context.console.status("asking this machine"):
        findings = diagnose()
    show_findings(context.console, findings)
    missing = [finding.name for finding in findings if not finding.ok]
    detail = f"{len(findings) - len(missing)} of {len(findings)} pieces are here"
    return Result(Outcome.RAN, f"{detail}; missing: {', '.join(missing)}" if missing else detail)


def _build(context: Context) -> Result:
    from upstream_patch.compile import compile_all, nvrtc
    from upstream_patch.terminal import bar, compile_tables

    with bar("compiling") as advance:
        results = compile_all(progress=advance)
    for table in compile_tables(results):
        context.console.print(table)
    kernels = len({result.variant for result in results})
    archs = list(dict.fromkeys(result.arch for result in results))
    spilling = len({result.variant for result in results if result.spills})
    spills = f"{spilling} of them spill registers" if spilling else "no spills"
    compiled = f"{kernels} kernels for {', '.join(archs)} compile with NVRTC {nvrtc().version}; {spills}"
    return Result(Outcome.RAN, f"{compiled}; {_host_code(context)}")


def _host_code(context: Context) -> str:
    """The series in MLX: built from source where a checkout is named, else its host code against the released wheel."""
    if context.mlx is not None:
        from upstream_patch.recording import record_build

        stored = record_build(context.command, context.mlx, context.evidence, context.out)
        return f"{stored.detail}: {stored.path}"
    from upstream_patch.series.wheel import build, find_mlx_library

    mlx = find_mlx_library()
    if mlx is None:
        return "the series' host code was not built: no MLX for CUDA here, and no --mlx"
    try:
        build(mlx)
    except MissingTool as error:
        return f"the series' host code was not built: {error}"
    return f"the series' host code is built and linked to MLX {mlx.version}"


def _measured(kind: str, record: Callable[[Context], Stored]) -> Callable[[Context], Result]:
    """A stage that needs a CUDA GPU; without one it rests on what is committed."""

    def run(context: Context) -> Result:
        try:
            stored = record(context)
        except MissingTool as error:
            return _committed(kind, context, error)
        return Result(Outcome.RAN, f"{stored.detail}: {stored.path}")

    return run


def _committed(kind: str, context: Context, missing: MissingTool) -> Result:
    from upstream_patch.records import facts, store

    records = store.load_all(context.evidence)
    stale = [fact for fact in facts.derive(records) if fact.stale]
    kernel = {fact.record_path for fact in stale if not fact.id.startswith("host.")}
    dispatch = {fact.record_path for fact in stale} - kernel
    newest: dict[str, str] = {}
    for loaded in records:
        record = loaded.record
        if record.body.kind == kind:
            word = ", STALE: the kernel changed since" if loaded.path in kernel else ""
            word = ", host cost STALE: not of today's dispatch" if loaded.path in dispatch else word
            newest[record.host] = f"{record.created:%Y-%m-%d}{word}"
    if not newest:
        return Result(Outcome.SKIPPED, f"{missing.what}; no committed record either", missing.fix)
    whose = "; ".join(f"{host} of {day}" for host, day in newest.items())
    return Result(Outcome.RECORDS, f"{whose} (here: {missing.what})")


def _correctness(context: Context) -> Stored:
    from upstream_patch.recording import record_correctness

    return record_correctness(context.command, context.evidence, out=context.out)


def _simulate(context: Context) -> Result:
    from upstream_patch.correctness import simulation
    from upstream_patch.terminal import bar

    with bar("simulating") as advance:
        summary = simulation.simulate(lambda line: context.console.print(line, style="red", markup=False), advance)
    return Result(Outcome.RAN, simulation.verdict(summary))


def _sanitize(context: Context) -> Stored:
    from upstream_patch.recording import record_sanitizer

    return record_sanitizer(context.command, context.evidence, context.out / "sanitize", context.out)


def _peers(context: Context) -> Stored:
    from upstream_patch.recording import record_peers

    return record_peers(context.command, context.evidence, context.out)


def _wheel(context: Context) -> Stored:
    from upstream_patch.recording import record_wheel

    return record_wheel(context.command, context.evidence)


def _bench(context: Context) -> Stored:
    from upstream_patch.recording import record_bench

    return record_bench(context.command, context.suite, context.evidence, out=context.out)


def _profile(context: Context) -> Stored:
    from upstream_patch.recording import record_profile

    return record_profile(context.command, context.evidence, context.out)


def _decode(context: Context) -> Stored:
    """The verb, in a process of its own: MLX reads its graph limits once, and this process's are the benchmark's."""
    from upstream_patch.measure.decode.lm import lm
    from upstream_patch.measure.graphs import as_given
    from upstream_patch.recording import require_cuda

    require_cuda()
    lm("_version")
    verb = ["-m", "upstream_patch", "decode", "--evidence", str(context.evidence), "--out", str(context.out)]
    last = ""
    with subprocess.Popen(
        [sys.executable, *verb], env=as_given(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        try:
            for line in child.stderr:
                sys.stderr.write(line)
                last = line.strip() or last
            said = child.stdout.read().strip()
        except BaseException:
            child.terminate()  # it keeps what was measured
            raise
    last = last.removeprefix("error: ")
    if child.returncode == MissingTool.exit_code:
        what, _, fix = last.partition(": ")
        raise MissingTool(what, fix)
    if child.returncode != 0:
        raise UserError(last or f"it ended with code {child.returncode} and no word")
    detail, _, path = said.rpartition("\n")[2].rpartition(": ")
    return Stored(Path(path), detail)


def _verify(context: Context) -> Result:
    from upstream_patch.records import facts, store

    findings = store.verify(context.evidence)
    for finding in findings:
        context.console.print(str(finding), style="red", markup=False)
    if findings:
        raise UserError(f"{len(findings)} faults in {context.evidence}, first: {findings[0]}")
    records = store.load_all(context.evidence)
    if not records:
        return Result(Outcome.RAN, "there is no record yet")
    said = f"{len(records)} records are as they were written and give {len(facts.derive(records))} facts"
    return Result(Outcome.RAN, said)


def _report(context: Context) -> Result:
    from upstream_patch.records import facts, store
    from upstream_patch.report import page

    records = store.load_all(context.evidence)
    found = facts.derive(records)
    base = store.folder_of(context.evidence)
    path = base / page.FILE
    if page.differences(base, found, records):
        # not over the committed one: a record that is made next must not find the checkout changed
        path = page.write(base, found, records, context.out / page.FILE)
    return Result(Outcome.RAN, f"{path} shows what {len(records)} records say; open it in a browser")


def _draft(name: str) -> Callable[[Context], Result]:
    def run(context: Context) -> Result:
        from upstream_patch.draft import proving
        from upstream_patch.draft.documents import DOCUMENTS
        from upstream_patch.records import facts, store

        document, records = DOCUMENTS[name], store.load_all(context.evidence)
        derived = facts.derive(records)
        proving.refresh(context.out / "drafts", records, document.contribution.of(derived))
        path = document.write(context.out / "drafts", derived)
        detail = f"{path}: facts are filled in; {document.still_open(path) or 'no hole is open'}"
        return Result(Outcome.RAN, detail, f"upstream-patch status {name}")

    return run


STAGES = (
    Stage("doctor", _doctor),
    Stage("build", _build),
    Stage("correctness", _measured("correctness", _correctness), needs=("build",)),
    Stage("simulate", _simulate),
    Stage("sanitize", _measured("sanitizer", _sanitize), needs=("build",)),
    Stage("bench", _measured("bench", _bench), needs=("correctness",)),
    Stage("run host code", _measured("wheel", _wheel), needs=("build", "correctness")),
    Stage("profile", _measured("ncu", _profile), needs=("correctness",)),
    Stage("peers", _measured("peer", _peers), needs=("correctness",)),
    Stage("decode", _measured("decode", _decode), needs=("correctness",)),
    Stage("records verify", _verify),
    Stage("report", _report, needs=("records verify",)),
    Stage("draft issue", _draft("issue"), needs=("records verify",)),
    Stage("draft pr", _draft("pr"), needs=("records verify",)),
    Stage("draft docs", _draft("docs"), needs=("records verify",)),
)
