"""Verbs that say whether a draft may go out: its gates, excuses for them, and upstream's rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from upstream_patch.cli.draft import Draft, Work, document
from upstream_patch.cli.options import CONTRIBUTION, EVIDENCE, OUT, Contributed, Evidence, Json, existing

app = typer.Typer()
rules_app = typer.Typer(help="MLX's rules for contributors: what they are, and whether you have read today's.")


@app.command()
def status(
    drafts: Annotated[list[str] | None, typer.Argument(help="issue, pr, link-back, docs; all if left out.")] = None,
    contribution: Contributed = CONTRIBUTION,
    out: Work = OUT,
    evidence: Evidence = EVIDENCE,
    as_json: Json = False,
) -> None:
    """Show every gate of the drafts: what is red, why, and the way out. When all of a draft are open: `file`."""
    from dataclasses import asdict

    from rich.console import Console

    from upstream_patch.draft import contributions, gates
    from upstream_patch.terminal import show_gates

    about = contributions.named(contribution)
    found = gates.status(out / "drafts", existing(evidence), drafts or (), about=about)
    if as_json:
        print(json.dumps([asdict(gate) | {"open": gate.open} for gate in found], indent=2))
    else:
        show_gates(Console(), found)


@app.command()
def excuse(
    draft: Draft,
    gate: Annotated[str, typer.Argument(help="A gate that `status` shows red.")],
    because: Annotated[str, typer.Option(help="Your reason; it holds for the draft as it is now.")],
    contribution: Contributed = CONTRIBUTION,
    out: Work = OUT,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Record why a red gate is passed over. Any change to what the gate looks at takes the excuse away."""
    from upstream_patch.draft import gates

    about = document(draft, contribution).contribution
    path = gates.excuse(draft, gate, because, out / "drafts", existing(evidence), about=about)
    print(f"{path}: recorded; `status {draft}{about.option}` shows it")


@rules_app.command("show")
def rules_show() -> None:
    """List the rules, where they stand, and the gate that enforces each."""
    from upstream_patch.draft import rules

    for rule in rules.rules().rules:
        print(f"{rule.id}: {rule.says}\n    gate: {rule.gate}")
        for place in rule.stands:
            print(f"    {place.file}{f' at {place.commit}' if place.commit else ''}")


@rules_app.command("refresh")
def rules_refresh(
    mlx: Annotated[Path, typer.Option(help="A clone of MLX, at the head of its main branch.")],
    read: Annotated[
        str | None, typer.Option(help="What an earlier refresh printed: you have read those files.")
    ] = None,
    out: Work = OUT,
) -> None:
    """Show how upstream's rules changed since you read them. --read with the printed word turns the gate green."""
    from upstream_patch.draft import rules

    for line in rules.refresh(out / "drafts", existing(mlx), read):
        print(line)
