"""Verbs that search upstream and send what a person finished: at a terminal, after they typed where to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from upstream_patch.cli.draft import Work, document
from upstream_patch.cli.options import CONTRIBUTION, EVIDENCE, OUT, Contributed, Evidence, existing, folders

if TYPE_CHECKING:
    from upstream_patch.draft.contributions import Contribution
    from upstream_patch.filing.desk import Desk
    from upstream_patch.filing.send import Sent

app = typer.Typer()
file_app = typer.Typer(
    help="File what you finished: `duplicates`, `status`, `file issue`; then `draft pr`, push your branch, `file pr`, "
    "`link`. You type the repository's name; nothing is ever pushed. GH_TOKEN is your token."
)
Rehearse = Annotated[str, typer.Option(metavar="OWNER/FORK", help="Send it to your own fork of MLX instead.")]
Edition = Annotated[int, typer.Option(min=1, help="2 and on: another text, after the one before was closed.")]


@file_app.command("issue")
def file_issue(
    rehearse: Rehearse = "",
    edition: Edition = 1,
    contribution: Contributed = CONTRIBUTION,
    out: Work = OUT,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Send the issue, when every gate is open and you have typed where to. Next: `draft pr`."""
    about = document("issue", contribution).contribution
    _sent(rehearse, edition, about, out, evidence, lambda desk: desk.issue(), "file issue", "draft pr")


@file_app.command("pr")
def file_pr(
    head: Annotated[str, typer.Option(help="The branch that you pushed to your fork.")],
    fork: Annotated[
        str, typer.Option(metavar="OWNER/FORK", help="Where the branch is; yours of MLX if left out.")
    ] = "",
    rehearse: Rehearse = "",
    edition: Edition = 1,
    contribution: Contributed = CONTRIBUTION,
    out: Work = OUT,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Send the pull request, as a draft, like the issue; you mark it ready on its page. Next: `draft link-back`."""
    about, verb = document("pr", contribution).contribution, f"file pr --head {head}"
    _sent(rehearse, edition, about, out, evidence, lambda desk: desk.pull(head, fork), verb, "draft link-back")


@app.command()
def link(
    rehearse: Rehearse = "",
    edition: Edition = 1,
    contribution: Contributed = CONTRIBUTION,
    out: Work = OUT,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Send the comment for lablup/mlxcel #725, when every gate is open and you have typed where to.

    Next: `draft docs`.
    """
    about = document("link-back", contribution).contribution
    _sent(rehearse, edition, about, out, evidence, lambda desk: desk.link(), "link", "draft docs --doc PATH")


@app.command()
def duplicates(
    draft: Annotated[str, typer.Argument(help="issue or pr: what you are about to file.")],
    query: Annotated[list[str] | None, typer.Option(help="Words to search for, instead of the usual ones.")] = None,
    contribution: Contributed = CONTRIBUTION,
    out: Work = OUT,
) -> None:
    """Search MLX's issues and pull requests, open and closed, for the same subject. Next: read them, then `status`."""
    from upstream_patch import github
    from upstream_patch.errors import UserError
    from upstream_patch.filing import duplicates as room

    if draft not in ("issue", "pr"):
        raise UserError(f"no search for {draft}: issue or pr")
    about = document(draft, contribution).contribution
    with github.connect() as client:
        path, found = room.search(draft, out / "drafts", client, github.Clock(), query or (), about)
    hits = room.hits(found)
    for hit in hits:
        print(f"#{hit.number}  {hit.kind}, {hit.state}  {hit.title}\n    {hit.url}")
    told = "read each, and say in your words how yours differs" if hits else "nothing says the same"
    print(f"{path}: {len(hits)} hits: {told}; next: upstream-patch status {draft}{about.option}{folders(out)}")


def _sent(
    rehearse: str,
    edition: int,
    about: Contribution,
    out: Path,
    evidence: Path,
    act: Callable[[Desk], Sent],
    verb: str,
    then: str,
) -> None:
    from upstream_patch import github
    from upstream_patch.filing.desk import Desk
    from upstream_patch.filing.person import Terminal

    person = Terminal()
    with github.connect() as client:
        desk = Desk(out / "drafts", existing(evidence), client, person, github.Clock(), edition, rehearse, about)
        sent = act(desk)
    where = f"{about.option}{folders(out, evidence)}"
    print(f"{sent.url} {'is there now' if sent.created else 'was there already: nothing was sent'}")
    if rehearse:
        print(f"it was a rehearsal: close it when you have seen it; next: upstream-patch {verb}{where}")
    else:
        ends = about.refused.get(then.split()[1])
        print(f"no {then}: {ends}" if ends else f"next: upstream-patch {then}{where}")
