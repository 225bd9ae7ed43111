"""The one edit of a downstream doc: its CUDA caveat gives way to a managed note, and every other byte stays.

The doc is lablup/mlxcel's ``docs/CONTINUOUS_BATCHING.md``. Its caveat is found by structure, not by wording: the block
quote that begins ``Backend note (CUDA`` under the heading about serving defaults. Below it a sentence may still say
that a CUDA measurement is pending; it goes with the caveat.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from upstream_patch.draft import managed
from upstream_patch.errors import UserError

NAME = "cuda_note"
OPENING = "Backend note (CUDA"
_HEADING = re.compile(r"serving\b.*\bdefaults\b", re.IGNORECASE | re.DOTALL)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)(?<!vs\.)\s+")
_NOTE = re.compile(r"^[*_\s]*Backend note \(", re.MULTILINE)
_PENDING = ("pending", "CUDA", "measurement")


@dataclass(frozen=True)
class _Block:
    """A block at the doc's top level: its type, its lines [first, last), its text."""

    kind: str
    first: int
    last: int
    text: str
    level: int
    """Of a heading."""


def note(body: str, device: str) -> str:
    """The block quote from a finished draft's body; ``device`` is the product's whole name."""
    lines = [f"{OPENING}, {device}):", "", *body.strip().splitlines()]
    return "\n".join(f"> {line}".rstrip() for line in lines)


def edit(doc: str, quote: str, device: str) -> str:
    """``doc`` with its caveat replaced by ``quote``, a block quote, between markers that carry its hash.

    A sentence that calls a measurement on ``device`` (the product's whole name) pending goes, too, and no other's.
    New lines get the line ends of those that they replace. The same quote again changes nothing. Raises UserError when
    the section or the caveat is not there or is there twice, and when the note was edited by hand since.
    """
    lines = _LINE.findall(doc)
    tokens = MarkdownIt("commonmark").enable("table").parse(doc.removeprefix("\ufeff"))
    section = _section(_top(tokens))
    first, last = _caveat(section, lines)
    _require_one_note(tokens, first, last)
    cuts = [(first, last, _ended(managed.block(NAME, quote), lines[first:last]))]
    if pending := _pending(tokens, section, (first, last), lines, device):
        cuts.append(pending)
    for start, end, new in sorted(cuts, reverse=True):
        lines[start:end] = [new]
    return "".join(lines)


def diff(name: str, before: str, after: str) -> str:
    """Unified, as ``git apply`` takes it; empty where nothing changes."""
    result = []
    # Not splitlines: a form feed ends no line of a file.
    for line in difflib.unified_diff(_LINE.findall(before), _LINE.findall(after), f"a/{name}", f"b/{name}"):
        result.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(result)


def read(path: Path) -> str:
    """A doc's text, line ends as they are. Raises UserError where it is not a UTF-8 file."""
    if not path.is_file():
        raise UserError(f"no file {path}: name docs/CONTINUOUS_BATCHING.md of a checkout of lablup/mlxcel")
    return managed.read(path)


def _top(tokens: Sequence[Token]) -> list[_Block]:
    """All blocks that lie in no other one."""
    return [
        _Block(
            token.type.removesuffix("_open"),
            token.map[0],
            token.map[1],
            _words(tokens, index),
            int(token.tag[1:]) if token.type == "heading_open" else 0,
        )
        for index, token in enumerate(tokens)
        if token.level == 0 and token.map
    ]


def _words(tokens: Sequence[Token], index: int) -> str:
    """The text of a block, or of the first paragraph in it."""
    if tokens[index].type == "html_block":
        return tokens[index].content
    following = tokens[index + 1 : index + 3]
    return next((token.content for token in following if token.type == "inline"), "")


def _section(blocks: Sequence[_Block]) -> list[_Block]:
    """The blocks under the one heading about serving defaults, deeper headings and what is under them included."""
    heads = [index for index, block in enumerate(blocks) if block.kind == "heading" and _HEADING.search(block.text)]
    if len(heads) != 1:
        what = f"{len(heads)} headings" if heads else "no heading"
        raise UserError(
            f"the doc has {what} about serving defaults, one is edited: name the right file, or edit by hand"
        )
    start = heads[0] + 1
    following = (
        index
        for index, block in enumerate(blocks[start:], start)
        if block.kind == "heading" and block.level <= blocks[heads[0]].level
    )
    return list(blocks[start : next(following, len(blocks))])


def _caveat(section: Sequence[_Block], lines: Sequence[str]) -> tuple[int, int]:
    """The lines of the caveat, or of the note and its markers where it was replaced before."""
    quotes = [block for block in section if block.kind == "blockquote" and block.text.lstrip("*_ ").startswith(OPENING)]
    begins = [block for block in section if block.text.startswith(f"<!-- BEGIN FACTS {NAME} ")]
    ends = [block for block in section if block.text.startswith(f"<!-- END FACTS {NAME} ")]
    if len(quotes) > 1 or len(begins) > 1:
        raise UserError(f"the section has {max(len(quotes), len(begins))} notes that begin '{OPENING}': leave one")
    if not begins and not ends:
        if not quotes:
            raise UserError(f"the section has no block quote that begins '{OPENING}': edit the doc by hand")
        first, last = quotes[0].first, quotes[0].last
        while not lines[last - 1].strip():
            last -= 1
        return first, last
    if len(begins) != 1 or len(ends) != 1 or ends[0].first < begins[0].first:
        raise UserError(f"line {(begins or ends)[0].first + 1}: the markers of the note are damaged: restore them")
    first, last = begins[0].first, ends[0].last
    if quotes and not first < quotes[0].first < last:
        raise UserError(
            f"line {quotes[0].first + 1}: a note that begins '{OPENING}' stands beside the managed one: leave one"
        )
    if not managed.intact("".join(lines[first:last])):
        raise UserError(
            f"line {first + 1}: the note was edited by hand since: move your words out of it and restore it, "
            "or take its markers away"
        )
    return first, last


def _require_one_note(tokens: Sequence[Token], first: int, last: int) -> None:
    """The lines to be replaced hold no other backend's note, which would go with this one."""
    notes = sum(
        len(_NOTE.findall(token.content)) for token in tokens if token.type == "inline" and _within(token, first, last)
    )
    if notes > 1:
        raise UserError(f"line {first + 1}: the quote holds {notes} backend notes: give each a quote of its own")


def _within(token: Token, first: int, last: int) -> bool:
    return token.map is not None and first <= token.map[0] < last


def _pending(
    tokens: Sequence[Token], section: Sequence[_Block], caveat: tuple[int, int], lines: Sequence[str], device: str
) -> tuple[int, int, str] | None:
    """The sentence that calls a CUDA measurement pending, at whatever depth: lines, and what stays of them."""
    wanted = (*_PENDING, device.rpartition(" ")[2])
    stack: list[Token] = []
    found: list[tuple[list[Token], Token, int, int]] = []
    for token in tokens:
        if token.nesting < 0:
            stack.pop()
        elif token.nesting > 0:
            stack.append(token)
        elif (
            token.type == "inline"
            and _within(stack[0], section[0].first, section[-1].last)
            and not _within(stack[0], *caveat)
        ):
            found += [
                ([*stack], token, start, end)
                for start, end in _sentences(token.content)
                if all(word in token.content[start:end] for word in wanted)
            ]
    if not found:
        return None
    stack, token, start, end = found[-1]
    place = next(outer.map[0] for outer in reversed(stack) if outer.map)
    if len(found) > 1:
        raise UserError(f"line {place + 1}: a second sentence calls a CUDA measurement pending: leave one")
    cut = None
    if stack[-1].type == "paragraph_open" and token.map:
        whole = not (token.content[:start] + token.content[end:]).strip()
        cut = _cut_block(tokens, stack, lines) if whole else _cut_words(token, start, end, lines)
    if cut is None:
        raise UserError(f"line {place + 1}: this calls a CUDA measurement pending: take that out by hand first")
    return cut


def _cut_words(token: Token, start: int, end: int, lines: Sequence[str]) -> tuple[int, int, str] | None:
    """A paragraph's lines without these characters of its text; None where a line does not hold its text as it is."""
    first, last = token.map or (0, 0)
    text, place = "", 0
    for raw, row in zip(lines[first:last], token.content.split("\n"), strict=True):
        at = raw.rfind(row)
        if at < 0:
            return None
        if place == 0 or not start <= place - 1 < end:  # the line before keeps its end
            text += raw[:at]
        text += "".join(letter for offset, letter in enumerate(row, place) if not start <= offset < end)
        place += len(row) + 1
        if place > len(token.content) or not start <= place - 1 < end:
            text += raw[at + len(row) :]
    return first, last, text


def _cut_block(tokens: Sequence[Token], stack: Sequence[Token], lines: Sequence[str]) -> tuple[int, int, str] | None:
    """The paragraph's lines, with the quotes and list items that hold nothing else; None where one of them does."""
    depth = len(stack) - 1
    while depth and _children(tokens, stack[depth - 1]) == 1:
        depth -= 1
    if (depth and stack[depth].type != "list_item_open") or stack[depth].map is None:
        return None
    first, last = stack[depth].map or (0, 0)
    while not lines[last - 1].strip():
        last -= 1
    blank = depth == 0 and last < len(lines) and not lines[last].strip()
    return first, last + blank, ""


def _children(tokens: Sequence[Token], outer: Token) -> int:
    begin = next(index for index, token in enumerate(tokens) if token is outer)
    inside = itertools.takewhile(lambda token: token.level > outer.level, tokens[begin + 1 :])
    return sum(token.level == outer.level + 1 and token.nesting >= 0 for token in inside)


def _sentences(text: str) -> list[tuple[int, int]]:
    """Each with the space before it; the first with the space after it."""
    body = text.rstrip("\r\n")
    gaps = [match.span() for match in _SENTENCE_END.finditer(body)]
    if not gaps:
        return [(0, len(body))]
    ends = [*(gap[0] for gap in gaps[1:]), len(body)]
    return [(0, gaps[0][1]), *((gap[0], end) for gap, end in zip(gaps, ends, strict=True))]


def _ended(block: str, old: Sequence[str]) -> str:
    """``block`` with the line ends of the lines that it replaces, the last of which may have none."""
    text = block.replace("\n", "\r\n") if old[0].endswith("\r\n") else block
    final = re.search(r"[\r\n]+\Z", old[-1])
    return text + (final.group() if final else "")
