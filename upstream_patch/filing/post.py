"""What is sent: one issue, pull request or comment, with the hidden line by which it is found again."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

from upstream_patch.draft import rendered
from upstream_patch.errors import UserError
from upstream_patch.github import Kind
from upstream_patch.github.client import MAX_BODY

_ADDRESS = re.compile(
    r"(?:(?:https?:)?//(?:[^\s/@<>()\[\]]+@)?)?(?<![\w.-])(?:www\.)?github\.com(?::\d+)?/+"
    r"(?=[\w.-]+/+[\w.-]+/+(?!(?:blob|tree|raw)/)\w)",
    re.IGNORECASE,
)
"""Of any page of a repository but a file of it."""
_NUMBER = re.compile(
    r"(?P<address>https?://[^\s<>()\[\]]+)"
    r"|(?<=[\w.;-])(?P<sign>\\?(?:#|&#0*35;|&#x0*23;|&num;))(?=\d|&#)"
    r"|(?<=[\w.;-])(?P<at>\\?@)(?=[0-9a-f]{7,40}(?![0-9a-z]))",
    re.IGNORECASE,
)
"""The sign of ``owner/name#1`` and ``owner@commit``, however it is written; addresses are passed over."""
_CUT, _CUT_IN_TITLE = "&#8203;", "\u200b"
"""A title takes no entities."""


@dataclass(frozen=True)
class Post:
    """One text for one place. ``text`` is a person's; ``body`` is what GitHub gets."""

    kind: Kind
    repository: str
    """``owner/name``."""
    change_id: str
    """The same for every attempt, on every machine: another one is another text."""
    title: str
    """Empty for a comment."""
    text: str
    head: str = ""
    """``owner:branch`` of a pull request."""
    base: str = ""
    commit: str = ""
    """That ``head`` is at."""
    number: int = 0
    """The issue that a comment goes under."""

    @property
    def marker(self) -> str:
        """Not shown by GitHub, and unlike any other text in it."""
        return f"<!-- change-id: {self.change_id} -->"

    @property
    def body(self) -> str:
        return f"{self.text.rstrip()}\n\n{self.marker}\n"

    @property
    def sha256(self) -> str:
        """Of title and body as they are sent."""
        return text_sha256(self.title, self.body)

    @property
    def edition(self) -> int:
        """That the change id ends in."""
        return int(self.change_id.rpartition("-")[2])

    def checked(self) -> Post:
        """Itself. Raises UserError for what GitHub would not take, or what must not be sent."""
        if self.kind != "comment" and not self.title.strip():
            raise UserError(f"the {self.kind} has no title")
        if not self.text.strip():
            raise UserError(f"the {self.kind} has no text")
        if len(self.body) > MAX_BODY:
            raise UserError(f"the body has {len(self.body):,} characters, GitHub takes {MAX_BODY:,}: shorten it")
        if "<!-- change-id:" in self.text:
            raise UserError("the text has a change-id line already, which the tool adds: take it out")
        return self


def text_sha256(title: str, body: str) -> str:
    """Of a title and a body, whatever their line ends and the space around them, which GitHub may change."""
    plain = body.replace("\r\n", "\n").strip()
    return hashlib.sha256(f"{title.strip()}\n{plain}".encode()).hexdigest()


def rehearsal(post: Post, repository: str) -> Post:
    """The same for a person's own fork, with links to other repositories' threads cut.

    GitHub writes "mentioned in" under every thread that a public text names, also from a fork: a rehearsal would be
    seen upstream. An invisible character breaks ``owner/name#1``; GitHub's own redirect host stands in addresses.
    Raises UserError for a reference in a form that this does not cut.
    """
    title, text = _cut(post.title, _CUT_IN_TITLE), _cut(post.text, _CUT)
    if left := [*rendered.references(title), *rendered.references(text)]:
        raise UserError(f"a rehearsal would be seen upstream: GitHub links {left[0]}: write it plainly")
    return replace(post, repository=repository, title=title, text=text)


def _cut(text: str, cut: str) -> str:
    def signed(match: re.Match[str]) -> str:
        if match["address"]:
            return match.group()
        return f"{cut}{match['sign']}" if match["sign"] else f"{match['at']}{cut}"  # before an @, it would be a mention

    return _NUMBER.sub(signed, _ADDRESS.sub("https://redirect.github.com/", text))
