"""Put contributions into a checkout, and take them out again: always whole, or not at all.

The change is made in a worktree beside the checkout, on a branch of its own; the checkout's own files never change. The
worktree gets its name in one step, when all is in it. What a killed run left is undone by the next one.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.records.facts import Fact
from upstream_patch.series.checkout import Checkout, GitError
from upstream_patch.series.message import message
from upstream_patch.series.model import Contribution
from upstream_patch.series.planning import Plan
from upstream_patch.series.style import laid_out


class Applied(BaseModel):
    """What one apply made; kept in the checkout's repository folder until it is unapplied."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: list[str]
    branch: str
    base: str
    """Commit that the branch starts at."""
    tree: str
    """The tree that its files make."""
    worktree: Path

    @property
    def partial(self) -> Path:
        return self.worktree.with_name(f"{self.worktree.name}.partial")


def branch_of(contributions: Sequence[Contribution]) -> str:
    return "upstream-patch/" + "+".join(contribution.name for contribution in contributions)


def apply(
    checkout: Checkout, contributions: Sequence[Contribution], into: Path | None = None, facts: Sequence[Fact] = ()
) -> tuple[Applied, Plan]:
    """Make a worktree with the contributions in it, uncommitted, on a new branch from HEAD.

    ``into`` is its folder; left out, it lies beside the checkout. ``facts`` are for the message's file. Raises
    UserError, and changes nothing, where the checkout is dirty, detached or shallow, where an edit is in conflict, and
    where the folder or the branch is taken.
    """
    with _locked(checkout) as room:
        checkout.require_branch()
        checkout.require_history()
        checkout.require_clean()
        base = checkout.commit()
        planned = laid_out(contributions, checkout.reader(base))
        planned.require()
        branch = branch_of(contributions)
        names = [contribution.name for contribution in contributions]
        target = (into or checkout.path.with_name(f"{checkout.path.name}-{'+'.join(names)}")).resolve()
        if checkout.has(f"refs/heads/{branch}"):
            raise UserError(f"branch {branch} is there already: series unapply takes it away")
        applied = Applied(
            names=names, branch=branch, base=base, tree=checkout.tree(base, planned.changed), worktree=target
        )
        for taken in (target, applied.partial):
            if taken.exists():
                raise UserError(f"{taken} is there already: name another folder with --into")
        journal = room / "apply.json"
        write_text(journal, applied.model_dump_json())
        _make(checkout, applied, planned)
        write_text(message_of(applied), message(contributions, base, planned, facts))
        write_text(room / "applied" / f"{'+'.join(names)}.json", applied.model_dump_json())
        checkout.git("worktree", "move", applied.partial, applied.worktree)
        journal.unlink()
    return applied, planned


def _make(checkout: Checkout, applied: Applied, planned: Plan) -> None:
    checkout.git("worktree", "add", "--quiet", "-b", applied.branch, applied.partial, applied.base)
    for path, text in planned.changed.items():
        file = applied.partial / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode(errors="surrogateescape"))
    made = Checkout(applied.partial).working_tree()
    if made != applied.tree:
        raise UserError(
            f"{applied.partial} does not hold what was planned: a filter, a hook or an ignore rule of git changed it"
        )


def message_of(applied: Applied) -> Path:
    """The file of comments for the person who commits, as in ``git commit --template``."""
    folder = applied.worktree if applied.worktree.is_dir() else applied.partial
    return Path(Checkout(folder).git("rev-parse", "--absolute-git-dir").strip()) / ".gitmessage"


def unapply(checkout: Checkout, contributions: Sequence[Contribution]) -> Applied:
    """Take the worktree and the branch of these contributions away, wherever the worktree was moved to.

    Raises UserError, and changes nothing, where they are not applied or hold work that is not ours.
    """
    with _locked(checkout) as room:
        note = room / "applied" / f"{'+'.join(contribution.name for contribution in contributions)}.json"
        if not note.is_file():
            raise UserError(f"{branch_of(contributions)} is not applied to {checkout.path}")
        applied = _found(checkout, Applied.model_validate_json(note.read_text(encoding="utf-8")))
        if checkout.has(applied.branch) and checkout.commit(applied.branch) != applied.base:
            raise UserError(f"branch {applied.branch} has commits of yours: delete it yourself, if they are elsewhere")
        if applied.partial.exists():
            raise UserError(f"{applied.partial} is in the way: move it elsewhere")
        journal = room / "apply.json"
        write_text(journal, applied.model_dump_json())
        if applied.worktree.is_dir():
            checkout.git("worktree", "move", applied.worktree, applied.partial)
        _undo(checkout, applied)
        note.unlink()
        journal.unlink()
    return applied


def _found(checkout: Checkout, noted: Applied) -> Applied:
    """What was noted, with the worktree where git has it now; it holds the series and nothing else, or is gone.

    Raises UserError where it is not where git believes it to be, and where it holds a person's work.
    """
    known = checkout.worktrees()
    path = next((path for path, branch in known if branch == noted.branch), None)
    if path in (known[0][0], checkout.path):
        raise UserError(f"{path} is itself on branch {noted.branch}: put it on another first (git switch)")
    if path is None:
        if (noted.worktree / ".git").exists():
            switch = Checkout(noted.worktree).command("switch", noted.branch)
            raise UserError(f"{noted.worktree} is not on branch {noted.branch} any more: {switch} first")
        return noted
    if not (path / ".git").exists():
        moved, gone = checkout.command("worktree", "repair", "FOLDER"), checkout.command("worktree", "prune")
        raise UserError(f"{path} is not there: {moved} where you moved it, {gone} where you deleted it")
    applied = noted.model_copy(update={"worktree": path})
    _require_untouched(applied)
    return applied


def _require_untouched(applied: Applied) -> None:
    worktree = Checkout(applied.worktree)
    if worktree.commit() != applied.base or worktree.working_tree() != applied.tree:
        remove = shlex.join(["git", "worktree", "remove", "--force", str(applied.worktree)])
        raise UserError(
            f"{applied.worktree} holds work of yours beside the series: keep it, or take it away yourself with {remove}"
        )
    ignored = [line[3:] for line in worktree.git("status", "--porcelain", "--ignored").splitlines() if line[0] == "!"]
    if ignored:
        more = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
        clean = worktree.command("clean", "-fdX")
        raise UserError(f"{applied.worktree} holds what git ignores ({ignored[0]}{more}): keep it, or {clean} first")


def _undo(checkout: Checkout, applied: Applied) -> None:
    """Take away what ``_make`` made, however far it came."""
    with suppress(GitError):  # git locks a worktree while it makes it, and prune spares a locked one
        checkout.git("worktree", "unlock", applied.partial)
    if applied.partial.is_dir():
        shutil.rmtree(applied.partial)
    checkout.git("worktree", "prune")
    if checkout.has(f"refs/heads/{applied.branch}") and checkout.commit(applied.branch) == applied.base:
        checkout.git("branch", "--quiet", "-D", applied.branch)


@contextmanager
def _locked(checkout: Checkout) -> Iterator[Path]:
    """The folder of our notes in the repository. What a killed run left is undone first, what fails is undone last."""
    with checkout.locked() as room:
        _resume(checkout, room)
        try:
            yield room
        except BaseException:
            with suppress(UserError, OSError):  # what failed is what is told; the next run tries again
                _resume(checkout, room)
            raise


def _resume(checkout: Checkout, room: Path) -> None:
    journal = room / "apply.json"
    if not journal.is_file():
        return
    try:
        applied = Applied.model_validate_json(journal.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{journal} cannot be read ({error}): look at it, then remove it") from None
    note = room / "applied" / f"{'+'.join(applied.names)}.json"
    if note.is_file() and applied.worktree.is_dir():
        # It has its name; git may not know yet.
        checkout.git("worktree", "repair", applied.worktree)
        print(f"what was stopped is whole: {applied.worktree} holds {applied.branch}", file=sys.stderr)
    else:
        note.unlink(missing_ok=True)
        _undo(checkout, applied)
        print(f"what was stopped is undone: {applied.partial} and branch {applied.branch} are gone", file=sys.stderr)
    journal.unlink()
