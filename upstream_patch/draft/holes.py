"""The places of a draft where a person must write, and which of them are still open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from upstream_patch.draft import managed

TODO = "TODO(person)"
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FRAME = re.compile(
    r"^(?:\*\*.*\*\*|#.*|- (?:OS Version|Version|AI usage disclosure):?|```\w*)\s*$|^\[BUG\]", re.MULTILINE
)
"""What is the form's own: it fills no hole."""
_STANDS = re.compile(r"(?<![a-z])(?:todo|tb[dac]|fixme|xxx+)(?![a-z])", re.IGNORECASE)
_NOTHING = re.compile(
    r"\W*(?:n\W*a|not applicable|no answer|blank|empty|placeholder|lorem ipsum.*|wip|pending|later|coming soon"
    r"|to be (?:done|written|filled|added|determined|decided|confirmed)|see (?:above|below)|same|ditto|ok|asdf\w*|foo"
    r"|(?:test|x|y|z|bla)(?:\W+(?:test|x|y|z|bla))*)\W*",
    re.IGNORECASE | re.DOTALL,
)
"""Answers that say nothing."""
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class Hole:
    id: str
    line: int
    """Of its marker; 0 where the marker is gone."""
    hint: str


def mark(hole_id: str, hint: str) -> str:
    """The marker of a hole. The block of the facts that bear on it, and the line that a person replaces, follow."""
    return f"<!-- HOLE {hole_id}: {hint} -->"


def todo(hole_id: str) -> str:
    """The line that a person replaces."""
    return f"{TODO}: {hole_id}"


def answer(text: str, hole_id: str) -> str:
    """What a person wrote at a hole, without blocks and comments; empty where its marker is gone."""
    return next((words.strip() for match, words in _answers(text) if match["id"] == hole_id), "")


def open_holes(text: str, required: Sequence[str] = ()) -> list[Hole]:
    """Holes without a word in them, with one that only stands for words (``TBD``, ``N/A``), and ``required`` ones whose
    marker is gone."""
    result, there = [], set()
    for match, answered in _answers(text):
        there.add(match["id"])
        words = re.sub(rf"^[\W\d_]*{match['id']}\W*$", "", answered, flags=re.MULTILINE)  # what a cut TODO line leaves
        if _STANDS.search(answered) or not _LETTER.search(words) or _NOTHING.fullmatch(words):
            result.append(Hole(match["id"], text.count("\n", 0, match.start()) + 1, match["hint"]))
    gone = "its marker is gone: draft anew beside it and copy it back"
    return result + [Hole(name, 0, gone) for name in required if name not in there]


def marked(text: str, word: str) -> list[Hole]:
    """Every place where ``word`` stands in a managed block: what is missing there is no person's to write."""
    return [
        Hole(name, text.count("\n", 0, start) + 1, text[start:].splitlines()[0].split(" |")[0])
        for name, first, last in managed.spans(text)
        for start in (match.start() for match in re.finditer(re.escape(word), text[:last]) if match.start() >= first)
    ]


def _answers(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Every hole's marker, and what stands up to the next one: no block, comment, or line of the form."""
    found = list(managed.HOLE.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    for match, end in zip(found, ends, strict=False):
        yield match, _FRAME.sub("", _COMMENT.sub("", managed.strip(text[match.end() : end])))
