"""The verb that measures whole models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from upstream_patch.cli.options import EVIDENCE, OUT, Evidence, Fresh, Out, command_line, existing
from upstream_patch.errors import UserError

app = typer.Typer()


@app.command()
def decode(
    shape: Annotated[
        list[str] | None, typer.Option(help="Random weights in this shape; llama-3.1-8b and llama-3.2-1b if left out.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="A folder of quantized weights for mlx-lm, instead.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, max=256, help="Sequences; nine sizes if left out.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.5, help="In all; what is not reached is named.")] = None,
    evidence: Evidence = EVIDENCE,
    out: Out = OUT,
    fresh: Fresh = False,
) -> None:
    """Time batched decode of whole models through mlx-lm on this machine's CUDA GPU and record it. A run that was
    stopped is gone on with."""
    from upstream_patch.measure.decode import shapes
    from upstream_patch.recording import record_decode

    if model is not None and shape:
        raise UserError("--shape is for random weights, --model for a folder's: give one of the two")
    names = [str(existing(model))] if model is not None else list(shape or shapes.SHAPES)
    if model is None:
        for name in names:
            shapes.shape(name)
    limit_s = math.inf if minutes is None else 60 * minutes
    sizes = tuple(sorted(set(batch or shapes.BATCHES)))
    stored = record_decode(command_line(), names, sizes, evidence, limit_s, out, fresh)
    print(f"{stored.detail}: {stored.path}")
