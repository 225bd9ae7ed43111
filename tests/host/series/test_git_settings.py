"""git is asked the same whatever a person's settings and variables are, and its text may hold any byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.series import State, load
from upstream_patch.series.applying import apply, unapply
from upstream_patch.series.checkout import GitError, git, open_checkout
from upstream_patch.series.drift import drift
from upstream_patch.series.exporting import compare, export

CUDA = load("cuda")
QUANTIZED = "mlx/backend/cuda/quantized/quantized.cpp"
HOSTILE = {
    **{f"color.{name}": "always" for name in ("ui", "diff", "grep", "status", "branch")},
    **{f"diff.{name}": "true" for name in ("noprefix", "mnemonicPrefix", "relative", "suppressBlankEmpty")},
    "diff.algorithm": "patience",
    "diff.context": "1",
    "diff.dstPrefix": "new/",
    "diff.external": "false",
    "diff.indentHeuristic": "false",
    "diff.interHunkContext": "50",
    "diff.orderFile": "order",
    "diff.renames": "copies",
    "diff.srcPrefix": "old/",
    "diff.submodule": "log",
    **{
        f"format.{name}": "true" for name in ("attach", "coverLetter", "signOff", "notes", "from", "thread", "numbered")
    },
    "format.noprefix": "true",
    "format.cc": "somebody@example.invalid",
    "format.headers": "X-Header: one",
    "format.outputDirectory": "elsewhere",
    "format.pretty": "oneline",
    "format.signature": "words of mine",
    "format.subjectPrefix": "MY PATCH",
    "format.suffix": ".txt",
    "format.to": "somebody@example.invalid",
    "format.useAutoBase": "true",
    "grep.lineNumber": "true",
    "grep.column": "true",
    "i18n.logOutputEncoding": "UTF-16",
    "log.abbrevCommit": "true",
    "log.date": "relative",
    "log.decorate": "full",
    "log.follow": "true",
    "log.showSignature": "true",
    "core.quotePath": "false",
    "core.autocrlf": "true",
    "core.safecrlf": "true",
    "status.showUntrackedFiles": "no",
    "status.short": "true",
    "status.branch": "true",
}


@pytest.fixture
def repository(make_repository: Any, make_standin: Any, tmp_path: Path, person: None) -> Any:
    files = make_standin([CUDA])
    lines = files[QUANTIZED].splitlines()  # blank lines, and lines that are alike, for other algorithms to stumble over
    files[QUANTIZED] = "".join(f"{line}\n\n}}\n" for line in lines)
    return make_repository(tmp_path / "mlx", files)


GPG = r"cat >/dev/null; echo 'signed by somebody' >&2; printf '\n[GNUPG:] SIG_CREATED \n' >&2; echo 'a signature'"
"""Signs and checks. It reads all that git hands over: git fails where the pipe closes first."""


def program(folder: Path, text: str) -> Path:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def write(settings: Path, values: Mapping[str, str | Path]) -> None:
    for name, value in values.items():
        subprocess.run(["git", "config", "--file", settings, name, str(value)], check=True)


def seen(repository: Any, out: Path) -> dict[str, Any]:
    """All that we read of a repository in which upstream made the very change, then another."""
    checkout = open_checkout(repository.path)
    version, folder, _ = export(checkout, CUDA, out, "v0.32.4")
    found = drift(checkout, CUDA)
    texts = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {"version": version, "texts": texts, "drift": found, "range": compare(checkout, "cuda", 1, 1)}


def test_no_setting_and_no_variable_changes_what_is_exported_and_seen(
    repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = open_checkout(repository.path)
    export(checkout, CUDA, tmp_path / "first")
    mail = tmp_path / "first/cuda/v1/cuda.patch"
    repository.git("apply", "--index", str(mail))
    signing = program(tmp_path, GPG)
    repository.git("-c", f"gpg.program={signing}", "commit", "--quiet", "-S", "-m", "The change, é")
    repository.commit({"mlx/multirow.h": "qmm_small_m\n", "naïve.txt": "supports_qmm_small_m\n"}, "More")
    plain = seen(repository, tmp_path / "plain")
    assert plain["drift"].equal and plain["drift"].symbols["qmm_small_m"]
    assert plain["texts"]["cuda.patch"].count(b"\nFrom: ") == 1

    settings = tmp_path / "settings"
    (tmp_path / "order").write_text("*.h\n")
    (tmp_path / "attributes").write_text("* diff=mine\n")
    files = {"core.attributesFile": tmp_path / "attributes", "diff.orderFile": tmp_path / "order"}
    write(
        settings, HOSTILE | files | {"diff.mine.textconv": "echo", "diff.mine.command": "echo", "gpg.program": signing}
    )
    repository.git("notes", "add", "-m", "a note", plain["version"].commit)
    variables = {"GIT_DIFF_OPTS": "-u0", "GIT_COMMITTER_NAME": "Another", "GIT_COMMITTER_EMAIL": "a@example.invalid"}
    places = dict.fromkeys(("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"), str(tmp_path / "no"))
    for name, value in {**variables, **places, "GIT_CONFIG_GLOBAL": str(settings)}.items():
        monkeypatch.setenv(name, value)
    assert seen(repository, tmp_path / "hostile") == plain


def test_a_change_is_applied_under_any_settings(
    repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings"
    write(settings, HOSTILE | {"core.fsmonitor": program(tmp_path, f"touch '{tmp_path}/watched'; exit 1")})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    checkout = open_checkout(repository.path)
    before = repository.git("for-each-ref")
    applied, _ = apply(checkout, [CUDA])
    (applied.worktree / "mine.txt").write_text("my own\n")
    with pytest.raises(UserError, match="holds work of yours"):
        unapply(checkout, [CUDA])
    (applied.worktree / "mine.txt").unlink()
    unapply(checkout, [CUDA])
    assert repository.git("for-each-ref") == before
    assert not (tmp_path / "watched").exists()


LATIN = "// caf\udce9\n"  # a byte that is not UTF-8, as it is read


def test_bytes_that_are_not_utf8_go_through_unchanged(repository: Any, tmp_path: Path) -> None:
    file = repository.path / QUANTIZED
    file.write_bytes(LATIN.encode(errors="surrogateescape") + file.read_bytes())
    repository.git("commit", "--quiet", "--all", "-m", "Latin-1")
    file.write_bytes(file.read_bytes().replace(b"supports_qmm_sm90", b"caf\xe9"))
    repository.git("-c", "i18n.commitEncoding=none", "commit", "--quiet", "--all", "-m", "caf\udce9: no anchor")
    checkout = open_checkout(repository.path)
    _, folder, _ = export(checkout, CUDA, tmp_path / "out", "HEAD^")
    assert (folder / "patches" / QUANTIZED).read_bytes().startswith(b"// caf\xe9\n")
    assert {item.state for item in drift(checkout, CUDA).items} == {State.APPLIES, State.MOVED, State.CONFLICT}
    told = subprocess.run(
        [sys.executable, "-m", "upstream_patch", "series", "check", "--mlx", repository.path, "cuda"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONUTF8": "1"},
        capture_output=True,
        check=False,
    )
    assert (told.returncode, told.stderr) == (1, b"")
    assert b"caf\\udce9: no anchor" in told.stdout
    repository.git("reset", "--quiet", "--hard", "HEAD^")
    applied, _ = apply(checkout, [CUDA])
    assert (applied.worktree / QUANTIZED).read_bytes().startswith(b"// caf\xe9\n")
    unapply(checkout, [CUDA])


def test_an_error_of_git_is_told_whole_and_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(GitError) as raised:
        git("clone", f"{tmp_path.as_uri()}/nothing", tmp_path / "clone")
    told = str(raised.value)
    assert "\n" not in told
    assert "does not appear to be a git repository" in told
    assert told.endswith("and the repository exists.")
