"""The hooks of a runner, run here: with a `ps` and an `id` that say what a machine of an owner would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="the hooks are for Linux and macOS")


def hook(root: Path, home: Path, name: str, processes: str | None, user: str | None = "actions") -> tuple[int, str]:
    """Exit code, and all that it said. ``processes`` is what ps prints; None: the real ones."""
    tools = home / "tools"
    tools.mkdir(exist_ok=True)
    said = {"id": user, "ps": processes}
    for program, text in said.items():
        if text is not None:
            (tools / program).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
            (tools / program).chmod(0o755)
    environment = {
        "HOME": str(home),
        "GITHUB_WORKSPACE": str(home / "runner/_work/repo/repo"),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    command = ["bash", str(root / "ci/runners/hooks" / name)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Of a runner, with what a job before left in it."""
    folder = tmp_path / "runner/_work/repo/repo"
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".hidden").write_text("left over")
    return folder


QUIET = "  10 /home/actions/runner/bin/Runner.Listener\n  11 Runner.Worker\n  12 /bin/bash\n  13 ps"


def test_a_job_starts_in_an_empty_workspace(root: Path, tmp_path: Path, workspace: Path) -> None:
    assert hook(root, tmp_path, "job-started.sh", QUIET) == (0, "no strays, an empty workspace\n")
    assert list(workspace.iterdir()) == []


def test_what_an_earlier_job_left_running_stops_the_next(root: Path, tmp_path: Path, workspace: Path) -> None:
    code, said = hook(root, tmp_path, "job-started.sh", f"{QUIET}\n  77 /tmp/.x/miner")
    assert code == 1
    assert said.endswith("77 miner\n")
    assert (workspace / ".hidden").exists()


def test_a_job_of_another_user_does_not_start(root: Path, tmp_path: Path, workspace: Path) -> None:
    code, said = hook(root, tmp_path, "job-started.sh", QUIET, user="owner")
    assert (code, "this is owner" in said) == (1, True)


@pytest.mark.parametrize("name", ["job-started.sh", "job-completed.sh"])
def test_nothing_outside_a_workspace_is_deleted(root: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "runner/_work"
    elsewhere.mkdir(parents=True)
    kept = tmp_path / "kept"
    kept.write_text("mine")
    home = tmp_path / "home"
    home.mkdir()
    # the hook's $HOME is another one than that of the workspace
    text = (root / "ci/runners/hooks" / name).read_text()
    assert 'find "$' in text
    environment = {"HOME": str(home), "GITHUB_WORKSPACE": str(tmp_path), "PATH": os.environ["PATH"]}
    tools = tmp_path / "tools"
    tools.mkdir()
    for program in ("id", "ps"):
        (tools / program).write_text("#!/bin/sh\necho actions\n" if program == "id" else "#!/bin/sh\n")
        (tools / program).chmod(0o755)
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    command = ["bash", str(root / "ci/runners/hooks" / name)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 1
    assert "is no workspace" in ran.stderr
    assert kept.read_text() == "mine"


def test_what_a_job_left_is_ended_and_nothing_else(root: Path, tmp_path: Path, workspace: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(command, cwd=workspace) as left, subprocess.Popen(command, cwd=tmp_path) as other:
        try:
            listed = f"{left.pid} 1\n{other.pid} 1"
            code, said = hook(root, tmp_path, "job-completed.sh", listed)
            assert (code, said.splitlines()[-1]) == (0, "1 strays ended, the workspace is empty")
            assert left.wait(timeout=10) != 0
            assert other.poll() is None
        finally:
            left.kill()
            other.kill()
    assert list(workspace.iterdir()) == []
