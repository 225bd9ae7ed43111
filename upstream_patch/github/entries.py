"""What is read of GitHub's answers: the few fields that are used, so that a new field or value elsewhere harms none."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import AliasPath, BaseModel, ConfigDict, Field

Kind = Literal["issue", "pull request", "comment"]


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=True)


class Entry(_Read):
    """An issue, a pull request or a comment as GitHub holds it."""

    kind: Kind
    number: int
    """Of the issue or pull request; for a comment, of the one it stands under."""
    url: str = Field(validation_alias="html_url")
    title: str = ""
    body: str | None = None
    author: str | None = Field(default=None, validation_alias=AliasPath("user", "login"))
    """None for a deleted account."""
    state: str = ""
    """open or closed; empty for a comment."""
    created: datetime = Field(validation_alias="created_at")

    @classmethod
    def read(cls, answer: Any, kind: Kind | None = None, number: int | None = None) -> Self:
        """From JSON. An issue that has a ``pull_request`` is one. Raises ValueError where a field is missing."""
        if not isinstance(answer, dict):
            raise ValueError("not an object")
        known = dict(answer)
        known["kind"] = kind or ("pull request" if answer.get("pull_request") else "issue")
        if answer.get("user") is None:
            known["user"] = {"login": None}
        if number is not None:
            known["number"] = number
        return cls.model_validate(known)


class Found(_Read):
    """One page of a search."""

    total: int = Field(validation_alias="total_count")
    incomplete: bool = Field(validation_alias="incomplete_results")
    """GitHub ran out of time: there may be more."""
    entries: tuple[Entry, ...]


class Repository(_Read):
    name: str = Field(validation_alias="full_name")
    owner: str = Field(validation_alias=AliasPath("owner", "login"))
    default_branch: str
    archived: bool
    has_issues: bool
    fork: bool
    parent: str | None = Field(default=None, validation_alias=AliasPath("parent", "full_name"))
