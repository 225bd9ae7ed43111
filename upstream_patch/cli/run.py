"""Verbs that compile, run, time or profile kernels on this machine."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from upstream_patch.cli.options import EVIDENCE, OUT, SUITE, Evidence, Fresh, Json, Out, Suite, command_line, existing
from upstream_patch.errors import UserError

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
    mlx: Annotated[str | None, typer.Option("--mlx", help="Build MLX from this clone, or address of one.")] = None,
    backend: Annotated[str | None, typer.Option(help="With --mlx: cuda or metal; this machine's if left out.")] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="With --mlx: a contribution; the backend's if left out.")
    ] = None,
    evidence: Evidence = EVIDENCE,
    out: Out = OUT,
) -> None:
    """Compile every kernel with NVRTC; no GPU needed. With --mlx, build and test MLX with the series and without.

    Next: `correctness`; after --mlx, `draft pr`.
    """
    if mlx is not None:
        build_mlx(mlx, backend, name, evidence, out)
        return
    from upstream_patch.compile import compile_all
    from upstream_patch.terminal import bar, compile_tables

    with bar("compiling") as advance:
        results = compile_all(arch or None, progress=advance)
    for table in compile_tables(results):
        Console().print(table)


def build_mlx(mlx: str, backend: str | None, names: list[str] | None, evidence: Path, out: Path) -> None:
    from upstream_patch.recording import record_build

    if backend not in (None, "cuda", "metal"):
        raise UserError(f"no backend {backend}; known: cuda, metal")
    known: Literal["cuda", "metal"] | None = "cuda" if backend == "cuda" else "metal" if backend == "metal" else None
    stored = record_build(command_line(), mlx, evidence, out, names or (), known)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def correctness(
    evidence: Evidence = EVIDENCE,
    full: Annotated[bool, typer.Option("--full", help="Every format with every M, dtype, layout and shape.")] = False,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="With --full: start no further case after it.")] = None,
    out: Out = OUT,
    fresh: Fresh = False,
) -> None:
    """Run the matrix on this machine's CUDA GPU and record it. A run that was stopped is gone on with."""
    from upstream_patch.recording import record_correctness

    stored = record_correctness(command_line(), evidence, full, _seconds(minutes), out, fresh)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def simulate(
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="For a nightly run: MLX's Metal kernels in the whole cross of format, M, N, tile and layout, ours in "
            "that of format, M, N and K, CUDA in 20,000 cases, and every launch whose bits an H200's record holds.",
        ),
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Time and memory a tile, too.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the covers: another one gives other cases.")] = None,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Run our kernels, and MLX's for Metal, on this machine's CPU, with race, bounds and barrier checks."""
    from upstream_patch.correctness import simulation
    from upstream_patch.terminal import bar

    with bar("simulating") as advance:
        summary = simulation.simulate(
            print, advance, full=full, seed=seed, evidence=existing(evidence) if full else evidence
        )
    if stats:
        print(summary.per_tile)
    if summary.bits_said:
        print(summary.bits_said)
    print(simulation.verdict(summary))


@app.command()
def bench(
    suite: Suite = SUITE,
    evidence: Evidence = EVIDENCE,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Start no row after this; compiling is extra.")] = None,
    out: Out = OUT,
    fresh: Fresh = False,
) -> None:
    """Time stock against ours on this machine's CUDA GPU and record it. A run that was stopped is gone on with."""
    from upstream_patch.measure.graphs import one_graph_a_sample
    from upstream_patch.measure.suites import suite as known
    from upstream_patch.recording import record_bench

    known(suite)
    one_graph_a_sample()
    stored = record_bench(command_line(), suite, evidence, _seconds(minutes), out, fresh)
    print(f"{stored.detail}: {stored.path}")


def _seconds(minutes: float | None) -> float:
    return math.inf if minutes is None else 60 * minutes


@app.command()
def profile(evidence: Evidence = EVIDENCE, out: Out = OUT, fresh: Fresh = False) -> None:
    """Profile stock and ours with Nsight Compute and record it. A run that was stopped is gone on with."""
    from upstream_patch.recording import record_profile

    stored = record_profile(command_line(), evidence, out, fresh)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def sanitize(evidence: Evidence = EVIDENCE, out: Out = OUT, fresh: Fresh = False) -> None:
    """Run our kernel under compute-sanitizer's tools, outside MLX, and record it. Needs no MLX. A run that was stopped
    is gone on with."""
    from upstream_patch.recording import record_sanitizer

    stored = record_sanitizer(command_line(), evidence, out / "sanitize", out, fresh)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def peers(evidence: Evidence = EVIDENCE, out: Out = OUT, fresh: Fresh = False) -> None:
    """Time PyTorch's prepacked int4 against our kernel and record it. Needs PyTorch, not MLX. A run that was stopped is
    gone on with."""
    from upstream_patch.recording import record_peers

    stored = record_peers(command_line(), evidence, out, fresh)
    print(f"{stored.detail}: {stored.path}")


@app.command()
def contribution(
    suite: Suite = SUITE,
    out: Out = OUT,
    evidence: Evidence = EVIDENCE,
    mlx: Annotated[str | None, typer.Option("--mlx", help="Build MLX from this clone, or address of one.")] = None,
) -> None:
    """The main job: doctor, build, correctness, bench, profile, records, drafts, and a summary at the end."""
    from upstream_patch.contribution import Context
    from upstream_patch.contribution import contribution as run
    from upstream_patch.measure.graphs import one_graph_a_sample
    from upstream_patch.measure.suites import suite as known

    known(suite)
    one_graph_a_sample()
    existing(evidence)
    context = Context(evidence=evidence, out=out, console=Console(), command=command_line(), suite=suite, mlx=mlx)
    raise SystemExit(run(context))
