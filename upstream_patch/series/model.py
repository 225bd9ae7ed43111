"""What a contribution is: new files, anchored edits of files that MLX has, and the version it was made for."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{8,40}$")]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
_METHOD = re.compile(r"^    def (test_\w+)\(", re.MULTILINE)
ANCHOR_LENGTH = 100
"""An anchor points at a place; it must not become a copy of MLX's text."""


Anchor = Annotated[str, Field(min_length=8, max_length=ANCHOR_LENGTH, pattern=r"^[^\r\n]*$")]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path:
        raise ValueError(f"{path} is not a path inside the checkout")
    return path


class Base(Model):
    """The MLX that a series is made for."""

    version: str
    tag: str
    commit: Commit | None = None
    """None where nobody has looked the tag up yet: a checkout that has the tag says it."""
    repository: str = "ml-explore/mlx"


class Read(Model):
    """Where an anchor was read. One of ``version`` (a released wheel has the file) and ``commit`` (public text)."""

    version: str | None = None
    commit: Commit | None = None
    repository: str = "ml-explore/mlx"
    line: Annotated[int, Field(ge=1)] | None = None
    """None where the text was seen only in parts."""
    count: Annotated[int, Field(ge=1)] = 1
    """How often the anchor stands there. The base may hold fewer: an edit whose text had more says why in ``note``."""
    note: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Read:
        if (self.version is None) == (self.commit is None):
            raise ValueError("an anchor is read from a wheel's version or from a commit, from one of them")
        if self.count != 1 and self.note is None:
            raise ValueError(f"the anchor stood {self.count} times where it was read, and no note says why it is used")
        return self


class Edit(Model):
    """Whole lines of ours before or after the one line that holds the anchor, or in its place.

    Exactly one line of the file must hold the anchor. ``replace`` takes a line that is the anchor, whole. With
    ``below`` exactly one line must hold that, and the anchor is in the first line after it that holds the anchor: for a
    line that several functions have.
    """

    name: Name
    file: str
    anchor: Anchor
    below: Anchor | None = None
    place: Literal["before", "after", "replace"]
    lines: str
    reason: Annotated[str, Field(min_length=10)]
    read: Read

    _file_is_inside = field_validator("file")(_inside)

    @model_validator(mode="after")
    def _whole_lines(self) -> Edit:
        if not self.lines.strip("\n") or "\r" in self.lines or not self.lines.endswith("\n"):
            raise ValueError(f"{self.name}: lines must be whole lines that end with a line feed")
        return self


class NewFile(Model):
    """A file that MLX does not have; its text is made from ours, of which there is one copy."""

    path: str
    source: str | None = None
    """Below the package, taken as it is: ``series/cuda/qmm_small_m.cpp``."""
    device: bool = False
    """The CUDA kernel: all of its files in one."""
    joined: list[str] = []
    """Below the package: headers in one, without what they include by a quoted path."""
    namespace: str | None = None
    """Takes the place of ``upstream_patch`` in the text."""
    reason: Annotated[str, Field(min_length=10)]

    _path_is_inside = field_validator("path")(_inside)

    @model_validator(mode="after")
    def _one_origin(self) -> NewFile:
        if sum((self.source is not None, self.device, bool(self.joined))) != 1:
            raise ValueError(f"{self.path} is made from a source, from the device code or from joined headers")
        return self


class Contribution(Model):
    """One change, to be reviewed by itself."""

    name: Name
    title: str
    """What it does, for lists; not a commit's subject, which a person writes."""
    base: Base
    files: list[NewFile] = []
    edits: list[Edit] = []
    symbols: list[str] = []
    """Names that only this change brings: where upstream has one, an equal change may be in."""
    compiled: list[str] = []
    """Names that a library built with this change holds, and one without it does not."""
    keywords: list[str] = []
    """Words that a change to the same end would use in the files that this one edits."""
    guards: list[str] = []
    """New tests that pass on the base, too: they keep what the change must not break. Every other one must fail there
    and so shows what the change is for."""

    @model_validator(mode="after")
    def _names_are_its_own(self) -> Contribution:
        for what, names in (
            ("edit", [edit.name for edit in self.edits]),
            ("new file", [file.path for file in self.files]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{self.name}: {what} {', '.join(twice)} stands twice")
        both = {file.path for file in self.files} & {edit.file for edit in self.edits}
        if both:
            raise ValueError(f"{self.name}: {', '.join(sorted(both))} is new and edited")
        unknown = sorted(set(self.guards) - set(self.new_tests))
        if unknown:
            raise ValueError(f"{self.name}: {', '.join(unknown)} guards, and no edit brings a test of that name")
        return self

    @property
    def new_tests(self) -> list[str]:
        """Names of the test methods that the edits bring, in their order."""
        return [name for edit in self.edits for name in _METHOD.findall(edit.lines)]
