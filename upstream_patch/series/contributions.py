"""The contributions, read from the data beside this module, and the text of their new files."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from upstream_patch import kernels
from upstream_patch.errors import UserError
from upstream_patch.series.model import Contribution, NewFile

NAMES = ("cuda", "folding", "metal")
PACKAGE = Path(__file__).resolve().parents[1]


@cache
def load(name: str) -> Contribution:
    """A contribution by name. Raises UserError where there is none of that name, or where its data are wrong."""
    if name not in NAMES:
        raise UserError(f"no contribution {name}; known: {', '.join(NAMES)}")
    return read(Path(__file__).parent / name / "series.toml")


def read(path: Path) -> Contribution:
    """The contribution that a file describes. Raises UserError, naming the place of what is wrong in it."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        return Contribution.model_validate(given)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path.name} of {path.parent.name} is not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or path.parent.name
        raise UserError(f"{path.name} of {path.parent.name}: {place}: {first['msg']}") from None


def new_text(file: NewFile) -> str:
    """The text of a new file, from the one copy that this package has."""
    if file.source is not None:
        path = PACKAGE / file.source
        if not path.is_file():
            raise UserError(f"{file.path} is made from {file.source}, and the package has no such file")
        return path.read_text(encoding="utf-8")
    assert file.kernel is not None  # the model sees to it
    return _joined(kernels.closure(file.kernel), file.namespace)


_OURS = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"[^"]+"[ \t]*\n', re.MULTILINE)
_SYSTEM = re.compile(r"^[ \t]*#[ \t]*include[ \t]+<[^>]+>[ \t]*\n", re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#pragma once[ \t]*\n", re.MULTILINE)


def _joined(files: dict[str, str], namespace: str | None) -> str:
    """Files that include one another, as one: the entry's comment first, system headers once, in one namespace each."""
    system = dict.fromkeys(line.strip() for text in files.values() for line in _SYSTEM.findall(text))
    parts = []
    for text in files.values():
        parts.append(_ONCE.sub("", _SYSTEM.sub("", _OURS.sub("", text))).strip("\n"))
    opening, parts[-1] = _opening(parts[-1])
    joined = "\n".join([*opening, "#pragma once", "", *system, "", "\n\n".join(parts), ""])
    if namespace is not None:
        joined = re.sub(r"\bupstream_patch\b", namespace, joined)
    return re.sub(r"\n{3,}", "\n\n", joined)


def _opening(text: str) -> tuple[list[str], str]:
    """The comment that a text opens with, and the rest."""
    lines = text.split("\n")
    count = next((index for index, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return lines[:count], "\n".join(lines[count:]).strip("\n")
