"""What GitHub makes of a text: whom it would notify, and which other repositories' threads it would link.

GitHub looks for both in the HTML that it made, not in the Markdown: in texts between tags, outside code and links. So
escapes, entities and emphasis hide nothing from it, and a backtick hides something only where it is closed.
"""

from __future__ import annotations

import html
import re
from urllib.parse import unquote

from markdown_it import MarkdownIt

_FOOTNOTE = re.compile(r"^((?:[ ]{0,3}(?:>|[-*+]|\d{1,9}[.)]))*[ ]{0,3})\[\^[^\]\s]+\]:[ \t]*", re.MULTILINE)
"""GitHub's, which CommonMark takes for the address of a link, and shows nowhere."""
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_BLOCK = r"(?:p|div|li|ul|ol|td|th|tr|table|h[1-6]|blockquote|details|pre)"
_CODE = re.compile(
    r"<pre\b[^<>]*>.*?</pre>"
    # Closed in its own block, or else it is not taken for code: GitHub's cleaning may take another view of it.
    rf"|<(?P<tag>code|script|style)\b[^<>]*>(?:(?!</?{_BLOCK}\b).)*?</(?P=tag)>",
    re.DOTALL | re.IGNORECASE,
)
_LINK = re.compile(rf"<a\b[^<>]*>(?:(?!</?{_BLOCK}\b).)*?</a>", re.DOTALL | re.IGNORECASE)
_HREF = re.compile(r"""\b(?:href|src)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))""", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^>]*>")
_ADDRESS = re.compile(r"(?<![A-Za-z])(?:https?|ftp)://[A-Za-z0-9][^\s<]*", re.IGNORECASE)
"""As GitHub makes a link of it: no name in it is a mention."""
_MENTION = re.compile(r"(?<![A-Za-z0-9])@[A-Za-z0-9][A-Za-z0-9-]*(?:/[A-Za-z0-9](?:[\w.-]*\w)?)?", re.ASCII)
_REFERENCE = re.compile(r"(?<![\w.-])[\w.-]+(?:/[\w.-]+)?(?:#\d+\b|@[0-9a-f]{7,40}\b)", re.ASCII | re.IGNORECASE)
_THREAD = re.compile(
    r"(?<![\w.-])(?:www\.)?github\.com(?::\d+)?/+[\w.-]+/+[\w.-]+/+(?!(?:blob|tree|raw)/)\w[^\s<>\"')]*",
    re.ASCII | re.IGNORECASE,
)
"""Any page of a repository but a file of it."""


def mentions(text: str) -> list[str]:
    """People and teams that GitHub would notify, each once."""
    plain = _LINK.sub("<a>", _markup(text))
    return sorted({found for part in _texts(plain) for found in _MENTION.findall(_ADDRESS.sub(" ", part))})


def references(text: str) -> list[str]:
    """What GitHub would link to a thread or a commit that it names with its repository or owner, each once."""
    markup = _markup(text)
    texts, addresses = _texts(markup), [unquote(html.unescape("".join(match))) for match in _HREF.findall(markup)]
    threads = {found for part in [*texts, *addresses] for found in _THREAD.findall(part)}
    return sorted(threads | {found for part in texts for found in _REFERENCE.findall(_ADDRESS.sub(" ", part))})


def _markup(text: str) -> str:
    """HTML without comments and code. Tables are GitHub's: a ``|`` ends a cell, also between backticks.

    A footnote is rendered as an item of a list: as in GitHub's, what is indented by four goes on with it.
    """
    text = _FOOTNOTE.sub(r"\1-   ", text)
    rendered = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    return _CODE.sub("<code>", _COMMENT.sub("<!---->", rendered))


def _texts(markup: str) -> list[str]:
    """What stands between tags, as it is read."""
    return [html.unescape(part) for part in _TAG.split(markup.replace("<!---->", "<b>"))]
