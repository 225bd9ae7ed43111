"""Verbs of the Metal contribution."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from upstream_patch.cli.options import Json
from upstream_patch.errors import UserError

app = typer.Typer()


@app.command()
def reproduce(as_json: Json = False) -> None:
    """Show two faults of stock MLX's Metal kernels in the simulator, for other reports: no GPU has shown them yet."""
    from dataclasses import asdict

    from upstream_patch.correctness.stock_faults import observe

    found = list(observe())
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=2))
        return
    for each in found:
        print(f"{each.id}  {each.value if isinstance(each.value, str) else f'{each.value:.12g}'} {each.unit}")


@app.command("metal-cost")
def metal_cost(
    problem: Annotated[list[str] | None, typer.Argument(help="Ids, e.g. 4096x4096.b4.g64.bf16.M16.")] = None,
    gpu: Annotated[str, typer.Option(help="As MLX names it: s is a Max, d an Ultra.")] = "applegpu_g17s",
) -> None:
    """Count threadgroups, barriers, bytes and registers of a problem, stock against staged: a prediction."""
    from upstream_patch.measure.forecast.metal import report
    from upstream_patch.measure.suites import REQUESTED
    from upstream_patch.problem import parse_problem
    from upstream_patch.routing_metal import apple_gpu

    device = apple_gpu(gpu, (26, 2))
    if device is None:
        raise UserError(f"{gpu!r} is no architecture of an Apple GPU: it has the form applegpu_g17s")
    try:
        asked = [parse_problem(each) for each in problem or ()] or list(REQUESTED)
        print(report(asked, device, gpu))
    except ValueError as error:
        raise UserError(str(error)) from None
