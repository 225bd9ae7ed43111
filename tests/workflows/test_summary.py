"""The pages of jobs, whole, as they are shown: tests/workflows/pages. UPDATE_PAGES=1 writes them anew, for a reader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from ci import summary
from ci.gate import Decision
from ci.result import StageLine
from tests.workflows import samples

PAGES = {
    "gate": Decision(samples.COMMIT, ("gb10", "m5"), "schedule on main").page(),
    "gate-nothing": Decision(samples.COMMIT, (), "a runner is not registered (variable DEVICES)").page(),
    "health-fit": summary.health(samples.FIT),
    "health-unfit": summary.health(samples.UNFIT),
    "device-good": summary.device(samples.GOOD),
    "device-unfit": summary.device(samples.STOPPED),
    "device-partial": summary.device(samples.PARTIAL),
    "device-cut-off": summary.device(samples.CUT_OFF),
    "device-no-health": summary.device(samples.UNASKED),
    "collected": summary.collected([samples.GOOD, samples.STOPPED], 1),
}
FOLDER = Path(__file__).with_name("pages")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_one_that_is_kept(name: str) -> None:
    path = FOLDER / f"{name}.md"
    if os.environ.get("UPDATE_PAGES") == "1":
        path.write_text(PAGES[name], encoding="utf-8")
    assert path.read_text(encoding="utf-8") == PAGES[name]


def test_every_kept_page_is_rendered() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == PAGES.keys()


def test_what_a_device_says_stays_text() -> None:
    page = PAGES["device-partial"]
    assert "<b>" not in page
    assert "@owner" not in page
    (row,) = [line for line in page.splitlines() if line.startswith("| profile")]
    assert row.count("|") == 4


HOSTILE = (
    "a\\| b | c",
    "![x](https://example.org/x.png) [y](javascript:z) <img src=x onerror=y> &lt;",
    "**bold** _it_ `code` ~~gone~~ $x$ # h #12 @owner ##[add-mask]x",
    "line\n::error::x\r\n\n| new | row |\u202egnp\x1b[31m\0",
)


def test_no_word_of_a_device_is_markup() -> None:
    """By a Markdown reader with tables: the words come out as they went in, each in its own cell."""
    stages = tuple(StageLine(stage=text, outcome="FAILED", detail=text) for text in HOSTILE)
    page = summary.device(samples.PARTIAL.model_copy(update={"stages": stages, "files": ()}))
    assert "::" not in {line[:2] for line in page.splitlines()}
    assert "##[" not in page
    reader = MarkdownIt("gfm-like", {"linkify": False})
    tokens = reader.parse(page)
    cells = [tokens[at + 1] for at, token in enumerate(tokens) if token.type == "td_open"]
    assert len(cells) == 3 * len(HOSTILE)
    kinds = {child.type for cell in cells for child in cell.children or ()}
    assert kinds <= {"text", "text_special"}
    plain = ["".join(child.content for child in cell.children or ()) for cell in cells[::3]]
    letters = [
        text.replace("@", "@\u200b").replace("\u202e", "").replace("\x1b", "").replace("\0", "") for text in HOSTILE
    ]
    assert plain == [" ".join(text.split()) for text in letters]


def test_a_page_has_an_end() -> None:
    stages = tuple(StageLine(stage="x" * 10**6, outcome="FAILED", detail="y" * 10**6) for _ in range(3))
    lines = tuple(samples.FILES[1].model_copy(update={"path": f"evidence/records/gb10/r{n}.json"}) for n in range(5000))
    page = summary.device(samples.PARTIAL.model_copy(update={"stages": stages, "files": lines}))
    assert len(page) < 2**16
    assert "(1000000 letters)" in page
    assert "\n4800 more are left out.\n" in page
