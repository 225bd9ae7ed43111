"""Verbs that write files for a person to finish."""

from __future__ import annotations

import typer

from upstream_patch.cli.options import EVIDENCE, OUT, Evidence, Out, read_facts

app = typer.Typer(help="Files for a person to finish: facts filled in, prose left as holes.")


@app.command("issue")
def draft_issue(out: Out = OUT, evidence: Evidence = EVIDENCE) -> None:
    """Write the issue's fact sheet: tables from facts, prose as holes for a person."""
    from upstream_patch.draft import issue

    path = issue.write(out / "drafts", read_facts(evidence))
    print(f"{path}: {len(issue.open_holes(path))} holes are open, for a person")
