"""Rows of a person's tables as sentences: each cell with what its column's header says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from upstream_patch.draft.numbers import UNIT

_DELIMITER = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")
_AXIS = re.compile(r"[MKNB]")
_OF_UNIT = re.compile(rf"(?P<what>.*?)[\s,]*[(\[]?(?<![\w/])(?P<unit>{UNIT})[)\]]?\s*", re.DOTALL)
_BARE = re.compile(r"\s*[~<>\u2248]?\s*[\d.,]*\d\s*")


def rows(text: str) -> Iterator[tuple[int, int, str]]:
    """(first, last, words) of every row below a header: ``| 7 | 9.1 |`` is ``| M = 7 | stock 9.1 us |``."""
    lines, starts = text.split("\n"), [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    at = 1
    while at < len(lines):
        head = _cells(lines[at - 1])
        if "|" not in lines[at] or not _DELIMITER.fullmatch(lines[at]) or len(_cells(lines[at])) != len(head):
            at += 1
            continue
        at += 1
        while at < len(lines) and "|" in lines[at]:
            said = zip(head, _cells(lines[at]), strict=False)
            yield starts[at], starts[at] + len(lines[at]), f"| {' | '.join(_said(*one) for one in said)} |"
            at += 1


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _said(head: str, cell: str) -> str:
    if _AXIS.fullmatch(head) and cell[:1].isdigit():
        return f"{head} = {cell}"
    unit = _OF_UNIT.fullmatch(head)
    if unit and _BARE.fullmatch(cell):
        return f"{unit['what']} {cell} {unit['unit']}".strip()
    return f"{head} {cell}".strip()
