"""Verbs for the change to an MLX checkout."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from upstream_patch.cli.options import (
    CONTRIBUTION,
    EVIDENCE,
    OUT,
    Contributed,
    Evidence,
    Json,
    Out,
    folders,
    read_facts,
)
from upstream_patch.errors import UserError

if TYPE_CHECKING:
    from upstream_patch.series import Contribution, Item, Plan
    from upstream_patch.series.checkout import Checkout
    from upstream_patch.series.drift import Drift

app = typer.Typer(help="The change to an MLX checkout: check, apply, export it, follow upstream.")

Mlx = Annotated[str, typer.Option("--mlx", help="A clone of MLX, or the address of one.")]
Names = Annotated[list[str] | None, typer.Argument(help="cuda, folding, metal; all that belong to CUDA if left out.")]
History = Annotated[Path, typer.Option("--history", help="Folder of what was sent.")]
HISTORY = Path("evidence") / "sent"
USUAL = ["folding", "cuda"]


def _contributions(names: list[str] | None) -> list[Contribution]:
    from upstream_patch.series import load_each

    return load_each(names or USUAL)


def _checkout(mlx: str, out: Path = OUT) -> Checkout:
    from upstream_patch.series.checkout import open_or_clone

    return open_or_clone(mlx, out / "mlx")


@app.command()
def check(mlx: Mlx, names: Names = None) -> None:
    """Say whether the contributions apply to HEAD of a checkout; exit 1 where one does not. Changes nothing."""
    from upstream_patch.series.drift import touched
    from upstream_patch.series.style import laid_out

    contributions, checkout = _contributions(names), _checkout(mlx)
    planned = laid_out(contributions, checkout.reader())
    _show([(item, "") for item in planned.items])
    if planned.conflicts:
        for line in touched(checkout, contributions, planned.conflicts):
            print(line)
        raise SystemExit(1)


@app.command()
def apply(
    mlx: Mlx,
    names: Names = None,
    into: Annotated[Path | None, typer.Option(help="Folder of the worktree; beside the checkout if left out.")] = None,
    evidence: Evidence = EVIDENCE,
) -> None:
    """Make a worktree with the change in it, on a branch of its own, uncommitted. The checkout stays as it is.

    Next: your commit, then `series drift`.
    """
    from upstream_patch.draft.contributions import carrier
    from upstream_patch.series.applying import apply as put
    from upstream_patch.series.applying import message_of
    from upstream_patch.series.checkout import Checkout

    facts = read_facts(evidence) if evidence.is_dir() else []
    applied, planned = put(_checkout(mlx), _contributions(names), into, facts)
    print(f"{applied.worktree}: {len(planned.changed)} files changed on branch {applied.branch}, nothing is committed")
    _show_format(planned)
    for_commit = ("commit", "--cleanup=strip", "--template", str(message_of(applied)))
    # A person's settings may give comments another mark; ours would be in the message then.
    settings = ("git", "-c", "core.commentChar=#", "-C", str(applied.worktree))
    add = Checkout(applied.worktree).command("add", "--all")
    print(f"to commit, in your own words: {add} && {shlex.join((*settings, *for_commit))}")
    where = shlex.quote(str(mlx))
    option = carrier(names or USUAL).option
    print(
        f"next, when you have: upstream-patch series drift --mlx {where}{option}, which lets the gates see your commit"
    )


@app.command()
def unapply(mlx: Mlx, names: Names = None) -> None:
    """Take the worktree and the branch away again; refuses where they hold work of yours."""
    from upstream_patch.series.applying import unapply as take

    applied = take(_checkout(mlx), _contributions(names))
    print(f"{applied.worktree} and branch {applied.branch} are gone")


@app.command()
def status(
    names: Names = None,
    mlx: Annotated[str | None, typer.Option("--mlx", help="A clone of MLX; the installed wheel if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Every edit and new file: applies, moved, conflict or already upstream, and on what text that was seen."""
    from upstream_patch.series import NAMES
    from upstream_patch.series.proof import Row, installed_wheel, on_wheel
    from upstream_patch.series.style import laid_out

    contributions = _contributions(names or list(NAMES))
    if mlx is None:
        rows = on_wheel(contributions, installed_wheel())
    else:
        checkout = _checkout(mlx)
        proof = f"checkout {checkout.commit()[:12]}"
        read = checkout.reader()
        rows = [Row(item, proof) for one in contributions for item in laid_out([one], read).items]
    if as_json:
        said = [asdict(row.item) | {"state": row.item.state.value, "proof": row.proof} for row in rows]
        print(json.dumps(said, indent=2))
    else:
        _show([(row.item, row.proof) for row in rows])


@app.command()
def export(
    name: Annotated[str, typer.Argument(help="cuda, folding or metal.")],
    mlx: Mlx,
    base: Annotated[str, typer.Option(help="Commit of the checkout to export on.")] = "HEAD",
    out: Out = OUT,
) -> None:
    """Write the change as diff, mail patch with its base, and overlay of whole files. The message is for a person."""
    from upstream_patch.series.exporting import export as write

    version, folder, planned = write(_checkout(mlx, out), _contributions([name])[0], out / "series", base)
    print(f"{folder}: v{version.number} of {name} on {version.base[:12]}, {len(version.files)} files")
    _show_format(planned)


@app.command()
def compare(
    name: Annotated[str, typer.Argument(help="cuda, folding or metal.")],
    one: Annotated[int, typer.Argument(help="Number of a version.")],
    other: Annotated[int, typer.Argument(help="Number of another.")],
    mlx: Mlx,
) -> None:
    """Show git's range-diff between two exported versions."""
    from upstream_patch.series.exporting import compare as difference

    print(difference(_checkout(mlx), _contributions([name])[0].name, one, other), end="")


@app.command()
def sent(
    name: Annotated[str, typer.Argument(help="cuda, folding or metal.")],
    number: Annotated[int, typer.Argument(help="Number of the version that you sent.")],
    url: Annotated[str, typer.Option(help="Where it is to be seen.")],
    mlx: Mlx,
    history: History = HISTORY,
) -> None:
    """Note for good that you sent a version; sends nothing."""
    from upstream_patch.records import versions
    from upstream_patch.series.exporting import record_sent

    print(record_sent(_checkout(mlx), _contributions([name])[0].name, number, url, versions()["commit"], history))


@app.command("history")
def show_history(history: History = HISTORY) -> None:
    """List what was sent, and check that none of it was changed since."""
    from upstream_patch.series.exporting import history as read

    for entry in read(history):
        version = entry.version
        print(f"{entry.when:%Y-%m-%d} {version.name} v{version.number} on {version.base[:12]} {entry.url}")


@app.command()
def drift(
    mlx: Mlx,
    names: Names = None,
    branch: Annotated[str, typer.Option(help="Yours, with the change; the one of `apply` if left out.")] = "",
    as_json: Json = False,
    contribution: Contributed = CONTRIBUTION,
    out: Out = OUT,
    evidence: Evidence = EVIDENCE,
) -> None:
    """How upstream's HEAD differs from the base, and whether the change is in; exit 2 on a conflict.

    Next: `status pr`.
    """
    from upstream_patch.draft import contributions, proving
    from upstream_patch.records import facts, store
    from upstream_patch.series import NAMES
    from upstream_patch.series.drift import drift as compute

    about = contributions.named(contribution)
    checkout = _checkout(mlx, out)
    drifts = [compute(checkout, one) for one in _contributions(names or list(NAMES))]
    if as_json:
        said = [asdict(one) | {"items": [asdict(i) | {"state": i.state.value} for i in one.items]} for one in drifts]
        print(json.dumps(said, indent=2))
    else:
        for one in drifts:
            _show_drift(one)
    records = store.load_all(evidence) if evidence.is_dir() else []
    proof = proving.prove(records, about.of(facts.derive(records)), about)
    proving.compare(out / "drafts", checkout, proof, branch=branch, about=about)
    if not as_json:
        print(f"next: upstream-patch status pr{about.option}{folders(out, evidence)}")
    conflicts = [item for one in drifts for item in one.conflicts]
    if conflicts:
        like = sorted({one.contribution for one in drifts if one.conflicts and one.upstreamed})
        told = f"; upstream has a change like {', '.join(like)}, see above" if like else ""
        raise UserError(f"upstream went another way: {conflicts[0].detail} ({len(conflicts)} conflicts in all){told}")


def _show_format(planned: Plan) -> None:
    if planned.unformatted:
        print(f"not formatted: {planned.unformatted}")


def _show(rows: list[tuple[Item, str]]) -> None:
    """Under each contribution its files, each whole on a line of its own, and under each file its edits: name, state,
    detail, and in parentheses what text that was seen on."""
    from upstream_patch.series import State

    colors = {State.APPLIES: "green", State.MOVED: "cyan", State.CONFLICT: "bold red", State.UPSTREAM: "yellow"}
    colors[State.UNSEEN] = "magenta"
    widths = max(len(item.name) for item, _ in rows), max(len(item.state.value) for item, _ in rows)
    console = Console()
    for contribution, whole in groupby(rows, lambda row: row[0].contribution):
        console.print(Text(contribution, style="bold"))
        for file, edits in groupby(whole, lambda row: row[0].file):
            console.print(Text(f"  {file}"), soft_wrap=True)
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
            for width in (*widths, None):
                table.add_column(width=width, overflow="fold")
            for item, proof in edits:
                detail = Text(item.detail).append(f" ({proof})" if proof else "", style="dim")
                table.add_row(item.name, Text(item.state.value, style=colors[item.state]), detail)
            console.print(Padding(table, (0, 0, 0, 4)))


def _show_drift(one: Drift) -> None:
    print(f"{one.contribution}: base {one.base[:12]}, upstream {one.upstream[:12]}")
    _show([(item, "") for item in one.items])
    for path, commits in one.commits.items():
        if commits:
            print(f"{path}: {len(commits)} commits since the base" + "".join(f"\n  {line}" for line in commits[:5]))
    for commit in one.equal:
        print(f"the same change is in: {commit}")
    for name, files in one.symbols.items():
        if files:
            print(f"upstream has {name}: {', '.join(files[:5])}")
    for word, commits in one.keywords.items():
        if commits:
            print(f"lines with «{word}» changed: " + "; ".join(commits[:5]))
