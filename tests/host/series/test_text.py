"""Anchored edits: ours go in beside the one anchor, everything else stays as it is, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from upstream_patch.series import text
from upstream_patch.series.model import Edit

ANCHOR = "bool supports_this("
READ = {"version": "0.32.4", "line": 1}


def edit(**changes: object) -> Edit:
    given = {"name": "one", "file": "a.h", "anchor": ANCHOR, "place": "before", "lines": "ours\n"}
    return Edit.model_validate(given | {"reason": "because it must", "read": READ} | changes)


LINES = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=12), max_size=6)


@given(
    before=LINES,
    after=LINES,
    indent=st.sampled_from(["", "  ", "\t"]),
    tail=st.sampled_from(["", "\r"]),
    ended=st.booleans(),
    place=st.sampled_from(["before", "after", "replace"]),
    ours=st.lists(st.sampled_from(["x", "  y;", "", ANCHOR + "again)"]), min_size=1, max_size=3).filter(any),
)
def test_our_lines_go_in_and_nothing_else_changes(
    before: list[str], after: list[str], indent: str, tail: str, ended: bool, place: str, ours: list[str]
) -> None:
    line = ANCHOR if place == "replace" else f"{indent}{ANCHOR}int x)"
    lines = [*before, line + tail, *after]
    end = "\n" if ended else ""
    given_text = "\n".join(lines) + end
    if not ended and not after and tail:
        return  # a lone carriage return ends no line
    put = [mine + tail for mine in ours]
    middle = {"before": [*put, line + tail], "after": [line + tail, *put], "replace": put}[place]
    expected = "\n".join([*before, *middle, *after]) + end
    it = edit(place=place, lines="".join(f"{mine}\n" for mine in ours))
    assert text.apply(given_text, [it]) == expected


def test_edits_of_one_file_are_found_in_the_text_as_it_was() -> None:
    first = edit(lines=f"{ANCHOR}, a second time\n")
    second = edit(name="two", place="after", lines="tail\n")
    third = edit(name="three", place="before", lines="between\n")
    assert text.apply(f"{ANCHOR}\nz\n", [first, second, third]) == (
        f"{ANCHOR}, a second time\nbetween\n{ANCHOR}\ntail\nz\n"
    )


@pytest.mark.parametrize(
    ("given_text", "told"),
    [
        (
            "int a;\nbool supports_that(\nbool supports_qmv(\n",
            "a.h: the anchor «bool supports_this(» of one stands 0 times, nearest line 2: bool supports_that(; "
            "line 3: bool supports_qmv(",
        ),
        (
            f"{ANCHOR}\n\n  {ANCHOR}x\n",
            "a.h: the anchor «bool supports_this(» of one stands 2 times, in line 1: bool supports_this(; "
            "line 3: bool supports_this(x",
        ),
        (f"{ANCHOR}{ANCHOR}\n", "stands 2 times, in line 1"),
        ("", "stands 0 times, and nothing is like it"),
    ],
)
def test_an_anchor_that_is_not_there_once_says_what_is(given_text: str, told: str) -> None:
    with pytest.raises(text.AnchorError) as raised:
        text.apply(given_text, [edit()])
    assert told in str(raised.value)


def test_a_replaced_line_is_the_whole_anchor() -> None:
    it = edit(place="replace")
    with pytest.raises(text.AnchorError, match="stands 0 times, nearest line 1"):
        text.apply(f"  {ANCHOR}\n", [it])
    with pytest.raises(text.AnchorError, match="two edits replace line 1"):
        text.apply(f"{ANCHOR}\n", [it, edit(name="two", place="replace")])


def test_of_several_anchors_the_one_below_a_line_is_taken() -> None:
    function = "void of_this_function("
    found = f"{ANCHOR}\n{function}\nz\n{ANCHOR}\n{ANCHOR}\n"
    it = edit(below=function)
    assert text.apply(found, [it]) == f"{ANCHOR}\n{function}\nz\nours\n{ANCHOR}\n{ANCHOR}\n"
    whole = edit(below=function, place="replace")
    assert text.apply(found.replace("z", f"{ANCHOR}int x)"), [whole]) == (
        f"{ANCHOR}\n{function}\n{ANCHOR}int x)\nours\n{ANCHOR}\n"
    )
    with pytest.raises(text.AnchorError, match=r"the anchor «bool supports_this.» of one is not below line 2"):
        text.apply(f"{ANCHOR}\n{function}\n", [it])
    with pytest.raises(text.AnchorError, match=r"«void of_this_function.» of one stands 2 times, in line 1"):
        text.apply(f"{function}\n{found}", [it])
    with pytest.raises(text.AnchorError, match="stands 0 times, nearest line 1: void of_that_function"):
        text.apply(f"void of_that_function(\n{ANCHOR}\n", [it])


@pytest.mark.parametrize(
    "changes",
    [
        {"anchor": "short"},
        {"below": "short"},
        {"anchor": "x" * 101},
        {"anchor": "two\nlines of it"},
        {"lines": "no end"},
        {"lines": "\n"},
        {"file": "../outside"},
        {"file": "/etc/passwd"},
        {"read": {"line": 1}},
        {"read": READ | {"commit": "08dfb6e1"}},
        {"read": READ | {"count": 2}},
        {"place": "inside"},
    ],
)
def test_data_that_cannot_be_an_edit_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        edit(**changes)


def test_lines_are_seen_where_they_stand_whatever_their_indentation() -> None:
    it = edit(lines="  a\n\n  b\n")
    assert text.holds("x\na\n    b\ny\n", it)
    assert not text.holds("x\na\ny\nb\n", it)
