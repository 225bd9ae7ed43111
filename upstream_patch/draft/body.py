"""A finished draft as it is sent, without anything that is only the tool's."""

from __future__ import annotations

import re

from upstream_patch.draft import managed, prose

_TOP = re.compile(r"\A\ufeff?\s*<!-- Draft of .*?-->\s*", re.DOTALL)
_TITLE = re.compile(r"<!-- HOLE title: .*? -->.*?(?=<!-- HOLE )", re.DOTALL)
_MARKER = re.compile(r"<!-- HOLE [a-z_]+: .*? -->\n?", re.DOTALL)
_BEARING = re.compile(r"<!-- facts that bear on it:.*?-->\n?", re.DOTALL)


def body(text: str) -> str:
    """The draft without its markers, its first comment, pins of facts and the title; line ends are ``\\n``."""
    text = managed.unwrap(text.replace("\r\n", "\n"), _BEARING)
    for pattern in (_TOP, _TITLE, _MARKER, prose.PIN):
        text = pattern.sub("", text)
    return text.strip() + "\n"
