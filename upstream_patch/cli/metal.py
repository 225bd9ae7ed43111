"""Verbs of the Metal contribution."""

from __future__ import annotations

import json

import typer

from upstream_patch.cli.options import Json

app = typer.Typer()


@app.command()
def reproduce(as_json: Json = False) -> None:
    """Show two faults of stock MLX's Metal kernels in the simulator, as facts for reports of their own."""
    from dataclasses import asdict

    from upstream_patch.correctness.stock_faults import observe

    found = list(observe())
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=2))
        return
    for each in found:
        print(f"{each.id}  {each.value if isinstance(each.value, str) else f'{each.value:.12g}'} {each.unit}")
