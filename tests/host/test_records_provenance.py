"""A record names the code that it measured: the commit of the checkout that tracks this very package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.machine import Gpu
from upstream_patch.records.provenance import COMMIT_VARIABLE, _commit, host_id, versions

GIVEN = "0123456789abcdef" * 2 + "01234567"


def git(folder: Path, *arguments: str) -> str:
    config = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *config, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one tracked module; returns the module."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", COMMIT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "clone" / "package" / "module.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    git(file.parent, "init", "-q")
    git(file.parent, "add", ".")
    git(file.parent, "commit", "-q", "-m", "x")
    return file


def test_a_clean_and_a_changed_checkout(clone: Path) -> None:
    head = git(clone.parent, "rev-parse", "HEAD")
    git(clone.parent, "tag", "v1")
    assert _commit(clone) == head
    clone.write_text("x = 2\n")
    assert _commit(clone) == f"{head}-dirty"


def test_a_tree_that_another_user_owns(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(clone.parent, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    refused = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=clone.parent, capture_output=True, text=True, check=False
    )
    assert "dubious ownership" in refused.stderr
    assert _commit(clone) == head


def test_inside_a_git_hook(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(clone.parent, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert _commit(clone) == head


def test_an_install_inside_some_checkout_is_not_that_checkout(clone: Path) -> None:
    installed = clone.parent / "site-packages" / "upstream_patch" / "provenance.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("")
    assert _commit(installed) == "unknown"


def test_a_copied_tree_can_be_told_its_commit(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy" / "module.py"
    copy.parent.mkdir()
    copy.write_text("")
    assert _commit(copy) == "unknown"
    monkeypatch.setenv(COMMIT_VARIABLE, GIVEN[:12])
    assert _commit(copy) == "unknown"
    monkeypatch.setenv(COMMIT_VARIABLE, GIVEN)
    assert _commit(copy) == f"{GIVEN}-given"
    assert _commit(clone) == git(clone.parent, "rev-parse", "HEAD")  # git knows better


def test_without_git(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert _commit(clone) == "unknown"


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GB10", "gb10"),
        ("Apple M5", "m5"),
        ("Apple M5 Max", "m5max"),
        ("NVIDIA H200 MIG 1g.18gb", "h200mig1g18gb"),
        ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("NVIDIA Test", "testother"),
        ("4090", "gpu4090"),
    ],
)
def test_host_ids(synthetic: Any, name: str, host: str) -> None:
    machine = synthetic.machine.model_copy(update={"gpu": Gpu(name=name, vendor="nvidia")})
    assert host_id(machine) == host
    assert host_id(machine.model_copy(update={"gpu": None})) == "cpu"


def test_versions_say_what_is_installed() -> None:
    found = versions()
    assert {"python", "upstream-patch", "commit", "numpy"} <= set(found)
    assert all(found.values())
