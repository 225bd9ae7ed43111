"""C++ text as a stream of tokens: comments and white space gone, literals and directives kept.

Follows the standard's translation phases as far as a hash needs: lines joined by a backslash are one line (but not
inside a raw string), a comment is one space, punctuators are read longest first. Nothing is expanded.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

from upstream_patch.errors import UserError


class LexError(UserError):
    """Text that no C++ compiler would accept either."""


DIRECTIVE_END = "\n"
"""Closes a preprocessor directive: there, and only there, the end of a line means something."""
OBJECT_LIKE = "\t"
"""Follows the name in ``#define NAME (``: with a space it is no parameter list."""

_RAW = re.compile(r'(?:u8|u|U|L)?R"([^ ()\\\t\v\f\n]{0,16})\(')
_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_TOKEN = re.compile(
    r"""
      (?P<newline>\n)
    | (?P<space>[ \t\v\f\r]+ | //[^\n]* | /\*.*?\*/)
    | (?P<open>/\*)
    | (?P<literal>(?:u8|u|U|L)?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')\w*)
    | (?P<word>[^\W\d]\w*|\$\w*)
    | (?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)
    | (?P<punctuator><<=|>>=|<=>|->\*|\.\.\.|::|\.\*|->|\+\+|--|<<|>>|&&|\|\||\#\#|[<>=!+\-*/%&|^]=)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_WORD = re.compile(r"[^\W\d]\w*")
_HEADER_NAME = re.compile(r"<[^>\n]+>|\"[^\"\n]+\"")
_INCLUDE_WORDS = frozenset({"include", "include_next", "import", "embed"})


def tokens(text: str) -> Iterator[str]:
    """The tokens of a file. An ``#include`` is one token, ``#include <name>`` or ``#include "name"``."""
    return _Lexer(text).run()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.source = text.replace("\r\n", "\n")
        self.text, self.cuts = _join_lines(self.source)
        self.at = 0

    def run(self) -> Iterator[str]:
        directive = False  # inside one
        line_start = True  # nothing but space since the last end of line
        while self.at < len(self.text):
            start = self.at
            if raw := _RAW.match(self.text, start):
                yield self._raw_string(raw)
                line_start = False
                continue
            match = _TOKEN.match(self.text, start)
            assert match is not None and match.lastgroup is not None  # the last alternative takes any character
            kind, token = match.lastgroup, match.group()
            self.at = match.end()
            if kind == "newline":
                if directive:
                    yield DIRECTIVE_END
                directive, line_start = False, True
            elif kind == "open":
                raise LexError(f"line {self._line(start)}: a comment is not closed")
            elif kind != "space":
                if token == "#" and line_start:
                    directive = True
                    yield from self._directive()
                elif token in "\"'" and not directive:
                    # Inside #error and the like a lone apostrophe is only text.
                    raise LexError(f"line {self._line(start)}: a {token} literal is not closed")
                else:
                    yield token
                line_start = False
        if directive:
            yield DIRECTIVE_END

    def _directive(self) -> Iterator[str]:
        """What follows ``#`` as far as ordinary reading would get it wrong; the rest is left to ``run``."""
        word = self._word()
        if word in _INCLUDE_WORDS:
            self._skip_space()
            if name := _HEADER_NAME.match(self.text, self.at):
                self.at = name.end()
                yield f"#{word} {name.group()}"
                return
        yield f"#{word}"
        if word == "define":
            yield self._word()
            if self.at < len(self.text) and self.text[self.at] != "(":
                self._skip_space()
                if self.text[self.at : self.at + 1] == "(":
                    yield OBJECT_LIKE

    def _word(self) -> str:
        self._skip_space()
        match = _WORD.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match.group() if match else ""

    def _skip_space(self) -> None:
        while (match := _TOKEN.match(self.text, self.at)) and match.lastgroup == "space":
            self.at = match.end()

    def _raw_string(self, opening: re.Match[str]) -> str:
        """Read from the file itself: in a raw string a backslash at the end of a line is two characters."""
        start = self._in_source(opening.start())
        in_source = _RAW.match(self.source, start)
        end = self.source.find(f'){opening[1]}"', in_source.end()) if in_source else -1
        if end < 0:
            raise LexError(f"line {self._line(opening.start())}: a raw string is not closed")
        end += len(opening[1]) + 2
        self.at = self._in_joined(end)
        return self.source[start:end]

    def _in_source(self, at: int) -> int:
        """Where a place of the joined text lies in the file."""
        index = bisect_left([joined for joined, _ in self.cuts], at + 1)
        return at + (self.cuts[index - 1][1] if index else 0)

    def _in_joined(self, at: int) -> int:
        removed = 0
        for joined, total in self.cuts:
            if joined + total > at:
                break
            removed = total
        return at - removed

    def _line(self, at: int) -> int:
        return self.source.count("\n", 0, self._in_source(at)) + 1


def _join_lines(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without backslash-newlines, and for every cut (place in the joined text, characters removed so far)."""
    cuts, parts, last, removed = [], [], 0, 0
    for match in _SPLICE.finditer(text):
        parts.append(text[last : match.start()])
        last = match.end()
        removed += match.end() - match.start()
        cuts.append((match.end() - removed, removed))
    parts.append(text[last:])
    return "".join(parts), cuts
