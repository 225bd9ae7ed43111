"""The page in a real Chromium: it loads, says nothing on the console, asks for nothing, and its plots can be seen.

Screenshots are kept in ``out/screenshots``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.report import page

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_plots]

VIEWS = {"light": (1200, "light"), "dark": (1200, "dark"), "phone": (360, "light"), "phone-dark": (360, "dark")}
"""Name -> CSS pixels across, preferred colours."""
_LOOK = """() => ({
  wide: document.documentElement.scrollWidth,
  plots: [...document.querySelectorAll(".plot svg")].map(svg => {
    const box = svg.getBoundingClientRect(), panel = svg.closest(".plot").getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map(text => text.getBoundingClientRect());
    return {
      width: box.width, height: box.height, marks: svg.querySelectorAll("path, use").length,
      smallest: Math.min(...texts.map(text => text.height)),
      inside: box.left >= panel.left && box.right <= panel.right + 1,
      cut: texts.filter(text => text.left < box.left - 1 || text.right > box.right + 1).length,
    };
  }),
  page: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
  broken: [...document.querySelectorAll("a[href^='#']")].filter(a => !document.getElementById(a.hash.slice(1))).length,
})"""


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    quiet = ["--disable-gpu"]  # a page of 20,000 px is more than a software GPU always takes in one picture
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=[*root, *quiet])
        yield browser
        browser.close()


@pytest.mark.parametrize("view", VIEWS)
def test_the_committed_page_can_be_read(root: Path, browser: Any, view: str) -> None:
    look = _shown(browser, root / "evidence" / page.FILE, view, root / "out" / "screenshots" / f"{view}.png")
    _readable(look, view)


def test_a_page_whose_plot_is_empty_or_too_wide_is_seen(root: Path, browser: Any, tmp_path: Path) -> None:
    """What the test above looks at would not be right by itself."""
    text = (root / "evidence" / page.FILE).read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    for was, becomes in (
        (".plot svg { display: block;", ".plot svg { display: none;"),
        ("main { max-width: 75rem;", "main { min-width: 60rem;"),
        ("</main>", "<script>1</script></main>"),
        ("</main>", "<img src='http://127.0.0.1:9/x.png'></main>"),
    ):
        assert was in text
        broken.write_text(text.replace(was, becomes), encoding="utf-8")
        with pytest.raises(AssertionError):
            _readable(_shown(browser, broken, "phone"), "phone")


def test_long_words_of_a_machine_do_not_make_a_phone_scroll_sideways(root: Path, browser: Any, tmp_path: Path) -> None:
    """Its name, a version and a command may be one unbroken word."""
    text = (root / "evidence" / page.FILE).read_text(encoding="utf-8")
    word = "unbroken-" * 40
    for before, after in (("<dd>", "</dd>"), ('<tr><th scope="row">', "</th>"), ("<code>", "</code>")):
        head, _, rest = text.partition(before)
        long = tmp_path / "long.html"
        long.write_text(head + before + word + after + rest.partition(after)[2], encoding="utf-8")
        assert _shown(browser, long, "phone")["wide"] <= VIEWS["phone"][0], before


def _shown(browser: Any, path: Path, view: str, picture: Path | None = None) -> dict[str, Any]:
    width, scheme = VIEWS[view]
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    asked: list[str] = []
    try:
        tab = context.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.resolve().as_uri())
        look: dict[str, Any] = tab.evaluate(_LOOK)
        if picture is not None:
            picture.parent.mkdir(parents=True, exist_ok=True)
            tab.screenshot(path=picture, full_page=True)
    finally:
        context.close()
    return look | {"said": said, "asked": [url for url in asked if url != path.resolve().as_uri()]}


def _readable(look: dict[str, Any], view: str) -> None:
    width, scheme = VIEWS[view]
    assert look["said"] == [] and look["asked"] == []
    assert look["wide"] <= width, "the page scrolls sideways"
    assert look["broken"] == 0
    assert len(look["plots"]) > 1
    for plot in look["plots"]:
        assert plot["width"] > 200 and plot["height"] > 100 and plot["marks"] > 10, plot
        assert plot["inside"] and plot["cut"] == 0, plot
        assert plot["smallest"] > 8, plot
    paper, ink = (sum(int(part) for part in look[name][4:-1].split(",")) / 3 for name in ("page", "ink"))
    assert paper - ink > 150 if scheme == "light" else ink - paper > 150
