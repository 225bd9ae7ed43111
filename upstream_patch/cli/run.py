"""Verbs that compile, run, time or profile kernels on this machine."""

from __future__ import annotations

import json
import math
from typing import Annotated

import typer
from rich.console import Console

from upstream_patch.cli.options import EVIDENCE, OUT, SUITE, Evidence, Json, Out, Suite, command_line, existing

app = typer.Typer()


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has, and what each missing piece would enable."""
    from dataclasses import asdict

    from upstream_patch.machine import diagnose, probe

    if as_json:
        findings = [asdict(finding) for finding in diagnose()]
        print(json.dumps({"machine": probe().model_dump(), "findings": findings}, indent=2))
        return
    from upstream_patch.terminal import show_findings

    show_findings(Console(), diagnose())


@app.command()
def build(
    arch: Annotated[list[str] | None, typer.Option(help="e.g. sm_90; every supported one if left out.")] = None,
) -> None:
    """Compile every kernel with NVRTC and show registers, shared memory and spills. Needs no GPU."""
    from upstream_patch.compile import compile_all
    from upstream_patch.terminal import bar, compile_tables

    with bar("compiling") as advance:
        results = compile_all(arch or None, progress=advance)
    for table in compile_tables(results):
        Console().print(table)


@app.command()
def correctness(
    evidence: Evidence = EVIDENCE,
    full: Annotated[bool, typer.Option("--full", help="Every format with every M, dtype, layout and shape.")] = False,
) -> None:
    """Run the matrix on this machine's CUDA GPU and record it."""
    from upstream_patch.recording import record_correctness

    stored = record_correctness(command_line(), evidence, full)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def simulate(
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="For a nightly run: Metal in the whole cross of format, M, N, tile and layout, CUDA in 20,000 cases.",
        ),
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Time and memory a tile, too.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the covers: another one gives other cases.")] = None,
) -> None:
    """Run our CUDA kernel and MLX's Metal kernels on this machine's CPU, with race, bounds and barrier checks."""
    from upstream_patch.correctness import simulation
    from upstream_patch.terminal import bar

    with bar("simulating") as advance:
        summary = simulation.simulate(print, advance, full=full, seed=seed)
    if stats:
        print(summary.per_tile)
    print(simulation.verdict(summary))


@app.command()
def bench(
    suite: Suite = SUITE,
    evidence: Evidence = EVIDENCE,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Start no row after this; compiling is extra.")] = None,
    out: Out = OUT,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do not go on where a run stopped: measure every row.")
    ] = False,
) -> None:
    """Time stock against ours on this machine's CUDA GPU and record it. A run that was stopped is gone on with."""
    from upstream_patch.measure.graphs import one_graph_a_sample
    from upstream_patch.measure.suites import suite as known
    from upstream_patch.recording import record_bench

    known(suite)
    one_graph_a_sample()
    limit_s = math.inf if minutes is None else 60 * minutes
    stored = record_bench(command_line(), suite, evidence, limit_s, out, fresh)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def profile(evidence: Evidence = EVIDENCE) -> None:
    """Profile stock and ours with Nsight Compute and record it."""
    from upstream_patch.recording import record_profile

    stored = record_profile(command_line(), evidence)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def sanitize(evidence: Evidence = EVIDENCE, out: Out = OUT) -> None:
    """Run our kernel under compute-sanitizer's tools, outside MLX, and record it. Needs no MLX."""
    from upstream_patch.recording import record_sanitizer

    stored = record_sanitizer(command_line(), evidence, out / "sanitize")
    print(f"{stored.detail}: {stored.path}")


@app.command()
def peers(evidence: Evidence = EVIDENCE) -> None:
    """Time PyTorch's prepacked int4 against our kernel and record it. Needs PyTorch, not MLX."""
    from upstream_patch.recording import record_peers

    stored = record_peers(command_line(), evidence)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def contribution(suite: Suite = SUITE, out: Out = OUT, evidence: Evidence = EVIDENCE) -> None:
    """The main job: doctor, build, correctness, bench, profile, records, drafts, and a summary at the end."""
    from upstream_patch.contribution import Context
    from upstream_patch.contribution import contribution as run
    from upstream_patch.measure.graphs import one_graph_a_sample
    from upstream_patch.measure.suites import suite as known

    known(suite)
    one_graph_a_sample()
    existing(evidence)
    context = Context(evidence=evidence, out=out, console=Console(), command=command_line(), suite=suite)
    raise SystemExit(run(context))
