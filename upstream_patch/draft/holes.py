"""The places of a draft where a person must write, and which of them are still open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from upstream_patch.draft import managed

TODO = "TODO(person)"
_HOLE = re.compile(r"<!-- HOLE (?P<id>[a-z_]+): (?P<hint>.*?) -->", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FRAME = re.compile(
    r"^(?:\*\*.*\*\*|#.*|- (?:OS Version|Version|AI usage disclosure):?|```\w*)\s*$|^\[BUG\]", re.MULTILINE
)
"""What is the form's own: it fills no hole."""
_STANDS = re.compile(r"(?<![a-z])todo(?![a-z])", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class Hole:
    id: str
    line: int
    """Of its marker; 0 where the marker is gone."""
    hint: str


def mark(hole_id: str, hint: str, facts: str) -> str:
    """The marker of a hole and the line that a person replaces."""
    return f"<!-- HOLE {hole_id}: {hint}; facts that bear on it: {facts} -->\n{TODO}: {hole_id}"


def answer(text: str, hole_id: str) -> str:
    """What a person wrote at a hole, without blocks and comments; empty where its marker is gone."""
    found = list(_HOLE.finditer(text))
    for match, following in zip(found, [*found[1:], None], strict=True):
        if match["id"] == hole_id:
            written = text[match.end() : following.start() if following else len(text)]
            return _FRAME.sub("", _COMMENT.sub("", managed.strip(written))).strip()
    return ""


def open_holes(text: str, required: Sequence[str] = ()) -> list[Hole]:
    """Holes without a word in them, or with a TODO in any spelling, and ``required`` ones whose marker is gone."""
    found = list(_HOLE.finditer(text))
    result = []
    for match, following in zip(found, [*found[1:], None], strict=True):
        answer = text[match.end() : following.start() if following else len(text)]
        answer = _FRAME.sub("", _COMMENT.sub("", managed.strip(answer)))
        words = re.sub(rf"^[\W\d_]*{match['id']}\W*$", "", answer, flags=re.MULTILINE)  # what a cut TODO line leaves
        if _STANDS.search(answer) or not _LETTER.search(words):
            result.append(Hole(match["id"], text.count("\n", 0, match.start()) + 1, match["hint"]))
    marked = {match["id"] for match in found}
    gone = [
        Hole(name, 0, "its marker is gone: draft anew beside it and copy it back")
        for name in required
        if name not in marked
    ]
    return result + gone


def marked(text: str, word: str) -> list[Hole]:
    """Every place where ``word`` stands in a managed block: what is missing there is no person's to write."""
    return [
        Hole(name, text.count("\n", 0, start) + 1, text[start:].splitlines()[0].split(" |")[0])
        for name, first, last in managed.spans(text)
        for start in (match.start() for match in re.finditer(re.escape(word), text[:last]) if match.start() >= first)
    ]
