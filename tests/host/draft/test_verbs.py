"""The verbs in one process: what a new user sees, in which order, and with which exit code."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.host.draft.conftest import NOW
from upstream_patch import cli
from upstream_patch.cli.options import EVIDENCE, OUT, folders
from upstream_patch.draft import gates, inputs
from upstream_patch.draft.documents import DOCUMENTS
from upstream_patch.draft.gates import CODES, FOR
from upstream_patch.filing.person import AUTOMATION

SEEN = SimpleNamespace(isatty=lambda: True)
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


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AUTOMATION:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("upstream_patch.filing.person.sys", SimpleNamespace(stdin=SEEN, stdout=SEEN))


def places(here: Any) -> tuple[str, ...]:
    return "--out", str(here.work.parent), "--evidence", str(here.evidence)


def where(here: Any) -> str:
    """What a next command that is told ends in."""
    return f" {shlex.join(places(here))}"


def test_a_next_command_names_the_folders_that_are_not_the_usual_ones() -> None:
    assert folders(OUT, EVIDENCE) == ""
    assert folders(Path("my drafts")) == " --out 'my drafts'"
    assert folders(OUT, Path("records")) == " --evidence records"


@pytest.mark.parametrize(
    ("verb", "leads_to"),
    [
        (("draft",), ("draft issue", "rules refresh", "duplicates", "status", "file issue", "draft pr", "draft docs")),
        (("draft",), ("--contribution metal", "Apple GPUs")),
        (("draft", "issue"), ("--contribution", "cuda or metal")),
        (("draft", "issue"), ("status",)),
        (("draft", "pr"), ("filed issue", "build with the series", "series apply", "series drift", "status")),
        (("draft", "link-back"), ("filed", "status")),
        (("draft", "docs"), ("--doc", "--write", "status", "last step")),
        (("draft", "claims"), ("correct", "status")),
        (("status",), ("way out", "what to do next", "file")),
        (("rules",), ("refresh", "show")),
        (("rules", "show"), ("rules refresh",)),
        (("rules", "refresh"), ("--mlx", "--read", "status")),
        (("excuse",), ("--because", "status")),
        (("series", "apply"), ("Next: your commit, then `series drift`",)),
        (("series", "drift"), ("--branch", "Next: `status pr`")),
        (("build",), ("Next: `correctness`; after --mlx, `draft pr`",)),
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
    waits = {
        "issue": "8 holes are open, for a person",
        "pr": "7 holes are open, for a person, 2 values wait for a record or a filing",
        "link-back": "1 hole is open, for a person, 2 values wait for a record or a filing",
        "docs": "1 hole is open, for a person",
    }
    assert (code, out) == (0, f"{path}: {waits[name]}; next: upstream-patch status {name}{where(rehearsal)}\n")


def test_status_shows_every_gate_in_words_and_as_data(call: Call, rehearsal: Any) -> None:
    rehearsal.draft("issue")
    code, out, _ = call("status", "issue", "pr", *places(rehearsal))
    assert code == 0
    assert [tuple(line.split()[:3]) for line in out.splitlines() if line.startswith(("issue ", "pr "))] == [
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
    refresh = f"-> upstream-patch rules refresh --mlx PATH{folders(rehearsal.work.parent)}"
    assert "".join(refresh.split()) in "".join(out.split())
    assert out.splitlines()[-2:] == [
        f"issue: 4 of 9 gates are not open; next: fill the holes in {rehearsal.work / 'issue_cuda_small_m.md'}",
        f"pr: 1 of 1 gates are not open; next: upstream-patch draft pr{where(rehearsal)}",
    ]
    told = json.loads(call("status", "--json", *places(rehearsal))[1])
    assert {(gate["draft"], gate["name"]) for gate in told} >= {("issue", name) for name in FOR["issue"]}
    assert all(set(gate) == {"draft", "name", "outcome", "code", "why", "fix", "content_hash", "open"} for gate in told)
    assert all(bool(gate["fix"]) != gate["open"] for gate in told)


def test_a_status_that_is_all_open_names_the_verb_that_sends(
    call: Call, rehearsal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal.all()
    monkeypatch.setattr(gates, "status", partial(gates.status, now=NOW))

    def told() -> list[str]:
        return call("status", *places(rehearsal))[1].splitlines()[-4:]

    sent = [
        f"link-back: every gate is open; next: upstream-patch link{where(rehearsal)}",
        f"docs: every gate is open; next: upstream-patch draft docs --doc PATH --write{where(rehearsal)}",
    ]
    at, mlx = where(rehearsal), "https://github.com/ml-explore/mlx"
    assert told() == [
        f"issue: filed as {mlx}/issues/4700; next: upstream-patch draft pr{at}",
        f"pr: filed as {mlx}/pull/4701; next: upstream-patch draft link-back{at}",
        *sent,
    ]
    filed = inputs.read(rehearsal.work, "filed", inputs.Filed)
    assert filed is not None
    inputs.write(rehearsal.work, "filed", filed.model_copy(update={"pr": None}))
    rehearsal.draft("link-back")
    assert told()[1] == f"pr: every gate is open; next: upstream-patch file pr --head BRANCH{where(rehearsal)}"
    inputs.path(rehearsal.work, "filed").unlink()
    assert told()[0] == f"issue: every gate is open; next: upstream-patch file issue{where(rehearsal)}"


def test_claims_are_listed_with_their_line_and_the_code_says_so(call: Call, rehearsal: Any) -> None:
    rehearsal.all()
    assert call("draft", "claims", "issue", *places(rehearsal))[:2] == (
        0,
        f"every number is a fact within its rounding; next: upstream-patch status issue{where(rehearsal)}\n",
    )
    shown = call("draft", "claims", "issue", "--matched", *places(rehearsal))[1]
    assert re.search(
        r"line \d+: '70.0 us' is ncu.* = 70 us|line \d+: '70.0 us' is small_m.h200.4096x4096.* = 70 us", shown
    )
    rehearsal.change("issue", "70.0 us at M = 7", "71 us at M = 7")
    code, out, _ = call("draft", "claims", "issue", *places(rehearsal))
    assert code == 1
    assert re.search(
        r"issue_cuda_small_m.md: line \d+: '71 us' is no fact; nearest: .* = 70 us\n"
        "1 claims without a fact: correct them, or put <!-- fact ID --> behind what is right; next: "
        rf"upstream-patch status issue{re.escape(where(rehearsal))}\n$",
        out,
    )


def test_an_excuse_is_recorded_and_shown(call: Call, rehearsal: Any, at_a_terminal: None) -> None:
    rehearsal.draft("issue")
    code, out, _ = call("excuse", "issue", "duplicates", "--because", "none exist", *places(rehearsal))
    assert (code, out.partition(": ")[2]) == (0, f"recorded; next: upstream-patch status issue{where(rehearsal)}\n")
    assert "nobody has searched for duplicates; excused: none exist" in call("status", "issue", *places(rehearsal))[1]
    assert call("excuse", "issue", "holes", "--because", "x", *places(rehearsal))[0] == 2


@pytest.mark.parametrize(
    ("words", "act"),
    [
        (("excuse", "issue", "duplicates", "--because", "none exist"), "excuse a gate"),
        (("rules", "refresh", "--mlx", ".", "--read", "0" * 12), "say that the rules were read"),
    ],
)
def test_a_gate_is_opened_by_a_person_at_a_terminal_only(
    call: Call, rehearsal: Any, at_a_terminal: None, words: tuple[str, ...], act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal.draft("issue")
    at = words + (places(rehearsal) if words[0] == "excuse" else ("--out", str(rehearsal.work.parent)))
    for name in ("CI", "CLAUDECODE"):
        monkeypatch.setenv(name, "1")
        assert call(*at)[::2] == (
            45,
            f"error: only a person may {act}, and {name} is set, as CI and agents do: run it in your own shell\n",
        )
        monkeypatch.delenv(name)
    piped = SimpleNamespace(isatty=lambda: False)
    monkeypatch.setattr("upstream_patch.filing.person.sys", SimpleNamespace(stdin=piped, stdout=SEEN))
    code, _, err = call(*at)
    assert code == 45 and err.startswith(f"error: only a person at a terminal may {act}: ")
    assert not (rehearsal.work / "inputs" / "excuses.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("status", "nothing"), "no draft nothing: issue, pr, link-back, docs"),
        (("excuse", "issue", "base", "--because", "x"), "issue has no gate base: drafted, "),
        (("draft", "claims", "issue"), "no file "),
        (("draft", "docs", "--write"), "--write needs the doc: --doc PATH"),
        (
            ("draft", "docs", "--device", "gb11"),
            "the caveat is about CUDA, and gb11 is none of its machines: h200, gb10",
        ),
        (("draft", "docs", "--device", "m5"), "the caveat is about CUDA, and m5 is none of its machines: h200, gb10"),
        (("draft", "docs", "--doc", "none.md"), "no file none.md: name docs/CONTINUOUS_BATCHING.md"),
    ],
)
def test_a_mistake_is_one_line(
    call: Call, rehearsal: Any, at_a_terminal: None, words: tuple[str, ...], says: str
) -> None:
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
    told = f"next: upstream-patch status docs{where(rehearsal)}, and when all is open, --write"
    assert out.endswith(f"nothing was changed; {told}\n")
    code, _, err = call(*given, "--write")
    assert (code, doc.read_text()) == (CODES["holes"], DOC) and err.startswith(
        "error: docs: holes is red: open: note (line 5)"
    )

    rehearsal.fill("docs")
    code, out, _ = call(*given, "--write")
    assert (code, out.splitlines()[-1]) == (0, f"{doc} was edited; commit it in your own words: that was the last step")
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
    assert code == 0 and sum("TODO(record)" in line for line in added) == 12
    assert not [line for line in added if re.search(r"\d\.\d", re.sub(r"TODO\(record\) \S+|llama-3.1-8b", "", line))]
    rehearsal.fill("docs")
    code, _, err = call(*given, "--write")
    assert code == CODES["holes"] and "values wait for a record or a filing, line" in err
    assert doc.read_text() == DOC
