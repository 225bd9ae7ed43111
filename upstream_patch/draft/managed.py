"""The blocks of a draft that belong to the tool; everything between them belongs to the person who finishes it."""

from __future__ import annotations

import hashlib
import re

from upstream_patch.errors import UserError

_BLOCK = re.compile(
    r"<!-- BEGIN FACTS (?P<name>[a-z_]+) sha256=(?P<hash>[0-9a-f]{16}) -->\n"
    r"(?P<content>.*?)<!-- END FACTS (?P=name) -->",
    re.DOTALL,
)
_MARKER = re.compile(r"<!-- (?:BEGIN|END) FACTS ")


def block(name: str, content: str) -> str:
    """``content`` between markers; the opening one carries its hash, so that an edit by hand shows."""
    content = content.strip("\n") + "\n"
    return f"<!-- BEGIN FACTS {name} sha256={_hash(content)} -->\n{content}<!-- END FACTS {name} -->"


def merge(existing: str, fresh: str, path: str) -> str:
    """``existing`` with its blocks replaced by those of ``fresh``, and every other byte as it was.

    A block that the person deleted stays deleted. Raises UserError when a block was edited by hand, when its markers
    are damaged, or when ``fresh`` has no such block.
    """
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
    return _BLOCK.sub(lambda match: new[match["name"]], existing)


def strip(text: str) -> str:
    """Without the blocks: what the person wrote."""
    return _BLOCK.sub("", text)


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:16]
