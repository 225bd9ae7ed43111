"""What was about to be sent, and what came of it: written and on the disk before and after each request.

``<folder>/<host of the API>/<owner>__<name>/<change id>/01.intent.json``, ``01.body.md`` and ``01.outcome.json``, never
changed once they are there. An intent without an outcome is a request that nobody knows the end of.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.filing.post import Post, text_sha256
from upstream_patch.github import Entry, Kind, place


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Intent(_Stored):
    api: str
    """Address of the API."""
    kind: Kind
    repository: str
    change_id: str
    title: str
    head: str
    commit: str
    """That the head was at, and that the gates saw."""
    base: str
    number: int
    sha256: str
    """Of title and body."""
    gates: str
    """What was checked of the draft, as one hash."""
    login: str
    at: AwareDatetime


class Outcome(_Stored):
    state: Literal["created", "found", "refused"]
    """``found``: it stood there, made by an earlier attempt, or by this one whose answer was unclear."""
    at: AwareDatetime
    number: int = 0
    url: str = ""
    sha256: str = ""
    """Of title and body as they stand there: an earlier attempt's text may be another one."""
    reason: str = ""
    """GitHub's, where it refused."""


class Attempt(_Stored):
    number: int
    intent: Intent
    outcome: Outcome | None
    """None: unclear."""


_Form = TypeVar("_Form", bound=_Stored)


class Receipts:
    """Those of one API: what another one took, such as a stand-in for GitHub, is not there."""

    def __init__(self, folder: Path, api: str) -> None:
        self._folder = folder
        self._api = api

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For one process at a time. Raises UserError when another is at it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError("another terminal is filing from this folder: let it end first") from None
            yield

    def attempts(self, repository: str, change_id: str) -> list[Attempt]:
        """All that were made, oldest first."""
        folder = self._of(repository, change_id)
        result = []
        for path in sorted(folder.glob("*.intent.json")):
            stem = path.name.partition(".")[0]
            outcome = path.with_name(f"{stem}.outcome.json")
            result.append(
                Attempt(
                    number=int(stem),
                    intent=_read(path, Intent),
                    outcome=_read(outcome, Outcome) if outcome.exists() else None,
                )
            )
        return result

    def later(self, post: Post) -> tuple[int, str] | None:
        """Number and address of the newest edition after this one that was filed."""
        stem = post.change_id.rpartition("-")[0]
        names = (folder.name for folder in self._of(post.repository, post.change_id).parent.glob(f"{stem}-*"))
        editions = {int(name.removeprefix(f"{stem}-")) for name in names}
        for edition in sorted((each for each in editions if each > post.edition), reverse=True):
            for attempt in self.attempts(post.repository, f"{stem}-{edition}"):
                if attempt.outcome and attempt.outcome.state != "refused":
                    return edition, attempt.outcome.url
        return None

    def intend(self, post: Post, login: str, gates: str, at: float) -> Attempt:
        """Before the request."""
        number = len(self.attempts(post.repository, post.change_id)) + 1
        intent = Intent(
            api=self._api,
            kind=post.kind,
            repository=post.repository,
            change_id=post.change_id,
            title=post.title,
            head=post.head,
            commit=post.commit,
            base=post.base,
            number=post.number,
            sha256=post.sha256,
            gates=gates,
            login=login,
            at=_moment(at),
        )
        attempt = Attempt(number=number, intent=intent, outcome=None)
        write_text(self._path(attempt, "body.md"), post.body, durable=True)
        write_text(self._path(attempt, "intent.json"), intent.model_dump_json(indent=2) + "\n", durable=True)
        return attempt

    def done(self, attempt: Attempt, entry: Entry, at: float, *, created: bool) -> Outcome:
        """After it: what stands on GitHub, made by this attempt or found there."""
        state: Literal["created", "found"] = "created" if created else "found"
        there = text_sha256(entry.title, entry.body or "")
        outcome = Outcome(state=state, at=_moment(at), number=entry.number, url=entry.url, sha256=there)
        return self._end(attempt, outcome)

    def refused(self, attempt: Attempt, reason: str, at: float) -> None:
        """After it: nothing was written."""
        self._end(attempt, Outcome(state="refused", at=_moment(at), reason=reason))

    def _end(self, attempt: Attempt, outcome: Outcome) -> Outcome:
        write_text(self._path(attempt, "outcome.json"), outcome.model_dump_json(indent=2) + "\n", durable=True)
        return outcome

    def _of(self, repository: str, change_id: str) -> Path:
        return self._folder / place(self._api) / repository.replace("/", "__") / change_id

    def _path(self, attempt: Attempt, name: str) -> Path:
        folder = self._of(attempt.intent.repository, attempt.intent.change_id)
        return folder / f"{attempt.number:02d}.{name}"


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _read(path: Path, form: type[_Form]) -> _Form:
    try:
        return form.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path}: not a receipt ({error.error_count()} faults): put the file back as it was") from None
