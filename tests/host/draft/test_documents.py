"""The drafts beside the issue, the reproduction script in them, and drafting again over a person's words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upstream_patch.draft import body, holes, inputs, managed
from upstream_patch.draft.blocks import BLOCKS, MISSING, script
from upstream_patch.draft.documents import DOCUMENTS
from upstream_patch.errors import UserError

DECODED = "random weights, 128-token prompts, mlx-lm 0.32.2"
PR_FORM = ["- AI usage disclosure:", "### Change", "### Tests", "### Benchmarks", "#### To reproduce", "#### Records"]
HEADINGS = re.compile(r"^(?:\*\*.*\*\*|#.*|- AI usage disclosure:)$", re.MULTILINE)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    yield from ((name, text[first:last]) for name, first, last in managed.spans(text))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_draft_without_records_is_whole_and_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    document = DOCUMENTS[name]
    path = document.write(tmp_path, [])
    text = path.read_text()
    assert tuple(hole.id for hole in holes.open_holes(text, document.required)) == document.required
    found = {name for name, _, _ in managed.spans(text)}
    assert {name for name in found if not name.startswith("for_")} == set(document.blocks) <= set(BLOCKS)
    lines = text.splitlines()
    for hole in document.open_holes(path):
        assert hole.id in document.required or MISSING in lines[hole.line - 1]
    # between the blocks the tool has headings, hints and markers, and no sentence
    left = HEADINGS.sub("", re.sub(r"<!--.*?-->", "", managed.strip(text), flags=re.DOTALL))
    assert set(left.split()) <= {"TODO(person):", "[BUG]", *document.required}


def test_the_pull_request_follows_the_template_and_shows_both_builds(rehearsal: Any) -> None:
    rehearsal.all()
    text = rehearsal.ready("pr").body
    places = [text.index(f"\n{heading}") for heading in PR_FORM]
    assert places == sorted(places)
    assert text.startswith(rehearsal.words["pr"]["rule"])
    assert "| `test_qmm_few_rows` | failed | passed |" in text
    assert "| 7 | 4096 | 4096 | 70.0 | 10.0 | 7.00 |" in text
    assert f"```python\n{script().rstrip()}\n```" in text


def test_the_issue_number_is_there_only_after_a_person_filed(rehearsal: Any) -> None:
    rehearsal.draft("pr")
    assert f"{MISSING}: no issue is filed" in (rehearsal.work / DOCUMENTS["pr"].file).read_text()
    inputs.write(rehearsal.work, "filed", inputs.Filed(issue=inputs.Link(number=9, url="u")))
    text = rehearsal.draft("pr").read_text()
    assert "\nRefs #9\n" in text and "no issue is filed" not in text
    assert f"- issue: u\n- pull request: {MISSING}: not filed" in rehearsal.draft("link-back").read_text()


def test_the_note_is_about_one_machine_and_shows_what_it_lacks(rehearsal: Any) -> None:
    text = rehearsal.draft("docs").read_text()
    assert "\nNVIDIA GB10, MLX 0.32.4, record gb10-" in text.replace("Synthetic GPU", "NVIDIA GB10")
    assert "| 7 | 70.0 | 10.0 |" in text and "| 4 | 40.5 | 70.5 |" in text and MISSING not in text
    inputs.write(rehearsal.work, "device", inputs.Named(host="h200"))
    text = rehearsal.draft("docs").read_text()
    assert "\nNVIDIA H200, MLX 0.32.4, record h200-" in text
    assert f"| 4 | {MISSING} decode.h200.llama-3.1-8b.B4.stock_tok_s |" in text  # the other machine's do not stand in
    for record in (rehearsal.evidence / "records" / "h200").iterdir():
        record.unlink()
    text = rehearsal.draft("docs").read_text()
    assert f"\n{MISSING} of h200\n" in text and text.count(MISSING) == 22


def test_no_rate_of_decode_stands_without_what_was_decoded(rehearsal: Any) -> None:
    rehearsal.others()
    for name in ("issue", "pr", "link-back"):
        blocks = dict(_blocks(rehearsal.draft(name).read_text()))
        assert f"\n\nllama-3.1-8b, tokens a second of all B sequences together; {DECODED}\n\n| B |" in blocks["decode"]
    assert f"\n\nDecode of llama-3.1-8b: {DECODED}\n\n| clients B |" in rehearsal.draft("docs").read_text()


def test_no_hole_has_the_name_of_a_block() -> None:
    assert [name for name, document in DOCUMENTS.items() if {*document.required} & {*document.blocks}] == []


@pytest.mark.parametrize(
    "words",
    ["N/A", "n.a.", "TBD", "tbd: later", "todo", "-", "\u2014", "...", "FIXME", "WIP", "Pending.", "(later)", "xxx"],
)
def test_what_only_stands_for_words_fills_no_hole(words: str) -> None:
    assert [hole.id for hole in holes.open_holes(f"<!-- HOLE context: say it -->\n{words}\n")] == ["context"]


@pytest.mark.parametrize(
    "words", ["None.", "See #3764.", "To be clear, I would help.", "It is pending a review.", "No, later is fine."]
)
def test_a_short_answer_is_one(words: str) -> None:
    assert holes.open_holes(f"<!-- HOLE context: say it -->\n{words}\n") == []


def test_markers_that_are_all_gone_are_open_holes() -> None:
    assert [(hole.id, hole.line) for hole in holes.open_holes("", ("title",))] == [("title", 0)]


def test_a_hole_lists_the_facts_that_bear_on_it_and_they_are_renewed(rehearsal: Any) -> None:
    path = rehearsal.draft("issue")
    text = path.read_text()
    listed = "-->\n<!-- facts that bear on it:\nsmall_m.gb10.4096x14336.b4.g64.bf16.M1.stock_us = 10 us\n"
    assert listed in text.partition("<!-- HOLE reproduce: ")[2].partition("TODO")[0]
    rehearsal.fill("issue")
    for record in (rehearsal.evidence / "records" / "gb10").iterdir():
        record.rename(record.with_suffix(".gone"))
    text = rehearsal.draft("issue").read_text()
    assert "small_m.gb10" not in text and "small_m.h200.4096x14336.b4.g64.bf16.M1.stock_us = 10 us\n" in text
    assert "facts that bear" not in body.body(text)
    assert rehearsal.words["issue"]["reproduce"] in text


WORDS = st.text(max_size=40).filter(lambda text: "<!--" not in text and "-->" not in text)


@settings(max_examples=100, deadline=None)
@given(words=WORDS, end=st.sampled_from(["\n", "\r\n"]))
def test_drafting_again_is_idempotent_whatever_a_person_wrote(words: str, end: str) -> None:
    for document in DOCUMENTS.values():
        fresh = document.render([])
        mine = re.sub(r"TODO\(person\): \w+", lambda _: words, fresh).replace("\n", end)
        assert managed.merge(mine, fresh, "x") == mine


def test_no_marker_of_the_tool_is_sent() -> None:
    text = (
        "<!-- Draft of it -->\n\n<!-- HOLE title: t -->\n[BUG] My\ntitle\n\n"
        "<!-- HOLE rule: r -->\nYes. <!-- fact a.b -->\n\n<!-- mine -->\n\n\n\n" + managed.block("ours", "| 1 |")
    )
    assert DOCUMENTS["issue"].title(text) == "[BUG] My title"
    assert body.body(text) == "Yes. \n\n<!-- mine -->\n\n\n\n| 1 |\n"
    assert body.body(text.replace("\n", "\r\n")) == body.body(text)
    assert body.body(text.partition("\n\n")[2]) == body.body(text)  # a person may take the first comment away
    assert DOCUMENTS["pr"].title("no hole") == ""


def test_the_script_runs_on_the_cpu_and_needs_mlx_only(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    tree = ast.parse(script())
    names = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert names == {"os", "statistics", "sys", "time", "mlx"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    path = tmp_path / "reproduce.py"
    path.write_text(script())
    code = f"import mlx.core as mx, runpy; mx.set_default_device(mx.cpu); runpy.run_path({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code, "128", "128", "2"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"mlx [\d.]+, Device\(cpu, 0\), 128 x 128, 4-bit, group size 64, bf16, 2 copies", lines[0])
    rows = [re.fullmatch(r"M = +(\d+): +[\d.]+ us, error (0\.\d+) of the norm", line) for line in lines[1:]]
    assert [int(row[1]) for row in rows if row] == [1, 2, 3, 4, 5, 6, 7, 8, 16]
    assert all(0 < float(row[2]) < 0.05 for row in rows if row)


def test_a_machine_without_a_name_is_refused(tmp_path: Path) -> None:
    from upstream_patch.draft import docs

    for name in ("gb11", "m5"):  # the caveat is about CUDA
        with pytest.raises(
            UserError, match=f"the caveat is about CUDA, and {name} is none of its machines: h200, gb10"
        ):
            docs.name(tmp_path, name)
