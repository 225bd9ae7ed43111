"""A person's sentences in a draft: the text between the tool's blocks, as a reader sees it, and where each stands."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt

from upstream_patch.draft import managed, table_rows
from upstream_patch.draft.numbers import UNIT

Span = tuple[int, int]
PIN = re.compile(r"<!-- fact (?P<id>[\w.|-]+)(?: / (?P<over>[\w.|-]+))? -->")
"""A person's own pointer: the numbers of this sentence are that fact, or the quotient of two."""

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_HOLE = re.compile(r"<!-- HOLE ")
_END = re.compile(
    r"(?<=[.!?])(?<!vs\.)(?<!e\.g\.)(?<!i\.e\.)(?<!approx\.)(?<!ca\.)(?<!No\.)\s+(?=[^\sa-z])|\n\s*\n|\n(?=\s*(?:>\s*)*(?:[-*+]|\d+[.)]|\||#{1,6})\s)"
)
_HEADING = re.compile(
    r"^[ \t]*(?:>[ \t]*)*(?P<hashes>#{1,6})[ \t][^\n]*$|^[^\n]+\n[ \t]*(?:=+|-+)[ \t]*$", re.MULTILINE
)
_ITEM = re.compile(r"\s*(?:>\s*)*(?:[-*+]|\d+[.)])\s")
"""After a colon, it goes on with what the colon's sentence is about."""
_QUANTITY = re.compile(rf"\s*[~<>\u2248]?\s*[\d.,]*\d\s?(?:{UNIT})\s*")
_BARE = re.compile(r"\s*[~<>\u2248]?\s*[\d.,]*\d\s*")
_UNIT = re.compile(rf"[\s-]?(?:{UNIT})(?![\w/])")
_SIZE = re.compile(r"\s*(?:[BKMN]\s?(?:=|<=?|>=?)\s?\d[\d,]*|\d[\d,]*\s?[x\u00d7]\s?\d[\d,]*)\s*")
_LINK = re.compile(
    r"\]\([ \t]*<?[^)\s>]*>?|\]\[[^\]\n]*\]|^[ \t]*\[[^\]\n^][^\]\n]*\]:[ \t]*\S+|<?https?://[^\s>)]+>?", re.MULTILINE
)
"""Where a link leads, in all its forms; what it is written over is read."""
_TAG = re.compile(r"</?[a-zA-Z][^<>\n]*>")
_SHOWN = re.compile(r"""\b(?:alt|title|summary)\s*=\s*["']([^"'\n]*)""")
_ENTITY = re.compile(r"&#?\w+;")
_MARKS = re.compile(r"\\(?=[^\w\s])|\*\*|__|~~|(?<!\w)[*_](?=\w)|(?<=[\w%])[*_](?!\w)")


@dataclass(frozen=True)
class Sentence:
    line: int
    """Of its first word."""
    text: str
    """As it is read: no markup, code, address or comment; every line end where it was."""
    first: bool
    """It begins a paragraph."""
    level: int
    """Of a heading; 0 for all else."""
    opens: bool
    """A hole's marker stands before it: what was said above is another text."""
    pins: tuple[tuple[str, str], ...]
    """(fact, the one it is divided by or empty)"""

    def line_of(self, offset: int) -> int:
        lead = len(self.text) - len(self.text.lstrip())
        return self.line + self.text.count("\n", lead, offset) if offset > lead else self.line


def sentences(text: str) -> Iterator[Sentence]:
    """All of a draft in order: no managed block, comment or code."""
    text = _masked(text, [*_blocks(text), *_code(text, quantities=True)])
    text = _seen(text)
    pins = [(match.start(), (match["id"], match["over"] or "")) for match in PIN.finditer(text)]
    holes = [match.start() for match in _HOLE.finditer(text)]
    text = _masked(text, _spans(_COMMENT, text))
    start, first = 0, True
    headings = {match.end(): len(match["hashes"] or "#") for match in _HEADING.finditer(text)}
    ends = {match.start(): match.end() for match in _END.finditer(text)}
    cells = {last: words for _, last, words in table_rows.rows(text)}
    ends |= {end: ends.get(end, end) for end in (*headings, *cells, len(text))}
    for begin, last in sorted(ends.items()):
        words = text[start:begin]
        if words.strip():
            mine = tuple(pin for place, pin in pins if start <= place < last or place == last == len(text))
            hole = bool(holes) and any(place < begin for place in holes)
            holes = [place for place in holes if place >= begin]
            line = text.count("\n", 0, start + len(words) - len(words.lstrip())) + 1
            yield Sentence(line, cells.get(begin, words), first, headings.get(begin, 0), hole, mine)
            first = False
        listed = words.rstrip().endswith(":") and _ITEM.match(text, last)
        first = (first or begin in headings or text.count("\n", begin, last) > 1) and not listed
        start = last


def _seen(text: str) -> str:
    """As a browser shows it: no addresses, tags, entities, emphasis or escapes; every line where it was."""
    text = _LINK.sub("", text)
    text = _TAG.sub(lambda match: " ".join(_SHOWN.findall(match.group())), text)
    text = _ENTITY.sub(lambda match: html.unescape(match.group()).replace("<", " ").replace("\n", " "), text)
    return _MARKS.sub("", text)


def _blocks(text: str) -> list[Span]:
    return [(first, last) for _, first, last in managed.spans(text)]


def _code(text: str, *, quantities: bool = False) -> list[Span]:
    """Fenced and indented code, and what stands between backticks: quoted output and names, no claim of the person.

    With ``quantities`` a mere number with its unit, or a size, between backticks is none: it is a claim in another
    type, or says of what one is.
    """
    starts = [0]
    for part in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(part))
    tokens = MarkdownIt("commonmark").parse("\n".join(text.splitlines()))
    fences = [
        (starts[token.map[0]], starts[min(token.map[1], len(starts) - 1)])
        for token in tokens
        if token.type in ("fence", "code_block") and token.map
    ]
    inline = re.compile(r"(?<![`\\])(`+)(?!`)([^\n]+?)(?<!`)\1(?!`)")
    for match in inline.finditer(text):
        bare = _BARE.fullmatch(match[2]) and _UNIT.match(text, match.end())
        if quantities and (bare or _QUANTITY.fullmatch(match[2]) or _SIZE.fullmatch(match[2])):
            fences += [match.span(1), (match.end(2), match.end())]
        else:
            fences.append(match.span())
    return fences


def _spans(pattern: re.Pattern[str], text: str) -> list[Span]:
    return [match.span() for match in pattern.finditer(text)]


def _masked(text: str, spans: list[Span]) -> str:
    """The same text with those places blank, every line where it was."""
    for first, last in spans:
        text = text[:first] + re.sub(r"[^\n]", " ", text[first:last]) + text[last:]
    return text
