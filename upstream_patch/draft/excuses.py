"""Recorded excuses: a person's reason to go on although a gate is red, for that finding and no other."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime

from upstream_patch.draft import inputs
from upstream_patch.draft.inputs import Input, Sha256
from upstream_patch.errors import UserError

NAME = "excuses"
MAY_BE = frozenset({"claims", "benchmarks", "tests", "unaffected", "formatting", "duplicates", "base"})
"""Gates that a reason may open. The others stand for upstream's rules or for text that is not finished."""
NEVER: Mapping[str, str] = {
    "stale": "something is stale, which takes no excuse: renew it",
    "outdated": "something is outdated, which takes no excuse: renew it",
    "does-not-apply": "the series does not apply, which takes no excuse: correct it",
}
"""Findings that no reason opens, as a person is told: what the gate would say of today's state is not known, or what
was built cannot be sent."""


class Excuse(Input):
    draft: str
    gate: str
    code: str
    """Of the finding that it is for."""
    because: str
    content_hash: Sha256
    given: AwareDatetime


class Excuses(Input):
    """``inputs/excuses.json``: at most one a gate of a draft, the newest."""

    excuses: tuple[Excuse, ...] = ()


def of(work: Path, draft: str, gate: str) -> Excuse | None:
    found = inputs.read(work, NAME, Excuses) or Excuses()
    return next((one for one in found.excuses if (one.draft, one.gate) == (draft, gate)), None)


def give(
    work: Path, draft: str, gate: str, code: str, because: str, content_hash: str, now: datetime | None = None
) -> Path:
    """Record why a finding (``code``) is passed over. Raises UserError for a gate or finding that takes no excuse, and
    for no reason."""
    if gate not in MAY_BE:
        raise UserError(f"the gate {gate} takes no excuse, only: {', '.join(sorted(MAY_BE))}")
    if code in NEVER:
        raise UserError(f"{gate} is red because {NEVER[code]}")
    if not because.strip():
        raise UserError("an excuse needs a reason: --because 'why it may go out as it is'")
    excuse = Excuse(
        draft=draft,
        gate=gate,
        code=code,
        because=" ".join(because.split()),
        content_hash=content_hash,
        given=now or datetime.now(UTC),
    )
    found = inputs.read(work, NAME, Excuses) or Excuses()
    others = tuple(one for one in found.excuses if (one.draft, one.gate) != (draft, gate))
    return inputs.write(work, NAME, Excuses(excuses=(*others, excuse)))
