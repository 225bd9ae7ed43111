"""How far upstream has gone from the base that a contribution was made for, and whether an equal change is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from upstream_patch.errors import UserError
from upstream_patch.series.checkout import Checkout, GitError
from upstream_patch.series.exporting import patch_id
from upstream_patch.series.model import Contribution
from upstream_patch.series.planning import Item, State, plan
from upstream_patch.series.style import laid_out, layout


@dataclass(frozen=True)
class Drift:
    """One contribution against one commit of upstream."""

    contribution: str
    base: str
    upstream: str
    items: tuple[Item, ...]
    commits: dict[str, list[str]]
    """Edited file -> ``<id> <subject>`` of the commits since the base that touched it, the newest first."""
    equal: list[str]
    """Commits since the base that make the very same change, by git's patch-id."""
    symbols: dict[str, list[str]]
    """Name that only this change brings -> upstream's files that hold it."""
    keywords: dict[str, list[str]]
    """Keyword -> commits since the base that added or took away a line with it in an edited file."""

    @property
    def conflicts(self) -> list[Item]:
        return [item for item in self.items if item.state is State.CONFLICT]

    @property
    def upstreamed(self) -> bool:
        """Whether this change, or one that brings the same names, is in."""
        whole = bool(self.items) and all(item.state is State.UPSTREAM for item in self.items)
        return whole or bool(self.equal) or any(self.symbols.values())


def base_commit(checkout: Checkout, contribution: Contribution) -> str:
    """The base's commit in this checkout. Raises UserError where it is not there, or its tag names another commit."""
    base = contribution.base
    if not checkout.has(base.tag):
        fetch = checkout.command("fetch", "--tags", "origin")
        raise UserError(f"{checkout.path} has no tag {base.tag}: {fetch} first")
    commit = checkout.commit(base.tag)
    if base.commit is not None and not commit.startswith(base.commit):
        raise UserError(f"tag {base.tag} of {checkout.path} is {commit[:12]}, the series was made for {base.commit}")
    return commit


def drift(checkout: Checkout, contribution: Contribution, upstream: str = "HEAD") -> Drift:
    """Compare the base with a commit of upstream. Raises UserError for a shallow clone and for one without the base."""
    checkout.require_history()
    base, head = base_commit(checkout, contribution), checkout.commit(upstream)
    read = checkout.reader(head)
    files = list(dict.fromkeys(edit.file for edit in contribution.edits))
    since = f"{base}..{head}"
    words = {
        word: checkout.git("log", "--format=%h %s", "--no-textconv", f"-G{word}", since, "--", *files).splitlines()
        for word in contribution.keywords
        if files
    }
    return Drift(
        contribution=contribution.name,
        base=base,
        upstream=head,
        items=plan([contribution], read, layout(read)).items,
        commits={path: checkout.commits(base, [path], head) for path in files},
        equal=_equal(checkout, contribution, base, head),
        symbols={name: _files_with(checkout, name, head) for name in contribution.symbols},
        keywords=words,
    )


def _equal(checkout: Checkout, contribution: Contribution, base: str, head: str) -> list[str]:
    planned = laid_out([contribution], checkout.reader(base))
    if not planned.changed:
        return []
    ours = patch_id(checkout, base, checkout.tree(base, planned.changed))
    since = checkout.git("rev-list", "--no-merges", f"{base}..{head}", "--", *planned.changed)
    patches = checkout.git("diff-tree", "--stdin", "-p", given=since)
    theirs = [line.split() for line in checkout.git("patch-id", "--stable", given=patches).splitlines()]
    return [commit[:12] for identity, commit in theirs if identity == ours]


def _files_with(checkout: Checkout, name: str, commit: str) -> list[str]:
    try:
        found = checkout.git("grep", "--name-only", "--word-regexp", "--fixed-strings", "-e", name, commit)
    except GitError:  # exit 1: nowhere
        return []
    return [line.split(":", 1)[1] for line in found.splitlines()]


def touched(checkout: Checkout, contributions: Sequence[Contribution], items: Sequence[Item]) -> list[str]:
    """For each file of an item in conflict, the commits since the base that touched it, as lines for a person."""
    base = next((one.base for one in contributions if checkout.has(one.base.tag)), None)
    if base is None or checkout.shallow:
        return [f"what changed since {contributions[0].base.tag} cannot be told: the checkout has not that history"]
    lines = []
    for path in dict.fromkeys(item.file for item in items):
        commits = checkout.commits(base.tag, [path])
        lines.append(
            f"{path}: {len(commits)} commits since {base.tag}" + "".join(f"\n  {line}" for line in commits[:5])
        )
    return lines
