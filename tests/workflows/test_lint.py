"""The linters, offline: nothing to say about what is here, and something about what is wrong."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from ci import lint, policy
from upstream_patch.errors import MissingTool


@pytest.fixture(autouse=True)
def needs_tools(request: pytest.FixtureRequest) -> None:
    for name in lint.TOOLS:
        try:
            lint.tool(name)
        except MissingTool as error:
            pytest.skip(str(error))


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    shutil.copytree(root / ".github", tmp_path / ".github")
    shutil.copytree(root / lint.SCRIPTS, tmp_path / lint.SCRIPTS)
    return tmp_path


def test_nothing_is_found(copy: Path) -> None:
    """In a copy that is no git checkout, so that the findings below are those of the change."""
    assert lint.lint(copy) == []


@pytest.mark.parametrize("name", ["zizmor.yml", "zizmor.yaml"])
def test_no_configuration_silences_a_linter(copy: Path, name: str) -> None:
    (copy / ".github" / name).write_text("rules:\n  excessive-permissions:\n    disable: true\n")
    (copy / lint.LABELS).write_text("self-hosted-runner:\n  labels: [gb10, m5]\npaths:\n  '**':\n    ignore: ['.*']\n")
    path = copy / policy.FOLDER / "drift.yml"
    path.write_text(path.read_text().replace("permissions: {}", "permissions: write-all"))
    found = lint.lint(copy)
    assert any(line.startswith("zizmor: ") and "excessive-permissions" in line for line in found)
    assert any(line.startswith(f"{lint.LABELS}: ") for line in found)


@pytest.mark.parametrize(
    ("file", "was", "becomes", "who"),
    [
        (
            "device.yml",
            "contents: write # push the branch evidence/run-ID-ATTEMPT; a person opens the pull request",
            "contents: write",
            "zizmor",
        ),
        ("drafts.yml", "  group: drafts", "  grp: drafts", "actionlint"),
        ("ci.yml", "          persist-credentials: false\n", "          fetch-depth: 1\n", "zizmor"),
        ("drift.yml", "run: .venv/bin/nox -s drift", "run: .venv/bin/nox -s drift ${{ github.head_ref }}", "zizmor"),
        ("device.yml", "ARM64, gb10]", "ARM64, gb01]", "actionlint"),
        ("device.yml", "needs: [gate, gb10, m5]", "needs: [gate, gb10, m6]", "actionlint"),
        ("ci.yml", 'nox -s "$SESSION"', "nox -s $SESSION", "actionlint"),  # by shellcheck
        ("device.yml", "      queue: max # a", "      queu: max # a", "check-jsonschema"),
    ],
)
def test_each_linter_runs_and_finds(copy: Path, file: str, was: str, becomes: str, who: str) -> None:
    path = copy / policy.FOLDER / file
    text = path.read_text()
    assert was in text
    path.write_text(text.replace(was, becomes, 1))
    assert [line for line in lint.lint(copy) if line.startswith(f"{who}: ")]


def test_a_bad_script_and_a_missing_workflow_are_found(copy: Path) -> None:
    (copy / lint.SCRIPTS / "open.sh").write_text("#!/usr/bin/env bash\nrm -rf $1/*\n")
    (copy / policy.FOLDER / "drift.yml").unlink()
    found = lint.lint(copy)
    assert "drift.yml: missing" in found
    assert any("SC2086" in line for line in found)


def test_a_missing_linter_is_no_silence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingTool, match="no zizmor"):
        lint.tool("zizmor")
