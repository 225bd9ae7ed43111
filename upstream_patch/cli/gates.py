"""Verbs that say whether a draft may go out: its gates, excuses for them, and upstream's rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from upstream_patch.cli.draft import Draft, Work, document
from upstream_patch.cli.options import CONTRIBUTION, EVIDENCE, OUT, Contributed, Evidence, Json, existing, folders

if TYPE_CHECKING:
    from upstream_patch.draft.contributions import Contribution
    from upstream_patch.draft.gates import Gate
    from upstream_patch.draft.inputs import Filed

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
    """Show every gate of the drafts: what is red, why, the way out, and what to do next. When all are open: `file`."""
    from dataclasses import asdict

    from rich.console import Console

    from upstream_patch.draft import contributions, documents, gates, inputs
    from upstream_patch.terminal import show_gates

    about = contributions.named(contribution)
    found = gates.status(out / "drafts", existing(evidence), drafts or (), about=about)
    if as_json:
        print(json.dumps([asdict(gate) | {"open": gate.open} for gate in found], indent=2))
    else:
        show_gates(Console(), found)
        filed = inputs.read(out / "drafts", about.key("filed"), inputs.Filed) or inputs.Filed()
        for draft in drafts or documents.all_of(about):
            print(_next(draft, [gate for gate in found if gate.draft == draft], filed, about, folders(out, evidence)))


_SENT_BY = {
    "issue": "file issue",
    "pr": "file pr --head BRANCH",
    "link-back": "link",
    "docs": "draft docs --doc PATH --write",
}
"""Draft -> the verb that it is finished for."""


def _next(draft: str, gates: Sequence[Gate], filed: Filed, about: Contribution, where: str) -> str:
    """One line: where a draft stands, and what comes next, with the options ``where``."""
    sent, then = {"issue": (filed.issue, "pr"), "pr": (filed.pr, "link-back")}.get(draft, (None, ""))
    if sent:
        ends = about.refused.get(then)
        onward = f"no {then}: {ends}" if ends else f"next: upstream-patch draft {then}{about.option}{where}"
        return f"{draft}: filed as {sent.url}; {onward}"
    closed = [gate for gate in gates if not gate.open]
    if closed:
        return f"{draft}: {len(closed)} of {len(gates)} gates are not open; next: {closed[0].fix}"
    return f"{draft}: every gate is open; next: upstream-patch {_SENT_BY[draft]}{about.option}{where}"


@app.command()
def excuse(
    draft: Draft,
    gate: Annotated[str, typer.Argument(help="A gate that `status` shows red.")],
    because: Annotated[str, typer.Option(help="Your reason; it holds for the draft as it is now.")],
    contribution: Contributed = CONTRIBUTION,
    out: Work = OUT,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Record, at a terminal, why a red gate is passed over. Any change of what it looks at or finds takes it away.

    Next: `status`.
    """
    from upstream_patch.draft import gates
    from upstream_patch.filing.person import Terminal

    about = document(draft, contribution).contribution
    Terminal("excuse a gate")
    path = gates.excuse(draft, gate, because, out / "drafts", existing(evidence), about=about)
    print(f"{path}: recorded; next: upstream-patch status {draft}{about.option}{folders(out, evidence)}")


@rules_app.command("show")
def rules_show() -> None:
    """List the rules, where they stand, and the gate that enforces each. Next: `rules refresh`."""
    from upstream_patch.draft import rules

    for rule in rules.rules().rules:
        print(f"{rule.id}: {rule.says}\n    gate: {rule.gate}")
        for place in rule.stands:
            print(f"    {place.file}{f' at {place.commit}' if place.commit else ''}")
    print(f"next: {rules.REFRESH}")


@rules_app.command("refresh")
def rules_refresh(
    mlx: Annotated[Path, typer.Option(help="A clone of MLX, at the head of its main branch.")],
    read: Annotated[
        str | None, typer.Option(help="What an earlier refresh printed: you have read those files.")
    ] = None,
    out: Work = OUT,
) -> None:
    """Show how upstream's rules changed since you read them. --read with the printed word turns the gate green, at a
    terminal.

    Next: `status`.
    """
    from upstream_patch.draft import rules
    from upstream_patch.filing.person import Terminal

    if read is not None:
        Terminal("say that the rules were read")
    for line in rules.refresh(out / "drafts", existing(mlx), read):
        print(line)
    if read is not None:
        print(f"next: upstream-patch status{folders(out)}")
