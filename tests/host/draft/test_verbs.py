"""The verbs in one process: what a new user sees, in which order, and with which exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upstream_patch import cli
from upstream_patch.draft import inputs
from upstream_patch.draft.documents import DOCUMENTS
from upstream_patch.draft.gates import CODES, FOR

Call = Callable[..., tuple[int, str, str]]
DOC = "# Batching\n\n## Serving-throughput defaults\n\n> Backend note (CUDA / Blackwell): old.\n\nMore.\n"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["upstream-patch", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def places(here: Any) -> tuple[str, ...]:
    return "--out", str(here.work.parent), "--evidence", str(here.evidence)


@pytest.mark.parametrize(
    ("verb", "leads_to"),
    [
        (("draft",), ("draft issue", "rules refresh", "status", "draft pr", "draft link-back", "draft docs")),
        (("draft",), ("--contribution metal", "Apple GPUs")),
        (("draft", "issue"), ("--contribution", "cuda or metal")),
        (("draft", "issue"), ("status",)),
        (("draft", "pr"), ("filed issue", "build with the series")),
        (("draft", "docs"), ("--doc", "--write")),
        (("status",), ("way out", "file")),
        (("rules",), ("refresh", "show")),
        (("rules", "refresh"), ("--mlx", "--read")),
        (("excuse",), ("--because",)),
    ],
)
def test_the_help_of_each_verb_leads_to_the_next(call: Call, verb: tuple[str, ...], leads_to: tuple[str, ...]) -> None:
    code, out, _ = call(*verb, "--help")
    plain = re.sub(r"\s+", " ", re.sub(r"\x1b\[[\d;]*m|[│╭╮╰╯─]", " ", out))
    assert code == 0
    assert [word for word in leads_to if word not in plain] == []


@pytest.mark.parametrize("name", FOR)
def test_a_draft_names_its_file_its_holes_and_the_next_verb(call: Call, rehearsal: Any, name: str) -> None:
    code, out, _ = call("draft", name, *places(rehearsal))
    path = rehearsal.work / DOCUMENTS[name].file
    count = len(DOCUMENTS[name].open_holes(path))
    assert (code, out) == (0, f"{path}: {count} holes are open, for a person; next: upstream-patch status {name}\n")


def test_status_shows_every_gate_in_words_and_as_data(call: Call, rehearsal: Any) -> None:
    rehearsal.draft("issue")
    code, out, _ = call("status", "issue", "pr", *places(rehearsal))
    assert code == 0
    assert [tuple(line.split()[:3]) for line in out.splitlines() if line.startswith(("issue", "pr"))] == [
        ("issue", "drafted", "green"),
        ("issue", "benchmarks", "green"),
        ("issue", "holes", "red"),
        ("issue", "disclosure", "red"),
        ("issue", "claims", "green"),
        ("issue", "mentions", "green"),
        ("issue", "size", "green"),
        ("issue", "duplicates", "red"),
        ("issue", "rules", "red"),
        ("pr", "drafted", "red"),
    ]
    assert "-> upstream-patch rules refresh --mlx PATH" in out
    told = json.loads(call("status", "--json", *places(rehearsal))[1])
    assert {(gate["draft"], gate["name"]) for gate in told} >= {("issue", name) for name in FOR["issue"]}
    assert all(set(gate) == {"draft", "name", "outcome", "why", "fix", "content_hash", "open"} for gate in told)
    assert all(bool(gate["fix"]) != gate["open"] for gate in told)


def test_claims_are_listed_with_their_line_and_the_code_says_so(call: Call, rehearsal: Any) -> None:
    rehearsal.all()
    assert call("draft", "claims", "issue", *places(rehearsal))[:2] == (
        0,
        "every number is a fact within its rounding\n",
    )
    shown = call("draft", "claims", "issue", "--matched", *places(rehearsal))[1]
    assert re.search(
        r"line \d+: '70.0 us' is ncu.* = 70 us|line \d+: '70.0 us' is small_m.h200.4096x4096.* = 70 us", shown
    )
    rehearsal.change("issue", "70.0 us at M = 7", "71 us at M = 7")
    code, out, _ = call("draft", "claims", "issue", *places(rehearsal))
    assert code == 1
    assert re.search(
        r"issue_cuda_small_m.md: line \d+: '71 us' is no fact; nearest: .* = 70 us\n1 claims without a fact", out
    )


def test_an_excuse_is_recorded_and_shown(call: Call, rehearsal: Any) -> None:
    rehearsal.draft("issue")
    code, out, _ = call("excuse", "issue", "duplicates", "--because", "none exist", *places(rehearsal))
    assert (code, out.partition(": ")[2]) == (0, "recorded; `status issue` shows it\n")
    assert "nobody has searched for duplicates; excused: none exist" in call("status", "issue", *places(rehearsal))[1]
    assert call("excuse", "issue", "holes", "--because", "x", *places(rehearsal))[0] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("status", "nothing"), "no draft nothing: issue, pr, link-back, docs"),
        (("excuse", "issue", "base", "--because", "x"), "issue has no gate base: drafted, "),
        (("draft", "claims", "issue"), "no file "),
        (("draft", "docs", "--write"), "--write needs the doc: --doc PATH"),
        (("draft", "docs", "--device", "gb11"), "no machine gb11: h200, gb10, m5"),
        (("draft", "docs", "--doc", "none.md"), "no file none.md: name docs/CONTINUOUS_BATCHING.md"),
    ],
)
def test_a_mistake_is_one_line(call: Call, rehearsal: Any, words: tuple[str, ...], says: str) -> None:
    code, _, err = call(*words, *places(rehearsal))
    assert code == 2
    assert err.startswith(f"error: {says}") and err.count("\n") == 1


def test_the_doc_is_edited_only_when_every_gate_is_open(call: Call, rehearsal: Any, tmp_path: Path) -> None:
    doc = tmp_path / "clone" / "docs" / "CONTINUOUS_BATCHING.md"
    doc.parent.mkdir(parents=True)
    doc.write_text(DOC)
    given = ("draft", "docs", "--doc", str(doc), *places(rehearsal))
    code, out, _ = call(*given)
    assert (
        code == 0
        and "\n--- a/docs/CONTINUOUS_BATCHING.md\n" in out
        and "\n-> Backend note (CUDA / Blackwell): old.\n" in out
    )
    assert "\n+> TODO(person): note\n" in out and "\n+> | 4 | 40.5 | 70.5 |\n" in out
    assert out.endswith("nothing was changed; --write makes the edit when `status` shows no red gate for docs\n")
    code, _, err = call(*given, "--write")
    assert (code, doc.read_text()) == (CODES["holes"], DOC) and err.startswith(
        "error: docs: holes is red: open: note (line 5)"
    )

    rehearsal.fill("docs")
    code, out, _ = call(*given, "--write")
    assert (code, out.splitlines()[-1]) == (0, f"{doc} was edited; commit it in your own words")
    after = doc.read_text()
    assert after.startswith(DOC.partition("> ")[0] + "<!-- BEGIN FACTS cuda_note ") and after.endswith("-->\n\nMore.\n")
    assert "\n> Backend note (CUDA, NVIDIA GB10):\n>\n> Keep `--parallel` at the default" in after
    code, out, _ = call(*given, "--write")
    assert code == 0 and f"{doc} has this note already" in out and doc.read_text() == after
    doc.write_text(after.replace("70.5", "99.9"))
    code, _, err = call(*given)
    assert code == 2 and "the note was edited by hand since" in err


def test_without_a_record_of_the_machine_the_doc_gets_holes_and_no_claim(
    call: Call, rehearsal: Any, tmp_path: Path
) -> None:
    for path in (rehearsal.evidence / "records" / "gb10").iterdir():
        path.rename(path.with_suffix(".gone"))
    doc = tmp_path / "CONTINUOUS_BATCHING.md"
    doc.write_text(DOC)
    inputs.write(rehearsal.work, "device", inputs.Named(host="gb10"))
    given = ("draft", "docs", "--doc", str(doc), *places(rehearsal))
    code, out, _ = call(*given)
    added = [line for line in out.splitlines() if line.startswith("+>")]
    assert code == 0 and sum("TODO(record)" in line for line in added) == 11
    assert not [line for line in added if re.search(r"\d\.\d", re.sub(r"TODO\(record\) \S+", "", line))]
    rehearsal.fill("docs")
    code, _, err = call(*given, "--write")
    assert code == CODES["holes"] and "in tables wait for a record or a filing, first line" in err
    assert doc.read_text() == DOC
