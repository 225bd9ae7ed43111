"""Upstream's rules as data, and the gate that is red until a person has read the day's files."""

from __future__ import annotations

import hashlib
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from upstream_patch.draft import inputs, rules
from upstream_patch.draft.gates import CODES
from upstream_patch.errors import UserError

BUG = ".github/ISSUE_TEMPLATE/bug_report.md"
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, **files: str) -> str:
    for name, text in files.items():
        path = folder / {"contributing": "CONTRIBUTING.md", "bug": BUG}.get(name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def mlx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for a clone: files of our own at the paths that are watched, and those that tell MLX's repository."""
    monkeypatch.setenv("GIT_COMMITTER_DATE", NOW.isoformat())
    folder = tmp_path / "mlx"
    folder.mkdir()
    git(folder, "init", "-q", "--initial-branch=main")
    git(folder, "remote", "add", "upstream", "git@github.com:ml-explore/mlx.git")
    git(folder, "symbolic-ref", "refs/remotes/upstream/main", "refs/heads/main")  # always fetched
    stands = {place.file: "Text.\n" for rule in rules.rules().rules for place in rule.stands if place.commit}
    kept = {path: text for path, text in stands.items() if path not in ("CONTRIBUTING.md", BUG)}
    marks = {"mlx/version.h": "", "mlx/primitives.h": "", ".pre-commit-config.yaml": "repos:\n"}
    words = {"contributing": "Write it yourself.\nTest it.\n", "bug": "What is wrong?\n", "unwatched": "x\n"}
    commit(folder, **marks, **kept, **words)
    return folder


def word(lines: list[str]) -> str:
    return lines[-1].rpartition(" --read ")[2]


def test_each_rule_has_an_id_a_place_and_a_gate() -> None:
    known = rules.rules().rules
    assert len({rule.id for rule in known}) == len(known)
    assert {rule.gate for rule in known} <= {*CODES, "person"}
    assert all(rule.says and rule.stands for rule in known)
    assert rules.rules().first_hand is False
    # what upstream asks of a contributor in its own text; the other gates are ours
    assert {"holes", "disclosure", "tests", "benchmarks", "formatting", "duplicates"} <= {rule.gate for rule in known}


def test_red_until_a_person_has_read_them_and_after_every_change(mlx: Path, tmp_path: Path) -> None:
    work = tmp_path / "out"
    assert rules.judge(work, NOW) == (False, "nobody has read upstream's rules at first hand")
    first = list(rules.refresh(work, mlx, now=NOW))
    head = git(mlx, "rev-parse", "HEAD")
    assert first[0] == f"ml-explore/mlx {head} of 2026-12-01: 6 files with rules"
    assert "--- read/.github/workflows/update_bypass_list.yml" in first
    assert {"+Write it yourself.", "+What is wrong?"} <= set(first)
    assert (
        "=> check that CONTRIBUTING.md still says: New tests fail on main and pass with the change. (rule "
        in "\n".join(first)
    )
    assert rules.judge(work, NOW)[0] is False  # seen, not read

    said = list(rules.refresh(work, mlx, word(first), now=NOW))
    assert said[1].startswith(f"read: {word(first)}; ")
    assert rules.judge(work, NOW) == (True, f"read at {head[:12]}, the same at {head[:12]} of 2026-12-01")
    commit(mlx, unwatched="y\n")
    assert len(list(rules.refresh(work, mlx, now=NOW))) == 2  # nothing to read again
    assert rules.judge(work, NOW)[0] is True

    commit(mlx, contributing="Write it yourself.\nTest it twice.\n")
    changed = list(rules.refresh(work, mlx, now=NOW))
    assert {"-Test it.", "+Test it twice."} <= set(changed) and "+What is wrong?" not in changed
    assert rules.judge(work, NOW) == (False, "upstream's rules changed since they were read: CONTRIBUTING.md")
    with pytest.raises(UserError, match=rf"the files are {word(changed)} now, not {word(first)}"):
        list(rules.refresh(work, mlx, word(first), now=NOW))
    list(rules.refresh(work, mlx, word(changed), now=NOW))
    assert rules.judge(work, NOW)[0] is True


def test_red_again_after_a_week_and_when_our_copy_of_the_rules_changes(
    mlx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(rules.refresh(tmp_path, mlx, word(list(rules.refresh(tmp_path, mlx, now=NOW))), now=NOW))
    assert rules.judge(tmp_path, NOW + timedelta(days=7)) == (True, rules.judge(tmp_path, NOW)[1])
    assert rules.judge(tmp_path, NOW + timedelta(days=9)) == (False, "upstream's rules were last looked at 9 days ago")
    monkeypatch.setattr(rules, "sha256", lambda: hashlib.sha256(b"new").hexdigest())
    assert rules.judge(tmp_path, NOW) == (False, "this project's copy of the rules changed since they were read")


def test_a_clone_that_nobody_fetched_opens_nothing(mlx: Path, tmp_path: Path) -> None:
    late = NOW + timedelta(days=15)
    said = list(rules.refresh(tmp_path, mlx, word(list(rules.refresh(tmp_path, mlx, now=late))), now=late))
    behind = "HEAD of the clone is of 2026-12-01, more than 14 days ago: fetch upstream's main first"
    assert said[1:] == [f"the gate `rules` stays red: {behind}"]
    assert rules.judge(tmp_path, late) == (False, behind)
    day_before = late - timedelta(days=1)
    assert list(rules.refresh(tmp_path, mlx, now=day_before))[1].startswith("read: ")
    assert rules.judge(tmp_path, day_before)[0] is True


def test_a_folder_without_a_remote_of_upstream_opens_nothing(mlx: Path, tmp_path: Path) -> None:
    git(mlx, "remote", "remove", "upstream")
    read = word(list(rules.refresh(tmp_path, mlx, now=NOW)))
    said = list(rules.refresh(tmp_path, mlx, read, now=NOW))
    lacks = "no remote of the clone is ml-explore/mlx, so nobody can know whether its HEAD is upstream's: git -C"
    assert said[1].startswith(f"the gate `rules` stays red: {lacks} ")
    ok, why = rules.judge(tmp_path, NOW)
    assert not ok and why.startswith(lacks)


def test_what_is_not_committed_does_not_count(mlx: Path, tmp_path: Path) -> None:
    before = word(list(rules.refresh(tmp_path, mlx, now=NOW)))
    (mlx / "CONTRIBUTING.md").write_text("anything\n")
    assert word(list(rules.refresh(tmp_path, mlx, now=NOW))) == before


def test_what_is_no_clone_of_mlx_is_one_line_and_opens_nothing(mlx: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty is not a git checkout: --mlx takes a clone of MLX"):
        list(rules.refresh(tmp_path, tmp_path / "empty"))
    git(mlx, "rm", "-q", "mlx/version.h")  # all the watched files, in some other project
    commit(mlx, other="x")
    with pytest.raises(UserError, match=r"is a git checkout, but not MLX's: it has no mlx/version.h"):
        list(rules.refresh(tmp_path, mlx))
    assert not inputs.path(tmp_path, rules.NAME).exists()


@pytest.mark.parametrize("file", ["AGENTS.md", "CONTRIBUTING.md", ".github/workflows/update_bypass_list.yml", BUG])
def test_nobody_has_read_a_rule_whose_file_is_gone(file: str, mlx: Path, tmp_path: Path) -> None:
    git(mlx, "rm", "-q", file)
    commit(mlx, other="x")
    said = list(rules.refresh(tmp_path, mlx, now=NOW))
    assert any(re.match(rf"=> rule [\w-]+ stood in {re.escape(file)}, which is not there", line) for line in said)
    assert not any("--read" in line for line in said)
    digest = inputs.read(tmp_path, rules.NAME, rules.Readings).seen.digest  # type: ignore[union-attr]
    with pytest.raises(UserError, match=rf"{re.escape(file)} is not there, in which rule [\w-]+ stood: .*mlx.json"):
        list(rules.refresh(tmp_path, mlx, digest, now=NOW))
    assert rules.judge(tmp_path, NOW) == (False, "nobody has read upstream's rules at first hand")
