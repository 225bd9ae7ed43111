"""Anchored edits of one text: find the line, put ours in. No file is touched."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Sequence

from upstream_patch.errors import UserError
from upstream_patch.series.model import Edit


class AnchorError(UserError):
    """An anchor that does not stand exactly once."""


def split(text: str) -> list[str]:
    """Lines with their ends. Only a line feed ends a line, as in git."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def find(lines: Sequence[str], edit: Edit) -> int:
    """Index of the one line that holds the anchor. Raises AnchorError, with what stands nearest."""
    if edit.below is not None:
        start = _only(lines, edit, edit.below) + 1
        for index in range(start, len(lines)):
            if _holds_anchor(lines[index], edit):
                return index
        raise AnchorError(f"{edit.file}: the anchor «{edit.anchor.strip()}» of {edit.name} is not below line {start}")
    return _only(lines, edit)


def _holds_anchor(line: str, edit: Edit) -> bool:
    return line.rstrip("\r\n") == edit.anchor if edit.place == "replace" else edit.anchor in line


def _only(lines: Sequence[str], edit: Edit, below: str | None = None) -> int:
    """Index of the one line with the anchor, or with ``below``."""
    anchor = below or edit.anchor
    if below is None:
        found = [index for index, line in enumerate(lines) if _holds_anchor(line, edit)]
    else:
        found = [index for index, line in enumerate(lines) if below in line]
    # Twice in one line is twice.
    times = sum(max(1, lines[index].count(anchor)) for index in found)
    if times == 1:
        return found[0]
    where = found or _nearest(lines, anchor)
    shown = "; ".join(f"line {index + 1}: {lines[index].strip()[:60]}" for index in where[:3])
    told = f", {'in' if found else 'nearest'} {shown}" if where else ", and nothing is like it"
    raise AnchorError(f"{edit.file}: the anchor «{anchor.strip()}» of {edit.name} stands {times} times{told}")


def _nearest(lines: Sequence[str], anchor: str) -> list[int]:
    like = difflib.get_close_matches(anchor.strip(), [line.strip() for line in lines if line.strip()], 3, 0.5)
    return sorted({next(index for index, line in enumerate(lines) if line.strip() == near) for near in like})


def _ours(edit: Edit, line: str) -> list[str]:
    """Our lines with the ends that the anchor's line has."""
    end = "\r\n" if line.endswith("\r\n") else "\n"
    return [ours.replace("\n", end) for ours in split(edit.lines)]


def apply(text: str, edits: Sequence[Edit]) -> str:
    """The text with all edits, each anchor found in the text as it was. Raises AnchorError.

    Edits at one anchor keep their order.
    """
    lines = split(text)
    before: dict[int, list[str]] = defaultdict(list)
    after: dict[int, list[str]] = defaultdict(list)
    instead: dict[int, list[str]] = {}
    for edit in edits:
        index = find(lines, edit)
        ours = _ours(edit, lines[index])
        if edit.place == "before":
            before[index] += ours
        elif edit.place == "after":
            after[index] += ours
        elif index in instead:
            raise AnchorError(f"{edit.file}: two edits replace line {index + 1}")
        else:
            instead[index] = ours
    done: list[str] = []
    for index, line in enumerate(lines):
        parts = [*before[index], *instead.get(index, [line]), *after[index]]
        if not line.endswith("\n"):  # the last line: the file goes on ending without one
            parts = [part if part.endswith("\n") else f"{part}\n" for part in parts]
            parts[-1] = parts[-1].removesuffix("\n").removesuffix("\r")
        done += parts
    return "".join(done)


def holds(text: str, edit: Edit) -> bool:
    """Whether our lines stand in the text already, one after the other; blanks at the ends of lines do not count."""
    ours = [line.strip() for line in split(edit.lines) if line.strip()]
    theirs = [line.strip() for line in split(text) if line.strip()]
    return any(theirs[index : index + len(ours)] == ours for index in range(len(theirs) - len(ours) + 1))
