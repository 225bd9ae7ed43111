"""A stand-in for MLX: the paths that the series touches, and of their text only the anchors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from upstream_patch.machine import System
from upstream_patch.series.model import Contribution

IDENTITY = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false")


def standin(contributions: list[Contribution]) -> dict[str, str]:
    """Path -> text: every anchor once, at the line where it was read, among lines that are nobody's."""
    texts: dict[str, list[str]] = {"mlx/version.h": [], "mlx/primitives.h": []}
    for contribution in contributions:
        for edit in contribution.edits:
            lines = texts.setdefault(edit.file, [])
            if any(edit.anchor in line for line in lines):
                continue
            if edit.below is not None and not any(edit.below in line for line in lines):
                lines.append(edit.below)
            before = (edit.read.line or len(lines) + 3) - 1
            lines += [f"stand-in {number + 1}" for number in range(len(lines), before)]
            lines.append(edit.anchor)
    return {path: "".join(f"{line}\n" for line in [*lines, "stand-in, the end"]) for path, lines in texts.items()}


@dataclass(frozen=True)
class Repository:
    path: Path

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *IDENTITY, *arguments], cwd=self.path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str | None], subject: str = "a change") -> str:
        for name, text in files.items():
            file = self.path / name
            if text is None:
                file.unlink()
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def state(self) -> str:
        """All that a person would see of it: files, index, references, worktrees."""
        asked = (
            ("rev-parse", "HEAD"),
            ("status", "--porcelain", "--branch", "--ignored"),
            ("for-each-ref",),
            ("worktree", "list"),
        )
        files = {
            str(file.relative_to(self.path)): file.read_bytes()
            for file in sorted(self.path.rglob("*"))
            if file.is_file() and ".git" not in file.parts
        }
        return "\n".join([*(self.git(*words) for words in asked), repr(files)])


@pytest.fixture(scope="session")
def make_repository() -> Callable[[Path, Mapping[str, str]], Repository]:
    """``make_repository(path, files)``: a repository on branch main with one commit, tagged as the series' base."""

    def make(path: Path, files: Mapping[str, str]) -> Repository:
        path.mkdir()
        repository = Repository(path)
        repository.git("init", "--quiet", "--initial-branch=main")
        repository.commit(files, "base")
        repository.git("tag", "v0.32.4")
        return repository

    return make


@pytest.fixture(scope="session")
def make_standin() -> Callable[[list[Contribution]], dict[str, str]]:
    return standin


PIN = "17.0.6"
STYLED = {
    ".clang-format": "BasedOnStyle: x\n",
    ".pre-commit-config.yaml": f"repos:\n-   repo: https://example.invalid/mirrors-clang-format\n    rev: v{PIN}\n",
}
"""What makes a checkout name its clang-format."""


@pytest.fixture
def clang_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the pinned version on PATH, whose rules are one blank, never two, and 80 columns."""
    program = tmp_path / "clang-format"
    program.write_text(
        f"#!{sys.executable}\nimport re, sys, textwrap\n"
        f"if '--version' in sys.argv:\n    raise SystemExit(print('clang-format version {PIN}'))\n"
        "chosen = [a.split('=')[1].split(':') for a in sys.argv if a.startswith('--lines')]\n"
        "for number, line in enumerate(sys.stdin.read().splitlines(), 1):\n"
        "    ours = not chosen or any(int(f) <= number <= int(l) for f, l in chosen)\n"
        "    short = textwrap.fill(re.sub(' +', ' ', line), 80, break_long_words=False, break_on_hyphens=False)\n"
        "    print(short if ours else line)\n"
    )
    program.chmod(0o755)
    found = System.which
    monkeypatch.setattr(
        System, "which", lambda self, name: str(program) if name == "clang-format" else found(self, name)
    )
    monkeypatch.setattr(System, "site_folders", lambda self: [])


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody whom git knows."""
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "A Person")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "person@example.invalid")
