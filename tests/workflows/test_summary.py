"""The pages of jobs, whole, as they are shown: tests/workflows/pages. UPDATE_PAGES=1 writes them anew, for a reader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci import summary
from ci.gate import Decision
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
    assert row.replace("\\|", "").count("|") == 4
