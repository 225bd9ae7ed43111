"""The identity of our dispatch: sha256 of its Python tokens, so that what a call costs the host goes stale with it."""

from __future__ import annotations

import hashlib
import io
import token
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import upstream_patch

_FILE = Path(upstream_patch.__file__).parent / "ops.py"
_END = "\n"
_LAYOUT = {token.NEWLINE: _END, token.INDENT: " >", token.DEDENT: " <"}
"""No name is spelled so, and how far a block is indented says nothing."""
# Python 3.12 takes f-strings apart; before, each is one token. Put together again they are the same everywhere.
_OPENS, _CLOSES = (getattr(token, f"FSTRING_{end}", -1) for end in ("START", "END"))


@cache
def today() -> str:
    """The hash of the dispatch in this checkout."""
    return digest(_FILE.read_text(encoding="utf-8"))


def digest(source: str) -> str:
    """sha256 over the tokens of a Python file. Comments, docstrings and white space do not count."""
    sha = hashlib.sha256()
    line: list[str] = []
    for text in _tokens(source):
        line.append(text)
        if text not in _LAYOUT.values():
            continue
        if not _does_nothing(line):
            for part in line:
                data = part.encode()
                sha.update(b"%d:" % len(data) + data)  # the length keeps "a", "bc" apart from "ab", "c"
        line = []
    return sha.hexdigest()


def _does_nothing(line: list[str]) -> bool:
    """Strings alone: a docstring."""
    *parts, end = line
    return end == _END and all(part.startswith(('"', "'")) for part in parts)


def _tokens(source: str) -> Iterator[str]:
    lines = io.StringIO(source).readlines()
    depth, start = 0, (0, 0)
    for each in tokenize.generate_tokens(iter(lines).__next__):
        if each.type == _OPENS:
            start = start if depth else each.start
            depth += 1
        elif each.type == _CLOSES:
            depth -= 1
            if not depth:
                yield _between(lines, start, each.end)
        elif not depth and each.type not in (token.COMMENT, token.NL, token.ENDMARKER):
            yield _LAYOUT.get(each.type, each.string)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The source from one (line, column) to another; lines count from 1."""
    (first, left), (last, right) = start, end
    if first == last:
        return lines[first - 1][left:right]
    return "".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])
