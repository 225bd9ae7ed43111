"""What GitHub would notify and link, whatever the Markdown around it."""

from __future__ import annotations

import pytest

from upstream_patch.draft import rendered
from upstream_patch.errors import UserError
from upstream_patch.filing.post import Post, rehearsal


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Thanks @someone and @org/team.", ["@org/team", "@someone"]),
        ("(@x), /@y, .@z", ["@x", "@y", "@z"]),
        ("-@a", ["@a"]),
        ("_@a_ and **@b**", ["@a", "@b"]),
        ("&#64;a &commat;b &#x40;c", ["@a", "@b", "@c"]),
        (r"\@a", ["@a"]),
        (r"\`@a\`", ["@a"]),
        ("an open ` and @a", ["@a"]),
        ("a `` code ` @a `` and @b", ["@b"]),
        ("| x | y |\n| --- | --- |\n| `z | @a` |", ["@a"]),  # GitHub cuts the row into cells first
        ("x<!-- -->@a", ["@a"]),
        ("<b>@a</b>\n\n<div>\n@b\n</div>", ["@a", "@b"]),
        ("<code>@a\n\nand `b`", ["@a"]),
        ("\u00e9@a", ["@a"]),
        ("> - @a\n\n# @b\n\n1. ~~@c~~", ["@a", "@b", "@c"]),
        ("https://@a", ["@a"]),
        ("[@a] is no link", ["@a"]),
        ("@a/b@c.d", ["@a/b"]),
        ("x[^1]\n\n[^1]: @a", ["@a"]),
        ("[^1]: @a\n\n    @b\n[^n-2]:\n    @c\n> [^3]: @d\n\n- [^4]: @e", ["@a", "@b", "@c", "@d", "@e"]),
        ("Text\n[^1]:@a", ["@a"]),
        ("<kbd>@a</kbd> <samp>@b</samp> <tt>@c</tt>", ["@a", "@b", "@c"]),
        ("[^1]: `@a`, a@b.c\n\n`[^1]: @b`\n\n```\n[^1]: @c\n```\n\n    [^1]: @d\n\n[1]: @e", []),
        ("mail a@b.c, `@code`, <code>@raw</code>\n\n```\n@fence\n```\n\n    @indented\n", []),
        ("a\n~~~\n@x", []),
        ("[@a](https://github.com/a) ![@a](b) https://example.org/@a <https://example.org/@b>", []),
        ("<pre>\n@a\n</pre>\n\n<!-- @b -->", []),
    ],
)
def test_who_would_be_notified(text: str, found: list[str]) -> None:
    assert rendered.mentions(text) == found


LINKED = [
    "ml-explore/mlx#1",
    "_ml-explore/mlx#1_",
    "**ml-explore/mlx#1**",
    r"ml-explore/mlx\#1",
    "ml-explore/mlx&#35;1",
    "ml-explore/mlx&num;1",
    "ml-explore/mlx#&#49;",
    "ml-explore#1",
    "it[^1].\n\n[^1]: Of ml-explore/mlx#1.",
    "<kbd>ml-explore/mlx#1</kbd>",
    "(ml-explore/mlx#1)",
    "ml-explore/mlx@0be37ffc9dd3b937b887e783a0f4b864ba736fe9",
    "ml-explore@0be37ff",
    "https://github.com/ml-explore/mlx/issues/1",
    "http://github.com/ml-explore/mlx/pull/1#issuecomment-2",
    "https://GitHub.com/ml-explore/mlx/discussions/1",
    "HTTPS://WWW.GITHUB.COM/ml-explore/mlx/issues/1",
    "www.github.com/ml-explore/mlx/issues/1",
    "https://github.com:443/ml-explore/mlx/issues/1",
    "https://me@github.com/ml-explore/mlx/issues/1",
    "https://github.com//ml-explore/mlx//issues/1",
    "[x](//github.com/ml-explore/mlx/issues/1)",
    "[x](http://github.com/ml-explore/mlx/issues/1 'y')",
    "[x]\n\n[x]: <https://github.com/ml-explore/mlx/issues/1>",
    "<a href=https://github.com/ml-explore/mlx/commit/0be37ffc>x</a>",
    "https://github.com/ml-explore/mlx/compare/a...b",
]


@pytest.mark.parametrize("text", LINKED)
def test_a_rehearsal_links_to_nobody(text: str) -> None:
    assert rendered.references(f"See {text}")
    sent = rehearsal(Post("issue", "ml-explore/mlx", "x", f"Title {text}", f"See {text}"), "me/mlx")
    assert rendered.references(sent.text) == rendered.references(sent.title) == []
    assert rendered.mentions(sent.text) == rendered.mentions(sent.title) == []
    assert sent.repository == "me/mlx"


@pytest.mark.parametrize(
    "text",
    [
        "#3, GH-4 and M#N",
        "https://github.com/me/data/blob/main/a.md#1",
        "https://github.com/me/data",
        "https://redirect.github.com/ml-explore/mlx/issues/1",
        "https://example.org/ml-explore/mlx/issues/1",
        "notgithub.com/a/b/issues/1",
        "mail me@example.org",
    ],
)
def test_what_links_to_nobody_stays(text: str) -> None:
    post = Post("issue", "ml-explore/mlx", "x", text, text)
    assert rehearsal(post, "ml-explore/mlx") == post


@pytest.mark.parametrize("text", ["ml-explore/ml&#120;#1".replace("#1", "<i></i>#1"), "`ml-explore/mlx#1`"])
def test_what_github_does_not_link_is_no_reference(text: str) -> None:
    assert rendered.references(text) == []


@pytest.mark.parametrize(
    "text", ["https&#58;//github.com/o/r&#47;issues/1", "[x](https://github&#46;com/o/r/issues/1)"]
)
def test_a_reference_that_is_not_cut_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"seen upstream: GitHub links github\.com/o/r/issues/1: write it plainly"):
        rehearsal(Post("issue", "ml-explore/mlx", "x", "Title", text), "me/mlx")
