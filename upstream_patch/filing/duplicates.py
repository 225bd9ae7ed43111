"""Look for issues and pull requests, open and closed, that say the same already; what was found feeds a gate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from upstream_patch.draft import inputs, managed
from upstream_patch.draft.contributions import CUDA, Contribution
from upstream_patch.draft.documents import find
from upstream_patch.draft.inputs import Duplicates, Filed, Hit, Search
from upstream_patch.errors import UserError
from upstream_patch.github import Clock, Entry, GitHub
from upstream_patch.github.client import PAGE
from upstream_patch.series.checkout import UPSTREAM

STATES: tuple[Literal["open", "closed"], ...] = ("open", "closed")


def search(
    draft: str,
    work: Path,
    github: GitHub,
    clock: Clock,
    queries: Sequence[str] = (),
    about: Contribution = CUDA,
) -> tuple[Path, Duplicates]:
    """Search upstream for a draft's subject and write the receipt that its gate reads. Without ``queries``, by the
    contribution's.

    The person's own filed issue and pull request are no duplicates. Raises UserError where a query finds more than one
    page, or GitHub did not search to its end: then nothing is written.
    """
    document = find(draft, about)
    path = work / document.file
    if not path.exists():
        raise UserError(f"there is no {path}: upstream-patch draft {draft}{about.option}")
    title = document.title(managed.read(path))
    if not title or any(hole.id == "title" for hole in document.open_holes(path)):
        raise UserError(f"{path} has no title yet: write it first, a search holds for one title")
    filed = inputs.read(work, about.key("filed"), Filed, github.api) or Filed()
    own = {link.number for link in (filed.issue, filed.pr) if link}
    searches = []
    for query in queries or about.queries:
        for state in STATES:
            hits = [hit for kind in ("issue", "pull-request") for hit in _hits(github, query, state, kind)]
            searches.append(Search(query=query, state=state, hits=tuple(hit for hit in hits if hit.number not in own)))
    searched = datetime.fromtimestamp(clock.now(), UTC)
    found = Duplicates(repository=UPSTREAM, title=title, searched=searched, searches=tuple(searches))
    return inputs.write(work, about.key(f"duplicates_{draft}"), found, github.api), found


def hits(found: Duplicates) -> list[Hit]:
    """Each once, newest first."""
    return sorted(
        {hit.number: hit for search in found.searches for hit in search.hits}.values(), key=lambda h: -h.number
    )


def _hits(github: GitHub, query: str, state: Literal["open", "closed"], kind: str) -> list[Hit]:
    found = github.search(f"repo:{UPSTREAM} is:{kind} is:{state} {query}")
    if found.total > PAGE or found.incomplete:
        why = f"{found.total} hits" if found.total > PAGE else "GitHub did not search to its end"
        raise UserError(
            f"{query!r}, {state}: {why}: nothing was written: give narrower words with --query, or try again"
        )
    return [_hit(entry, state) for entry in found.entries]


def _hit(entry: Entry, state: Literal["open", "closed"]) -> Hit:
    # Others' words go to a terminal: nothing in them may steer it.
    title = "".join(letter for letter in entry.title if letter.isprintable())
    kind: Literal["issue", "pr"] = "issue" if entry.kind == "issue" else "pr"
    return Hit(number=entry.number, kind=kind, state=state, title=title, url=entry.url)
