"""Edits proven on MLX's real text, as far as this machine has any: the headers that every MLX wheel carries."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import MLX_HEADERS_FIX, find_mlx_headers
from upstream_patch.series import text
from upstream_patch.series.contributions import new_text
from upstream_patch.series.model import Contribution
from upstream_patch.series.planning import Item, Reader, State, plan


@dataclass(frozen=True)
class Wheel:
    """The include folder of an installed MLX: real text of one release."""

    include: Path
    version: str

    def reader(self) -> Reader:
        def read(path: str) -> str | None:
            file = self.include / path
            return file.read_bytes().decode(errors="surrogateescape") if file.is_file() else None

        return read


def installed_wheel() -> Wheel | None:
    found = find_mlx_headers()
    return None if found is None else Wheel(Path(found), metadata.version("mlx"))


@dataclass(frozen=True)
class Row:
    """One edit or new file, and on what text it was tried."""

    item: Item
    proof: str
    """``checkout <commit>``, ``wheel <version>``, ``our own file``, or empty."""


def on_wheel(contributions: Sequence[Contribution], wheel: Wheel | None) -> list[Row]:
    """Every item, tried on the wheel where it has the file. What it has not is neither proven nor refuted."""
    read: Reader = wheel.reader() if wheel is not None else lambda path: None
    rows = []
    for contribution in contributions:
        sources = {edit.name: edit.read for edit in contribution.edits}
        for item in plan([contribution], read).items:
            if item.name == "new":
                rows.append(Row(item, "our own file"))
            elif wheel is not None and read(item.file) is not None:
                right = wheel.version == contribution.base.version
                rows.append(Row(item, f"wheel {wheel.version}" if right else f"wheel {wheel.version}, not the base"))
            else:
                source = sources[item.name]
                where = f"commit {source.commit[:8]}" if source.commit else f"wheel {source.version}"
                detail = f"anchor read in {where}" + (f", line {source.line}" if source.line else "")
                unseen = Item(item.contribution, item.name, item.file, State.UNSEEN, detail)
                rows.append(Row(unseen, ""))
    return rows


def patched_headers(contributions: Sequence[Contribution], into: Path, wheel: Wheel | None = None) -> Path:
    """A copy of the wheel's include tree with the contributions in it, as far as it has the files: ``into``.

    The simulator takes it as ``metal_kernel(root=...)``, a compiler as an include folder. MLX's text stays outside this
    repository. Raises MissingTool without a wheel, UserError where an edit of a file that the wheel has does not apply.
    """
    wheel = wheel or installed_wheel()
    if wheel is None:
        raise MissingTool("no MLX wheel whose headers could be patched", MLX_HEADERS_FIX)
    if into.exists():
        raise UserError(f"{into} is there already")
    shutil.copytree(wheel.include, into)
    for contribution in contributions:
        for file in contribution.files:
            _write(into / file.path, new_text(file))
        for path in dict.fromkeys(edit.file for edit in contribution.edits):
            if (into / path).is_file():
                edits = [edit for edit in contribution.edits if edit.file == path]
                there = (into / path).read_bytes().decode(errors="surrogateescape")
                _write(into / path, text.apply(there, edits))
    return into


def _write(path: Path, changed: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(changed.encode(errors="surrogateescape"))
