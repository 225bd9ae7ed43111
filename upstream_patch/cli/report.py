"""The verb of the report."""

from __future__ import annotations

import typer

from upstream_patch.cli.options import EVIDENCE, Check, Evidence, existing
from upstream_patch.errors import UserError

app = typer.Typer()


@app.command()
def report(check: Check = False, evidence: Evidence = EVIDENCE) -> None:
    """Write the page of what was measured, from facts: one HTML file, no script, no request."""
    from upstream_patch.records import facts, store
    from upstream_patch.report import page

    records = store.load_all(existing(evidence))
    found = facts.derive(records)
    if check:
        if difference := page.differences(evidence, found, records):
            raise UserError(f"{difference}: python -m upstream_patch report puts it right")
        return
    print(page.write(evidence, found, records))
