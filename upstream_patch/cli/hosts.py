"""Verbs of one machine's owner: everything that it can show, in one command."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from upstream_patch.cli.options import EVIDENCE, OUT, SUITE, Evidence, Out, Suite, command_line, existing
from upstream_patch.errors import UserError

app = typer.Typer()
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would run, check its names and shapes, run nothing.")]


@app.command()
def m5(
    dry_run: DryRun = False,
    model: Annotated[
        list[str] | None, typer.Option(help="A folder or Hub id of a model of the request's table; may come again.")
    ] = None,
    write_expected: Annotated[
        bool, typer.Option("--write-expected", help="For a maintainer: the simulator's digests, anew.")
    ] = False,
    out: Out = OUT,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Everything that an M5 can show: layout, bits, tests, correctness, operators, models; recorded."""
    if write_expected:
        from upstream_patch.correctness.simulated_fast import SimulatedMetalKernel
        from upstream_patch.files import write_text
        from upstream_patch.measure.m5 import bits, layout

        found = bits.computed(layout.digest(layout.probe(SimulatedMetalKernel)))
        write_text(bits.FILE, json.dumps(found, indent=1) + "\n")
        print(f"{bits.FILE.name} was written")
        return
    if dry_run:
        from upstream_patch.measure.m5.plan import plan
        from upstream_patch.routing_metal import M5

        planned = plan(M5, model or ())
        print("\n".join(planned.lines))
        if planned.faults:
            raise UserError(f"{len(planned.faults)} faults in the plan, first: {planned.faults[0]}")
        return
    from upstream_patch.contribution import Context, contribution
    from upstream_patch.contribution.m5 import stages
    from upstream_patch.measure.m5.models import entry

    for each in model or ():
        entry(each)
    existing(evidence)
    context = Context(evidence=evidence, out=out, console=Console(), command=command_line())
    raise SystemExit(contribution(context, stages(model or ())))


@app.command()
def gb10(dry_run: DryRun = False, suite: Suite = SUITE, out: Out = OUT, evidence: Evidence = EVIDENCE) -> None:
    """Everything that a GB10 can show: build, correctness, sanitizers, times, profiles, peers, decode; recorded."""
    from upstream_patch.contribution import Context, contribution
    from upstream_patch.contribution.gb10 import stages
    from upstream_patch.measure.graphs import one_graph_a_sample
    from upstream_patch.measure.suites import suite as known

    rows = len(known(suite).rows)
    if dry_run:
        for stage in stages():
            print(f"{stage.name}" + (f": {rows} rows of {suite}" if stage.name == "bench" else ""))
        return
    one_graph_a_sample()
    existing(evidence)
    context = Context(evidence=evidence, out=out, console=Console(), command=command_line(), suite=suite)
    raise SystemExit(contribution(context, stages()))
