"""The committed page of routes and tuning is what the code says, and says it of every case."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from upstream_patch import routing_table
from upstream_patch.kernels import small_m_variant
from upstream_patch.kernels.tuning import DEVICE_CLASSES, FORMATS, MAX_ROWS
from upstream_patch.problem import Problem
from upstream_patch.routing import route
from upstream_patch.routing_table import formats, picks, routes, spans


@pytest.fixture(scope="module")
def page() -> str:
    return routing_table.markdown()


def test_the_committed_page_is_what_the_code_says(root: Path, page: str) -> None:
    committed = (root / "evidence" / routing_table.FILE).read_text(encoding="utf-8")
    assert committed == page, "python -m upstream_patch routing writes it anew"


def test_a_page_is_written_once(tmp_path: Path, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_table, "markdown", lambda: page)
    path = tmp_path / "routing.md"
    assert routing_table.update(path)
    assert not routing_table.update(path)
    assert path.read_text(encoding="utf-8") == page


def test_every_format_of_ours_is_asked() -> None:
    asked = {(like.bits, like.group_size) for like in formats.FORMATS.values()}
    assert {(form[0], form[1]) for form in FORMATS} <= asked


def test_neighbours_with_one_answer_are_one_span() -> None:
    assert list(spans.ranges((1, 2, 3, 8), lambda m: m < 3)) == [("1 to 2", True), ("from 3", False)]
    assert list(spans.ranges((1, 2, 9), lambda m: m == 2)) == [("1", False), ("2", True), ("from 9", False)]
    assert list(spans.ranges((1, 2), lambda m: 0)) == [("any", 0)]


def test_boxes_hold_every_key_once_with_its_answer() -> None:
    answers: dict[tuple[str, ...], bool] = {(a, b): a == "x" and b != "q" for a in "xyz" for b in "pqr"}
    boxes = spans.collapse(answers)
    unfolded = {(a, b): answer for (first, second), answer in boxes for a in first for b in second}
    assert unfolded == answers
    assert sum(len(first) * len(second) for (first, second), _ in boxes) == len(answers)
    assert len(boxes) == 3


def test_words_for_sets() -> None:
    assert spans.names(("a",), ("a", "b")) == "a"
    assert spans.names(("a", "b", "c"), ("a", "b"), "all") == "all, c"
    some = ["2 bits, group 32", "2 bits, group 64", "4 bits, group 32", "4 bits, group 64", "8 bits, group 32", "nvfp4"]
    assert formats.in_words(some) == "2, 4 bits, group 32, 64; 8 bits, group 32; nvfp4"
    assert formats.in_words(list(formats.FORMATS)) == "any"


def test_a_changed_route_or_pick_changes_the_page(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "route", lambda problem, device: "stock" if problem.m == 3 else route(problem, device))
    assert "1 to 2: `small_m`; 3: `stock`; 4 to " in "\n".join(routes.section())
    gb10 = DEVICE_CLASSES[12, 1]
    monkeypatch.setitem(DEVICE_CLASSES, (12, 1), replace(gb10, shared_per_block=gb10.shared_per_block - 4096))
    changed = "\n".join(picks.section())
    assert "\n### sm_121\n" in changed
    assert "\n### sm_121\n" not in page
    monkeypatch.setitem(DEVICE_CLASSES, (12, 1), replace(gb10, measured=True))
    assert "sm_121: tuned on a device. sm_86, sm_89, sm_120: not run" in "\n".join(picks.section())


@pytest.mark.parametrize("capability", DEVICE_CLASSES)
def test_every_pick_stands_in_the_section_of_its_class_and_fits(capability: tuple[int, int], page: str) -> None:
    device = DEVICE_CLASSES[capability]
    sections = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    (section,) = [one for one in sections if device.name in one.splitlines()[0].split(", ")]
    limit = int(re.findall(r"bytes: ([\d,]+) a block", section)[0].replace(",", ""))
    assert limit == device.shared_per_block
    needed = [int(one.replace(",", "")) for one in re.findall(r"r\d+ w\d+ s\d+ t\d+: ([\d,]+)", section)]
    assert max(needed) <= limit
    for m in (1, 8, MAX_ROWS):
        problem = Problem(m=m, n=4096, k=14336, bits=6, group_size=32)
        tuning = small_m_variant(problem, capability, 48)[0].tuning
        cell = f"r{tuning.rows} w{tuning.warps} s{tuning.stages} t{tuning.tiles}: {tuning.shared_bytes:,}"
        rows = [line for line in section.splitlines() if line.startswith("| 6 bits, group 32 | from ")]
        assert any(cell in row for row in rows)
