"""The one edit of a downstream doc: its CUDA caveat gives way to a managed note, and every other byte stays.

The doc is lablup/mlxcel's ``docs/CONTINUOUS_BATCHING.md``. Its caveat is found by structure, not by wording: the block
quote that begins ``Backend note (CUDA`` under the heading about serving defaults. Below it a sentence may still say
that a CUDA measurement is pending; it goes with the caveat.
"""

from __future__ import annotations

import difflib
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
    section = _section(_top(doc))
    first, last = _caveat(section, lines)
    cuts = [(first, last, _ended(managed.block(NAME, quote), lines[first:last]))]
    if pending := _pending(section, lines, (first, last), device):
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


def _top(doc: str) -> list[_Block]:
    """Headings, block quotes, comments and paragraphs that lie in no other block."""
    tokens = MarkdownIt("commonmark").parse(doc.removeprefix("\ufeff"))
    return [
        _Block(
            token.type.removesuffix("_open"),
            token.map[0],
            token.map[1],
            _words(tokens, index),
            int(token.tag[1:]) if token.type == "heading_open" else 0,
        )
        for index, token in enumerate(tokens)
        if token.level == 0
        and token.map
        and token.type in ("heading_open", "blockquote_open", "html_block", "paragraph_open")
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


def _pending(
    section: Sequence[_Block], lines: Sequence[str], caveat: tuple[int, int], device: str
) -> tuple[int, int, str] | None:
    """The sentence that calls a CUDA measurement pending: its paragraph's lines, and those without it."""
    wanted = (*_PENDING, device.rpartition(" ")[2])
    found = [
        (block, text[:start] + text[end:])
        for block in section
        if block.kind == "paragraph" and not caveat[0] <= block.first < caveat[1]
        for text in ("".join(lines[block.first : block.last]),)
        for start, end in _sentences(text)
        if all(word in text[start:end] for word in wanted)
    ]
    if len(found) > 1:
        raise UserError(f"line {found[1][0].first + 1}: a second sentence calls a CUDA measurement pending: leave one")
    if not found:
        return None
    block, left = found[0]
    if left.strip():
        return block.first, block.last, left
    blank = block.last < len(lines) and not lines[block.last].strip()
    return block.first, block.last + blank, ""


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
