"""The contributions, read from the data beside this module, and the text of their new files."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from upstream_patch.errors import UserError
from upstream_patch.series.cuda_device import device_source
from upstream_patch.series.model import Contribution, NewFile

NAMES = ("cuda", "folding", "metal")
PACKAGE = Path(__file__).resolve().parents[1]


@cache
def load(name: str) -> Contribution:
    """A contribution by name. Raises UserError where there is none of that name, or where its data are wrong."""
    if name not in NAMES:
        raise UserError(f"no contribution {name}; known: {', '.join(NAMES)}")
    return read(Path(__file__).parent / name / "series.toml")


def load_each(names: Sequence[str]) -> list[Contribution]:
    """Contributions in this order. Raises UserError where one is named twice: it cannot be applied to itself."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{', '.join(twice)} is named twice: name each contribution once")
    return [load(name) for name in names]


def read(path: Path) -> Contribution:
    """The contribution that a file describes. Raises UserError, naming the place of what is wrong in it."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        for edit in given.get("edits", ()):
            if "lines_from" in edit:
                edit["lines"] = _own(edit.pop("lines_from"))
        return Contribution.model_validate(given)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path.name} of {path.parent.name} is not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or path.parent.name
        raise UserError(f"{path.name} of {path.parent.name}: {place}: {first['msg']}") from None


def new_text(file: NewFile) -> str:
    """The text of a new file, from the one copy that this package has."""
    if file.device:
        return device_source()
    text = _joined(file.joined) if file.joined else _own(file.source or "")
    return text if file.namespace is None else re.sub(r"\bupstream_patch\b", file.namespace, text)


def content_hash(contributions: Sequence[Contribution]) -> str:
    """sha256 of all that the contributions put into a checkout and where: any other text is another series."""
    said = [
        [
            one.name,
            [(file.path, new_text(file)) for file in one.files],
            [(edit.file, edit.anchor, edit.place, edit.lines, *filter(None, [edit.below])) for edit in one.edits],
        ]
        for one in contributions
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _own(name: str) -> str:
    path = PACKAGE / name
    if not path.is_file():
        raise UserError(f"the series is made from {name}, and the package has no such file")
    return path.read_text(encoding="utf-8")


_OURS = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"[^"]+"[ \t]*\n', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#pragma once[ \t]*\n", re.MULTILINE)


def _joined(names: list[str]) -> str:
    """Headers one after the other under one guard; what they need of MLX, the file that includes them has."""
    parts = [_ONCE.sub("", _OURS.sub("", _own(name))).strip("\n") for name in names]
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(["#pragma once", *parts]) + "\n")
