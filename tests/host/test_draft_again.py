"""What a person does to a draft, and what the tool makes of it: holes, edits, line ends, lost markers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.draft import body, holes, managed
from upstream_patch.draft.contributions import CUDA
from upstream_patch.draft.documents import ISSUE as issue
from upstream_patch.errors import UserError
from upstream_patch.records.facts import Fact, derive

TEST_HOSTS = ("test", *CUDA.hosts)


@pytest.fixture
def facts(synthetic: Any) -> list[Fact]:
    synthetic.write(synthetic.bench([synthetic.bench_row(m) for m in (1, 2, 7, 16)]))
    synthetic.write(synthetic.correctness(), 2)
    return derive(synthetic.load(), lambda kernel: "ab" * 32)


def fill(text: str) -> str:
    """Write something into every hole, as a person would."""
    return re.sub(r"TODO\(person\): (\w+)", r"My own words about \1.", text)


def test_every_prose_slot_is_an_open_hole(facts: list[Fact]) -> None:
    text = issue.render(facts, TEST_HOSTS)
    found = holes.open_holes(text, issue.required)
    assert tuple(hole.id for hole in found) == issue.required
    assert all(text.splitlines()[hole.line - 1].startswith(f"<!-- HOLE {hole.id}:") for hole in found)
    assert text.count("TODO(person)") == len(issue.required)
    assert holes.open_holes(fill(text), issue.required) == []


def test_a_written_draft_says_what_is_open(facts: list[Fact], tmp_path: Path) -> None:
    path = issue.write(tmp_path, facts, TEST_HOSTS)
    path.write_text(path.read_text().replace("TODO(person): links", "mine"))
    without = ["profiled", "decode"]  # tables that these facts have nothing for
    assert [hole.id for hole in issue.open_holes(path)] == [*issue.required[:-1], *without]


def test_holes_that_are_not_really_filled(facts: list[Fact]) -> None:
    text = fill(issue.render(facts, TEST_HOSTS))
    emptied = text.replace("My own words about describe.", "")
    assert [hole.id for hole in holes.open_holes(emptied, issue.required)] == ["describe"]
    kept = text.replace("My own words about context.", "Some. TODO(person) ask again.")
    assert [hole.id for hole in holes.open_holes(kept, issue.required)] == ["context"]
    title = text.replace("[BUG] My own words about title.", "[BUG]")
    assert [hole.id for hole in holes.open_holes(title, issue.required)] == ["title"]
    lost = re.sub(r"<!-- HOLE disclosure.*?-->\n", "", text)
    assert [(hole.id, hole.line) for hole in holes.open_holes(lost, issue.required)] == [("disclosure", 0)]


def test_drafting_again_keeps_what_a_person_wrote(facts: list[Fact], tmp_path: Path) -> None:
    path = issue.write(tmp_path, facts, TEST_HOSTS)
    mine = fill(path.read_text()) + "\nP.S. at the end\n"
    path.write_text(mine)
    assert issue.write(tmp_path, facts, TEST_HOSTS).read_text() == mine
    newer = [
        replace(fact, value=71.5) if fact.id.endswith("4096x4096.b4.g64.bf16.M7.stock_us") else fact for fact in facts
    ]
    again = issue.write(tmp_path, newer, TEST_HOSTS).read_text()
    assert managed.strip(again) == managed.strip(mine)
    assert "| 4096 x 4096 | 10.0 | 20.0 | 71.5 | 160.0 |" in again


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("| 70.0 |", "| 700.0 |", r"md:\d+: the FACTS block stock_time was edited by hand"),
        ("<!-- END FACTS ours -->", "", "the FACTS markers are damaged or gone"),
        ("FACTS", "FACT", "the FACTS markers are damaged or gone"),
        ("| 70.0 |", "| 70.0  |", r"md:\d+: the FACTS block stock_time was edited by hand"),
    ],
)
def test_a_table_edited_by_hand_is_refused(facts: list[Fact], tmp_path: Path, old: str, new: str, message: str) -> None:
    path = issue.write(tmp_path, facts, TEST_HOSTS)
    edited = path.read_text().replace(old, new)
    path.write_text(edited)
    with pytest.raises(UserError, match=message):
        issue.write(tmp_path, facts, TEST_HOSTS)
    assert path.read_text() == edited


def open_ids(text: str) -> list[str]:
    return [hole.id for hole in holes.open_holes(text, issue.required)]


def test_a_cut_todo_is_no_answer(facts: list[Fact]) -> None:
    text = issue.render(facts, TEST_HOSTS)
    every = list(issue.required)
    assert open_ids(re.sub(r"^.*TODO\(person\).*\n", "", text, flags=re.MULTILINE)) == every
    for instead in ("", "-", "...", "1.", "TODO (person)", "todo(person)", "Todo ( Person )", "TODO"):
        assert open_ids(text.replace("TODO(person)", instead)) == every, instead
        assert open_ids(re.sub(r"TODO\(person\): \w+", instead, text)) == every, instead
    assert open_ids(re.sub(r"TODO\(person\): (\w+)", r"Mein Text: \1", text)) == []
    assert open_ids(re.sub(r"TODO\(person\): (\w+)", "mastodon", text)) == []


def newer(facts: list[Fact]) -> list[Fact]:
    return [replace(fact, value=71.5) if fact.id.endswith("bf16.M7.stock_us") else fact for fact in facts]


@pytest.mark.parametrize("words", ["one\r\ntwo", "a\rb", "Größe \u2028 x\x85y", "a\x00b"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_drafting_again_keeps_every_byte(facts: list[Fact], tmp_path: Path, words: str, ends: str, bom: str) -> None:
    path = issue.write(tmp_path, facts, TEST_HOSTS)
    mine = bom.encode() + path.read_bytes().replace(b"\n", ends.encode())
    mine = mine.replace(b"TODO(person): describe", words.encode())
    path.write_bytes(mine)
    assert issue.write(tmp_path, facts, TEST_HOSTS).read_bytes() == mine
    assert "describe" not in [hole.id for hole in issue.open_holes(path)]
    again = issue.write(tmp_path, newer(facts), TEST_HOSTS).read_bytes()
    assert managed.strip(again.decode()) == managed.strip(mine.decode())
    assert again.count(b"\r\n") == mine.count(b"\r\n")
    assert again.count(b"\n") == mine.count(b"\n")
    assert b"| 71.5 |" in again


def test_a_draft_that_is_not_utf8(facts: list[Fact], tmp_path: Path) -> None:
    path = issue.write(tmp_path, facts, TEST_HOSTS)
    before = path.read_bytes().replace(b"TODO(person): describe", "Größe".encode("cp1252"))
    path.write_bytes(before)
    for attempt in (lambda: issue.write(tmp_path, facts, TEST_HOSTS), lambda: issue.open_holes(path)):
        with pytest.raises(UserError, match=r"md: not UTF-8 at byte \d+: save it as UTF-8"):
            attempt()
    assert path.read_bytes() == before


@pytest.mark.parametrize("lost", ["block", "markers"])
def test_every_block_must_be_there(facts: list[Fact], tmp_path: Path, lost: str) -> None:
    """Without its markers a block's numbers still stand there, and nothing would ever renew them."""
    path = issue.write(tmp_path, facts, TEST_HOSTS)
    text = path.read_text()
    pattern = {
        "block": r"(?s)<!-- BEGIN FACTS correctness.*?END FACTS correctness -->",
        "markers": r"<!-- (?:BEGIN|END) FACTS correctness[^\n]*-->\n",
    }[lost]
    path.write_text(re.sub(pattern, "", text))
    with pytest.raises(UserError, match="the FACTS block correctness is gone: restore it, or move"):
        issue.write(tmp_path, facts, TEST_HOSTS)


HINT = "<!-- HOLE title: a -->\nmine\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<!-- Draft of", "\ufeff\n\nMine.\n<!-- Draft of", r"md:3: text above the tool's first comment would be sent"),
        ("<!-- HOLE rule:", f"{HINT}<!-- HOLE rule:", r"md:\d+: the hole title stands twice: keep one"),
        ("### Records", f"{HINT}### Records", r"md:\d+: the hole title stands twice: keep one"),
        ("### Records", "<!-- HOLE links: a -->\n### Records", r"md:\d+: the hole links stands twice: keep one"),
        ("### Records", "<!-- HOLE mine: a -->\n### Records", r"md:\d+: the hole mine is none of this draft: delete"),
        ("### Records", "<!-- Draft of it -->\n### Records", r"md:\d+: the tool's first comment stands twice: delete"),
        ("keep the prefix [BUG] -->", "keep the prefix [BUG]", r"md:5: the marker of a hole is damaged: restore it"),
        ("<!-- HOLE title:", "<!-- HOLE:", r"md:5: the marker of a hole is damaged: restore it"),
    ],
)
def test_a_marker_that_would_be_sent_or_put_words_elsewhere_is_refused(
    old: str, new: str, message: str, facts: list[Fact], tmp_path: Path
) -> None:
    path = issue.write(tmp_path, facts, TEST_HOSTS)
    mine = path.read_text().replace(old, new, 1)
    assert mine != path.read_text()
    path.write_text(mine)
    with pytest.raises(UserError, match=message):
        issue.write(tmp_path, facts, TEST_HOSTS)
    assert path.read_text() == mine


def test_holes_out_of_order_are_refused(facts: list[Fact], tmp_path: Path) -> None:
    path = issue.write(tmp_path, facts, TEST_HOSTS)
    title = re.search(r"<!-- HOLE title.*?TODO\(person\): title\n", path.read_text(), re.DOTALL)
    assert title
    path.write_text(path.read_text().replace(title.group(), "") + f"\n{title.group()}")
    with pytest.raises(UserError, match=r"md:\d+: the hole title stands below links: put it back above"):
        issue.write(tmp_path, facts, TEST_HOSTS)


def test_blank_lines_above_the_first_comment_are_nothing(facts: list[Fact], tmp_path: Path) -> None:
    path = issue.write(tmp_path, facts, TEST_HOSTS)
    path.write_text(f"\n\n{path.read_text()}")
    assert "Draft of" not in body.body(issue.write(tmp_path, facts, TEST_HOSTS).read_text())
