"""The blocks of a draft that belong to the tool; everything between them belongs to the person who finishes it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from upstream_patch.errors import UserError

_BLOCK = re.compile(
    r"<!-- BEGIN FACTS (?P<name>[a-z_]+) sha256=(?P<hash>[0-9a-f]{16}) -->(?P<end>\r?\n)"
    r"(?P<content>.*?)<!-- END FACTS (?P=name) -->",
    re.DOTALL,
)
_TOP = re.compile(r"<!-- Draft of ")
_HOLE_BEGINS = re.compile(r"<!-- HOLE\b")
HOLE = re.compile(r"<!-- HOLE (?P<id>[a-z_]+): (?P<hint>.*?) -->", re.DOTALL)
_MARKER = re.compile(r"<!-- (?:BEGIN|END) FACTS ")


def read(path: Path) -> str:
    """A draft's text with its line ends as they are. Raises UserError when it is not UTF-8."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None


def block(name: str, content: str) -> str:
    """``content`` between markers; the opening one carries its hash, so that an edit by hand shows."""
    content = content.strip("\n") + "\n"
    return f"<!-- BEGIN FACTS {name} sha256={_hash(content)} -->\n{content}<!-- END FACTS {name} -->"


def merge(existing: str, fresh: str, path: str) -> str:
    """``existing`` with its blocks replaced by those of ``fresh``, and every other byte as it was.

    A new block has the line ends of the one it replaces. Raises UserError when a block was edited by hand or is gone
    (its numbers may still stand there, and would never be renewed), when markers are damaged, or when ``fresh`` has no
    such block. Raises it, too, where a marker of the tool would be sent, or words would land in another hole: text
    above the first comment, and holes that are twice there, out of order or damaged.
    """
    _require_markers(existing, fresh, path)
    blocks = list(_BLOCK.finditer(existing))
    if len(_MARKER.findall(existing)) != 2 * len(blocks) or not blocks:
        raise UserError(
            f"{path}: the FACTS markers are damaged or gone: restore them, or move the file away and draft anew"
        )
    new = {match["name"]: match.group() for match in _BLOCK.finditer(fresh)}
    for match in blocks:
        line = existing.count("\n", 0, match.start()) + 1
        if _hash(match["content"]) != match["hash"]:
            raise UserError(
                f"{path}:{line}: the FACTS block {match['name']} was edited by hand: move your words out of it and "
                "restore it, or move the file away and draft anew"
            )
        if match["name"] not in new:
            raise UserError(f"{path}:{line}: the FACTS block {match['name']} is not one this version fills: delete it")
    if gone := sorted(new.keys() - {match["name"] for match in blocks}):
        raise UserError(
            f"{path}: the FACTS block {gone[0]} is gone: restore it, or move the file away, draft anew and copy your "
            "words back"
        )
    return _BLOCK.sub(lambda match: _with_ends(new[match["name"]], match), existing)


def _require_markers(existing: str, fresh: str, path: str) -> None:
    def fault(place: int, what: str) -> UserError:
        return UserError(f"{path}:{existing.count(chr(10), 0, place) + 1}: {what}")

    tops = [match.start() for match in _TOP.finditer(existing)]
    if tops and (above := existing[: tops[0]].strip("\ufeff \t\r\n")):
        where = existing.index(above)
        raise fault(where, "text above the tool's first comment would be sent with it: move it below")
    if len(tops) > 1:
        raise fault(tops[1], "the tool's first comment stands twice: delete this one")
    order = [match["id"] for match in HOLE.finditer(fresh)]
    last = -1
    for match in _HOLE_BEGINS.finditer(existing):
        whole = HOLE.match(existing, match.start())
        if whole is None or "<!--" in whole["hint"]:
            raise fault(match.start(), "the marker of a hole is damaged: restore it, from <!-- to -->")
        if whole["id"] not in order:
            raise fault(match.start(), f"the hole {whole['id']} is none of this draft: delete its marker")
        if (number := order.index(whole["id"])) <= last:
            twice = sum(one["id"] == whole["id"] for one in HOLE.finditer(existing)) > 1
            what = "stands twice: keep one" if twice else f"stands below {order[last]}: put it back above"
            raise fault(match.start(), f"the hole {whole['id']} {what}")
        last = number


def strip(text: str) -> str:
    """Without the blocks: what the person wrote."""
    return _BLOCK.sub("", text)


def intact(block: str) -> bool:
    """Whether this is one block, with its markers, as the tool wrote it, but for line ends."""
    match = _BLOCK.fullmatch(block.strip("\r\n"))
    return match is not None and _hash(match["content"]) == match["hash"]


def unwrap(text: str, without: re.Pattern[str]) -> str:
    """With the blocks' contents and without their markers, nor what matches in a block."""
    return _BLOCK.sub(lambda match: without.sub("", match["content"]).strip("\n"), text)


def spans(text: str) -> list[tuple[str, int, int]]:
    """Name, start and end of every block."""
    return [(match["name"], match.start(), match.end()) for match in _BLOCK.finditer(text)]


def _with_ends(block: str, old: re.Match[str]) -> str:
    if _plain(old.group()) == block:
        return old.group()
    return block.replace("\n", old["end"])


def _hash(content: str) -> str:
    return hashlib.sha256(_plain(content).encode()).hexdigest()[:16]


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")
