"""Verbs that write files for a person to finish, and say what is still missing in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from upstream_patch.cli.options import (
    CONTRIBUTION,
    EVIDENCE,
    OUT,
    Contributed,
    Evidence,
    Out,
    existing,
    folders,
    read_facts,
)
from upstream_patch.errors import UserError

if TYPE_CHECKING:
    from upstream_patch.draft.documents import Document

app = typer.Typer(
    help="Files for a person to finish: facts filled in, prose left as holes. In this order: `draft issue`, your "
    "words, `rules refresh`, `duplicates`, `status`, `file issue`; then `draft pr`, `draft link-back` and `draft docs` "
    "the same way. With --contribution metal it is the change for Apple GPUs, which has an issue and a pull request."
)
Work = Annotated[Path, typer.Option("--out", help="The folder that drafts were written to.")]
Draft = Annotated[str, typer.Argument(help="issue, pr, link-back or docs.")]


@app.command("issue")
def draft_issue(contribution: Contributed = CONTRIBUTION, out: Out = OUT, evidence: Evidence = EVIDENCE) -> None:
    """Write the issue: MLX's form, tables from facts, prose as holes for a person. Next: fill them, then `status`."""
    _write(document("issue", contribution), out, evidence)


@app.command("pr")
def draft_pr(contribution: Contributed = CONTRIBUTION, out: Out = OUT, evidence: Evidence = EVIDENCE) -> None:
    """Write the pull request's description. It needs the filed issue, your branch, and a build with the series.

    Next: `series apply`, your commit, `series drift`, then `status`.
    """
    _write(document("pr", contribution), out, evidence)


@app.command("link-back")
def draft_link_back(contribution: Contributed = CONTRIBUTION, out: Out = OUT, evidence: Evidence = EVIDENCE) -> None:
    """Write the comment for lablup/mlxcel #725, once the issue and the pull request are filed. Next: `status`."""
    _write(document("link-back", contribution), out, evidence)


@app.command("docs")
def draft_docs(
    doc: Annotated[
        Path | None, typer.Option(help="docs/CONTINUOUS_BATCHING.md of a checkout of lablup/mlxcel.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="The machine of the note, as hosts are named: gb10.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Edit the doc, when every gate of the note is open.")] = False,
    contribution: Contributed = CONTRIBUTION,
    out: Out = OUT,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Write the note on CUDA for the downstream doc; with --doc show the edit, with --write too make it.

    Next: `status`, then --doc PATH --write. It is the last step.
    """
    from upstream_patch.draft import docs

    note, work = document("docs", contribution), out / "drafts"
    if write and doc is None:
        raise UserError("--write needs the doc: --doc PATH")
    if device is not None:
        docs.name(work, device)
    written = _write(note, out, evidence)
    if doc is None:
        return
    before, after = docs.edited(doc, written, work)
    patch = docs.store_diff(work, doc, before, after)
    print(patch.read_text(encoding="utf-8") or f"{doc} has this note already", end="")
    if write:
        docs.put(doc, work, existing(evidence))
        print(f"{doc} was edited; commit it in your own words: that was the last step")
    else:
        then = f"upstream-patch status docs{folders(out, evidence)}"
        print(f"\n{patch}: nothing was changed; next: {then}, and when all is open, --write")


@app.command("claims")
def draft_claims(
    draft: Draft,
    matched: Annotated[bool, typer.Option("--matched", help="Show, too, which fact each of the others is.")] = False,
    contribution: Contributed = CONTRIBUTION,
    out: Work = OUT,
    evidence: Evidence = EVIDENCE,
) -> None:
    """List every number, comparison and device in a draft's prose that no fact bears out. Exits 1 when there is one.

    Next: correct them, or put <!-- fact ID --> behind what is right and listed (`facts` has the ids), then `status`.
    """
    from upstream_patch.draft import claims, managed

    drafted, facts = document(draft, contribution), read_facts(evidence)
    path = existing(out / "drafts" / drafted.file, folder=False)
    judged = claims.judge(managed.read(path), drafted.contribution.of(facts), drafted.about(out / "drafts"))
    wrong = [one for one in judged if isinstance(one, claims.Remark)]
    for one in judged if matched else wrong:
        print(f"{path}: {one}")
    told = (
        f"{len(wrong)} claims without a fact: correct them, or put <!-- fact ID --> behind what is right"
        if wrong
        else "every number is a fact within its rounding"
    )
    print(f"{told}; next: upstream-patch status {draft}{drafted.contribution.option}{folders(out, evidence)}")
    raise SystemExit(1 if wrong else 0)


def _write(drafted: Document, out: Path, evidence: Path) -> Path:
    from upstream_patch.draft import proving
    from upstream_patch.records import facts, store

    records, about = store.load_all(existing(evidence)), drafted.contribution
    derived = facts.derive(records)
    proving.refresh(out / "drafts", records, about.of(derived), about)
    path = drafted.write(out / "drafts", derived)
    then = drafted.still_open(path) or "no hole is open"
    print(f"{path}: {then}; next: upstream-patch status {drafted.name}{about.option}{folders(out, evidence)}")
    return path


def document(name: str, contribution: str = CONTRIBUTION) -> Document:
    """The draft of that name. Raises UserError where there is none."""
    from upstream_patch.draft import contributions, documents

    return documents.find(name, contributions.named(contribution))
