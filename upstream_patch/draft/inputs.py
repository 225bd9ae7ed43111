"""What other rooms hand to the gates, as small typed files under ``<work>/inputs``.

``proving`` writes ``series.json`` from records and ``upstream.json`` from a checkout, filing writes
``duplicates_<draft>.json`` and ``filed.json``, ``draft docs`` ``device.json``. A file that is missing leaves its gate
red; one of another form is an error with the way out.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from upstream_patch import github
from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.github.client import API

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
HEAD_DAYS = 14
"""A HEAD older than this is that of a clone that nobody has fetched: upstream commits on most days."""
Verdict = Literal["FASTER", "SLOWER", "SAME", "UNCLEAR"]


class Input(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SuiteRun(Input):
    """MLX's own tests on one build, in every environment that they were run in."""

    command: str
    ran: Annotated[int, Field(ge=0)]
    failed: tuple[str, ...]
    """Test methods, each that failed in any environment."""


class Cell(Input):
    """A problem timed on both builds; the verdict is ``records.stats``'."""

    problem: str
    base_us: Annotated[float, Field(gt=0)]
    patched_us: Annotated[float, Field(gt=0)]
    verdict: Verdict
    record: str
    """Path of the record that timed it, which says how ours was delivered."""


class SeriesProof(Input):
    """``series.json``: MLX built without and with the series, from one base commit."""

    record: str
    """Path of the build's."""
    base_commit: Commit
    contributions: tuple[str, ...]
    series_sha256: Sha256
    """Of what the contributions put in (``series.content_hash``)."""
    tree: Commit
    """git's tree of what was compiled."""
    kernel_hashes: dict[str, Sha256]
    """By kernel name, as the records have them."""
    new_tests: tuple[str, ...]
    guards: tuple[str, ...] = ()
    """Those of them that pass on the base, too."""
    base: SuiteRun
    """The base with the new tests and without the rest of the series."""
    patched: SuiteRun
    affected: tuple[Cell, ...]
    """Problems whose route the series changes: its host code in a released MLX, against the same MLX without it."""
    unaffected: tuple[Cell, ...]
    """Problems that our dispatch leaves to stock, against stock."""


class Upstream(Input):
    """``upstream.json``: how far upstream is from the base of the series, and the branch that is to be sent."""

    base_commit: Commit
    head_commit: Commit
    head_committed: AwareDatetime
    checked: AwareDatetime
    unknown: str = ""
    """Why nothing says that the head is that of upstream's main; empty where something does."""
    unknown_fix: str = ""
    series_sha256: Sha256
    tree: Commit | None
    """git's tree of the base with what is sent now in it; None where it does not apply there."""
    applies: bool
    touched: tuple[str, ...]
    """Files of the series that upstream changed since the base."""
    unformatted: str | None
    """Why the change is not known to be in the layout of the head's pinned clang-format; None where it is."""
    branch: Commit | None
    """The person's commit that holds the series and nothing else."""
    branch_fault: str
    """Why there is no such commit; empty where there is."""


class Hit(Input):
    """An issue or pull request that a search found."""

    number: Annotated[int, Field(gt=0)]
    kind: Literal["issue", "pr"]
    state: Literal["open", "closed"]
    title: str
    url: str


class Search(Input):
    query: str
    state: Literal["open", "closed"]
    hits: tuple[Hit, ...]


class Duplicates(Input):
    """``duplicates_<draft>.json``: what was searched for before the draft of this title goes out."""

    repository: str
    title: str
    searched: AwareDatetime
    searches: tuple[Search, ...]


class Link(Input):
    number: Annotated[int, Field(gt=0)]
    url: str


class Filed(Input):
    """``filed.json``: what a person has filed."""

    issue: Link | None = None
    pr: Link | None = None


class Named(Input):
    """``device.json``: the machine that the doc's note is about."""

    host: str = "gb10"


_Kind = TypeVar("_Kind", bound=Input)
_OF_GITHUB = ("duplicates_", "filed")
_USUAL = github.place(API)


def path(work: Path, name: str, api: str | None = None) -> Path:
    """Of ``series``, ``upstream``, ``duplicates_<draft>`` or ``filed``.

    The last two are of one GitHub: ``api``, or the one that the environment names. What another than github.com said,
    as in a rehearsal on a stand-in, has files of its own and opens nothing here.
    """
    there = github.place(api or github.address()) if name.startswith(_OF_GITHUB) else ""
    return work / "inputs" / f"{name}{f'@{there}' if there not in ('', _USUAL) else ''}.json"


def read(work: Path, name: str, kind: type[_Kind], api: str | None = None) -> _Kind | None:
    """None where there is no such file. Raises UserError when it is not of the form."""
    file = path(work, name, api)
    if not file.exists():
        return None
    try:
        return kind.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{file}: {where + ': ' if where else ''}{first['msg']}: remove it and run the verb that writes it again"
        ) from None


def write(work: Path, name: str, content: Input, api: str | None = None) -> Path:
    """Store an input, whole or not at all."""
    file = path(work, name, api)
    write_text(file, content.model_dump_json(indent=2) + "\n")
    return file


def age_hours(then: datetime, now: datetime) -> float:
    return (now - then).total_seconds() / 3600


def behind(committed: datetime, now: datetime) -> str:
    """Why a clone's HEAD that was committed then is not taken for upstream's of today; empty where it is."""
    if age_hours(committed, now) <= 24 * HEAD_DAYS:
        return ""
    return f"HEAD of the clone is of {committed:%Y-%m-%d}, more than {HEAD_DAYS} days ago: fetch upstream's main first"
