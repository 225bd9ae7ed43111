"""The verbs that send, at a terminal and away from one."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.contract.fake_github import FakeGitHub
from tests.host.draft import metal_records
from tests.host.draft.conftest import BASE, NOW, searched, upstream
from tests.host.draft.test_verbs import where
from upstream_patch import cli, github
from upstream_patch.draft import gates, inputs
from upstream_patch.draft.contributions import METAL
from upstream_patch.draft.documents import all_of
from upstream_patch.draft.gates import CODES
from upstream_patch.filing.person import AUTOMATION

pytestmark = pytest.mark.needs_contract
Verb = Callable[..., tuple[int, str, str]]
SENDING = (["file", "issue"], ["file", "pr", "--head", "small-m"], ["link"])


@pytest.fixture
def terminal(
    rehearsal: Any, fake: FakeGitHub, address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Verb]:
    """``terminal(*words, types=...)``: exit code, output and errors of a verb, as a person at a terminal gets them."""
    pty = pytest.importorskip("pty")
    clock = github.Clock(fake.clock.now, fake.clock.sleep)
    monkeypatch.setattr(github, "Clock", lambda: clock)
    monkeypatch.setenv("GITHUB_API_URL", address)
    monkeypatch.setenv("GH_TOKEN", "token")
    for name in AUTOMATION:
        monkeypatch.delenv(name, raising=False)
    far, near = pty.openpty()

    def run(*words: str, types: str = "", **instead: IO[str]) -> tuple[int, str, str]:
        os.write(far, f"{types}\n".encode())
        shown = rehearsal.evidence.parent / "shown"
        with (
            open(near, encoding="utf-8", closefd=False) as keyboard,
            Screen(shown) as screen,
            monkeypatch.context() as patch,
        ):
            patch.setattr(sys, "stdin", instead.get("stdin", keyboard))
            patch.setattr(sys, "stdout", instead.get("stdout", screen))
            folders = ("--out", str(rehearsal.work.parent), "--evidence", str(rehearsal.evidence))
            patch.setattr(sys, "argv", ["upstream-patch", *words, *folders])
            with pytest.raises(SystemExit) as ended:
                cli.main()
        return int(ended.value.code or 0), shown.read_text("utf-8"), capfd.readouterr().err

    yield run
    os.close(far)
    os.close(near)


class Screen:
    """A file that says it is a terminal: what is printed can be longer than a terminal's buffer."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_person_files_all_three_and_each_names_the_next(rehearsal: Any, fake: FakeGitHub, terminal: Verb) -> None:
    rehearsal.all()
    code, shown, _ = terminal("file", "issue", types="ml-explore/mlx")
    assert code == 0
    url = "https://github.com/ml-explore/mlx/issues/3765"
    assert shown.endswith(
        f"anything else to stop: {url} is there now\nnext: upstream-patch draft pr{where(rehearsal)}\n"
    )
    assert shown.startswith("This is an issue in ml-explore/mlx, as me\ntitle: [BUG] ")
    rehearsal.draft("pr")
    code, shown, _ = terminal("file", "pr", "--head", "small-m", types="ml-explore/mlx")
    assert (code, shown.splitlines()[-1]) == (0, f"next: upstream-patch draft link-back{where(rehearsal)}")
    rehearsal.draft("link-back")
    code, shown, _ = terminal("link", types="lablup/mlxcel")
    assert (code, shown.splitlines()[-1]) == (0, f"next: upstream-patch draft docs --doc PATH{where(rehearsal)}")
    assert [line for line in fake.log if line.startswith("POST")] == [
        "POST /repos/ml-explore/mlx/issues 201",
        "POST /repos/ml-explore/mlx/pulls 201",
        "POST /repos/lablup/mlxcel/issues/725/comments 201",
    ]
    _, shown, _ = terminal("link", types="lablup/mlxcel")
    assert shown.splitlines()[-2].endswith(" was there already: nothing was sent")


@pytest.mark.parametrize(
    ("verb", "leads_to"),
    [
        (["file"], ("duplicates", "status", "file issue", "draft pr", "file pr", "link", "GH_TOKEN")),
        (["file", "issue"], ("every gate", "--rehearse", "draft pr")),
        (["file", "pr"], ("--head", "--rehearse", "draft link-back")),
        (["link"], ("every gate is open and you have typed where to", "--rehearse", "Next: `draft docs`")),
        (["duplicates"], ("--query", "status")),
    ],
    ids=" ".join,
)
def test_the_help_of_each_verb_leads_to_the_next(
    verb: list[str], leads_to: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["upstream-patch", *verb, "--help"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = re.sub(r"\s+", " ", re.sub(r"\x1b\[[\d;]*m", "", capfd.readouterr().out))
    assert not ended.value.code
    assert [word for word in leads_to if word not in out] == []


def test_another_edition_is_another_text(rehearsal: Any, fake: FakeGitHub, terminal: Verb) -> None:
    rehearsal.all()
    assert terminal("file", "issue", types="ml-explore/mlx")[0] == 0
    code, _, told = terminal("file", "issue", "--edition", "2", types="ml-explore/mlx")
    assert (code, told) == (
        44,
        "error: https://github.com/ml-explore/mlx/issues/3765 is open with this title or from this branch: close it, "
        "or work on it there\n",
    )
    fake.repos["ml-explore/mlx"].entries[-1].state = "closed"
    assert terminal("file", "issue", "--edition", "2", types="ml-explore/mlx")[0] == 0
    assert fake.repos["ml-explore/mlx"].entries[-1].body.endswith("<!-- change-id: cuda-small-m-issue-2 -->\n")
    filed = inputs.path(rehearsal.work, "filed").read_bytes()
    assert b"/issues/3766" in filed

    for text in ("I would send", "I will send"):  # that of both editions, and another
        rehearsal.change("issue", "I would send", text)
        assert terminal("file", "issue", types="ml-explore/mlx") == (
            44,
            "",
            "error: https://github.com/ml-explore/mlx/issues/3766 is edition 2 of this draft, filed since: nothing was "
            "sent: name it with --edition 2\n",
        )
        assert inputs.path(rehearsal.work, "filed").read_bytes() == filed
    assert len([line for line in fake.log if line.startswith("POST")]) == 2


def test_a_rehearsal_says_so(rehearsal: Any, fake: FakeGitHub, terminal: Verb) -> None:
    rehearsal.all()
    code, shown, _ = terminal("file", "issue", "--rehearse", "me/mlx", types="me/mlx")
    assert code == 0
    assert shown.startswith("REHEARSAL of an issue in me/mlx, as me\n")
    assert shown.endswith(
        "/me/mlx/issues/1 is there now\n"
        f"it was a rehearsal: close it when you have seen it; next: upstream-patch file issue{where(rehearsal)}\n"
    )
    assert [line for line in fake.log if "POST" in line] == ["POST /repos/me/mlx/issues 201"]


@pytest.mark.parametrize(
    ("fault", "code", "told"),
    [
        ("limited", 40, "the repository limits who may write there"),
        ("busy long", 41, "run it again in 3600 s"),
        ("502 before", 42, "run the same command again, it looks first"),
    ],
)
def test_what_github_answers_is_one_line_and_a_code(
    fault: Any, code: int, told: str, rehearsal: Any, fake: FakeGitHub, terminal: Verb
) -> None:
    rehearsal.all()
    fake.on_write.append(fault)
    ended, _, line = terminal("file", "issue", types="ml-explore/mlx")
    assert ended == code
    assert line.startswith("error: POST /repos/ml-explore/mlx/issues: ")
    assert told in line and line.count("\n") == 1


def test_a_closed_gate_has_its_own_code(rehearsal: Any, fake: FakeGitHub, terminal: Verb) -> None:
    rehearsal.all()
    rehearsal.change("issue", rehearsal.words["issue"]["disclosure"], "All of it is mine.")
    code, shown, told = terminal("file", "issue", types="ml-explore/mlx")
    assert (code, shown) == (CODES["disclosure"], "")
    assert told.startswith("error: issue: disclosure is red: ")
    assert fake.log == []


def test_another_word_stops(rehearsal: Any, fake: FakeGitHub, terminal: Verb) -> None:
    rehearsal.all()
    code, _, told = terminal("file", "issue", types="yes")
    assert (code, told) == (46, "error: stopped: nothing was sent\n")
    assert not [line for line in fake.log if "POST" in line]


@pytest.mark.parametrize("name", AUTOMATION)
def test_automation_may_not_send(
    name: str, rehearsal: Any, fake: FakeGitHub, terminal: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "true")
    for words in SENDING:
        code, shown, told = terminal(*words, types="ml-explore/mlx")
        assert (code, shown) == (45, "")
        assert (
            told == f"error: only a person may send, and {name} is set, as CI and agents do: run it in your own shell\n"
        )
    assert fake.log == []


@pytest.mark.parametrize("words", SENDING, ids=" ".join)
@pytest.mark.parametrize("piped", ["stdin", "stdout"])
def test_without_a_terminal_nothing_is_sent(
    piped: str, words: list[str], fake: FakeGitHub, terminal: Verb, tmp_path: Path
) -> None:
    with (tmp_path / "pipe").open("w+", encoding="utf-8") as pipe:
        code, shown, told = terminal(*words, types="ml-explore/mlx", **{piped: pipe})
    assert (code, shown) == (45, "")
    assert told.startswith("error: only a person at a terminal may send: MLX bans agents that file")
    assert fake.log == []


def test_no_code_of_the_package_pushes(root: Path) -> None:
    pushing = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in (root / "upstream_patch").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in ("push", "send-pack", "send-email", "request-pull")
    ]
    assert pushing == []


def test_duplicates_are_listed_and_open_their_gate(
    rehearsal: Any, fake: FakeGitHub, monkeypatch: pytest.MonkeyPatch, terminal: Verb
) -> None:
    rehearsal.all()
    inputs.path(rehearsal.work, "duplicates_issue").unlink()
    assert [gate.name for gate in rehearsal.status("issue") if not gate.open] == ["duplicates"]
    monkeypatch.setattr(sys, "argv", ["upstream-patch", "duplicates", "issue", "--out", str(rehearsal.work.parent)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert [gate.name for gate in rehearsal.status("issue") if not gate.open] == []
    assert {line.split()[0] for line in fake.log} == {"GET"}


def test_metal_is_filed_the_same_way_and_has_no_link_back(mac: Any, fake: FakeGitHub, terminal: Verb) -> None:
    metal = ("--contribution", "metal")
    mac.others()
    metal_records.built(mac.evidence, BASE)
    inputs.write(mac.work, "upstream_metal", upstream(series_sha256=metal_records.SERIES))
    for name, document in all_of(METAL).items():
        text = metal_records.draft(mac, document, fill=True).read_text("utf-8")
        inputs.write(mac.work, f"duplicates_{name}_metal", searched(document.title(text)))
        if name == "pr":
            gates.excuse("pr", "benchmarks", "both builds timed by hand", mac.work, mac.evidence, NOW, METAL)
        head = ("--head", "small-m") if name == "pr" else ()
        code, shown, _ = terminal("file", name, *head, *metal, types="ml-explore/mlx")
        assert code == 0
        assert (
            shown.splitlines()[-1]
            == {
                "issue": f"next: upstream-patch draft pr --contribution metal{where(mac)}",
                "pr": "no draft link-back: no thread downstream is known that waits for the Metal change",
            }[name]
        )
    assert [entry.number for entry in fake.repos["ml-explore/mlx"].entries] == [3764, 3765, 3766]
