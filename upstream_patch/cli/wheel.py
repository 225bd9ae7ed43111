"""Verbs of the wheel build: the series' host code in a released MLX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from upstream_patch.cli.options import EVIDENCE, Evidence, command_line, existing

app = typer.Typer(invoke_without_command=True)


@app.callback()
def wheel(context: typer.Context) -> None:
    """The series' CUDA host code, built against a released MLX and hooked into it; alone: run."""
    if context.invoked_subcommand is None:
        wheel_run()


@app.command("build")
def wheel_build(
    out: Annotated[Path | None, typer.Option(help="Folder to put it in, e.g. to carry it to a GPU host.")] = None,
) -> None:
    """Compile the host code against MLX's headers and link it to its library. Needs g++ and no GPU."""
    from upstream_patch.series.wheel import build

    print(build(folder=out))


@app.command("run")
def wheel_run(
    built: Annotated[
        Path | None, typer.Option(help="The library that `wheel build` made; built here if left out.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Only every n-th case of the matrix.")] = 1,
    decode: Annotated[bool, typer.Option("--decode/--no-decode", help="Decode with mlx-lm's Llama, too.")] = True,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Run the matrix, the timing and the decoding through it on this machine's CUDA GPU, and record them."""
    from upstream_patch.measure.graphs import one_graph_a_sample
    from upstream_patch.recording import record_wheel

    one_graph_a_sample()
    if built is not None:
        existing(built, folder=False)
    stored = record_wheel(command_line(), evidence, built, every, decode)
    print(f"{stored.detail}: {stored.path}")
