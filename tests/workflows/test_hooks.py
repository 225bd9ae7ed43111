"""The scripts of a runner, run here: with programs in PATH that say what a machine of an owner would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="the scripts are for Linux and macOS")

GOOD = {
    "GITHUB_EVENT_NAME": "push",
    "GITHUB_REF": "refs/heads/device/pr-7",
    "GITHUB_WORKFLOW_REF": "owner/name/.github/workflows/device.yml@refs/heads/device/pr-7",
}
QUIET = """  10 1 /home/actions/job/runner/bin/Runner.Listener
  11 10 Runner.Worker
  $(cat "$SELF") 11 bash
  13 $(cat "$SELF") ps
  14 1 systemd
  15 14 (sd-pam)
  16 1 /usr/libexec/trustd"""


def run(
    script: Path, home: Path, programs: Mapping[str, str], environment: Mapping[str, str], *arguments: str
) -> tuple[int, str]:
    """Exit code, and all that it said. ``programs``: shell text of what stands before PATH."""
    tools = home.parent / "tools"
    tools.mkdir(exist_ok=True)
    for program, text in programs.items():
        (tools / program).write_text(f"#!/bin/sh\n{text}\n")
        (tools / program).chmod(0o755)
    everything = {"HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}", **environment}
    # the script's own process, for what stands in for ps
    everything |= {"SELF": str(tools.parent.joinpath("self"))}
    command = ["bash", "-c", 'echo $$ >"$SELF"; exec bash "$0" "$@"', str(script), *arguments]
    ran = subprocess.run(command, env=everything, capture_output=True, text=True, timeout=30, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def said(text: str) -> str:
    return f"cat <<END\n{text}\nEND"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a job, with a space in its path, and what a job before left in the workspace: a folder that is shut, too."""
    folder = tmp_path / "a b/job"
    shut = folder / "runner/_work/repo/repo/.venv/bin"
    shut.mkdir(parents=True)
    (shut / ".hidden").write_text("left over")
    shut.chmod(0o500)
    return folder


def started(root: Path, home: Path, processes: str = QUIET, user: str = "actions", **changes: str) -> tuple[int, str]:
    workspace = {"GITHUB_WORKSPACE": str(home / "runner/_work/repo/repo")}
    programs = {"id": said(user), "ps": said(processes), "crontab": "exit 1"}
    return run(root / "ci/runners/hooks/job-started.sh", home, programs, GOOD | workspace | changes)


def left(home: Path) -> list[Path]:
    return list((home / "runner/_work/repo/repo").iterdir())


def test_a_job_starts_in_an_empty_workspace_and_again(root: Path, home: Path) -> None:
    assert started(root, home) == (0, "no strays, an empty workspace\n")
    assert left(home) == []
    assert started(root, home) == (0, "no strays, an empty workspace\n")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"GITHUB_EVENT_NAME": "pull_request"}, "pull_request never runs on this machine"),
        ({"GITHUB_EVENT_NAME": "pull_request_target"}, "pull_request_target never runs"),
        ({"GITHUB_EVENT_NAME": "workflow_run"}, "workflow_run never runs"),
        ({"GITHUB_EVENT_NAME": ""}, "nothing never runs"),
        ({"GITHUB_REF": "refs/pull/3/merge"}, "refs/pull/3/merge is no branch"),
        ({"GITHUB_REF": "refs/heads/feature"}, "refs/heads/feature is no branch"),
        ({"GITHUB_REF": "refs/heads/main"}, "is not the workflow that runs on this machine"),  # of another branch
        ({"GITHUB_WORKFLOW_REF": GOOD["GITHUB_WORKFLOW_REF"].replace("device.yml", "ci.yml")}, "is not the workflow"),
        ({"GITHUB_WORKFLOW_REF": ""}, "nothing is not the workflow"),
        ({"user": "owner"}, "jobs run as the user actions, this is owner"),
        ({"user": "root"}, "jobs run as the user actions, this is root"),
    ],
)
def test_a_job_that_is_not_for_this_machine_does_not_start(
    root: Path, home: Path, changes: dict[str, str], why: str
) -> None:
    """Whatever its workflow says: a pull request brings its own."""
    code, words = started(root, home, **changes)
    assert (code, words.startswith("error: "), why in words) == (1, True, True), words
    assert left(home) != []


@pytest.mark.parametrize(
    "stray", ["77 1 /tmp/.x/miner", "77 1 bash", "77 1 Runner.Worker", "77 10 x y", "77 16 /usr/local/bin/x"]
)
def test_what_an_earlier_job_left_running_stops_the_next(root: Path, home: Path, stray: str) -> None:
    code, words = started(root, home, processes=f"{QUIET}\n  {stray}")
    assert code == 1
    assert words.endswith(f": 77 {stray.split(' ', 2)[2]}\n")
    assert left(home) != []


def test_a_process_list_without_the_hook_stops_the_job(root: Path, home: Path) -> None:
    assert started(root, home, processes="  10 1 Runner.Listener")[0] == 1


def test_a_crontab_stops_the_job(root: Path, home: Path) -> None:
    started(root, home)
    programs = {"id": said("actions"), "ps": said(QUIET), "crontab": said("* * * * * /tmp/x")}
    code, words = run(root / "ci/runners/hooks/job-started.sh", home, programs, GOOD)
    assert (code, "left a crontab" in words) == (1, True)


@pytest.mark.parametrize("name", ["job-started.sh", "job-completed.sh"])
@pytest.mark.parametrize("elsewhere", ["{home}", "{home}/..", "{home}/runner/_work/x/../..", "/nowhere/_work/x"])
def test_nothing_outside_a_workspace_is_deleted(root: Path, home: Path, name: str, elsewhere: str) -> None:
    programs = {"id": said("actions"), "ps": said(QUIET), "crontab": "exit 1"}
    place = {"GITHUB_WORKSPACE": elsewhere.format(home=home)}
    code, words = run(root / "ci/runners/hooks" / name, home, programs, GOOD | place)
    assert (code, "is no workspace" in words) == (1, True) or (code, name) == (0, "job-started.sh"), words
    assert left(home) != []


@pytest.mark.parametrize("deaf", [False, True])
def test_what_a_job_left_is_ended_and_nothing_else(root: Path, home: Path, deaf: bool) -> None:
    workspace = home / "runner/_work/repo/repo"
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if deaf else ""
    command = [sys.executable, "-c", f"import signal, time; {ignore} print('up', flush=True); time.sleep(60)"]
    with (
        subprocess.Popen(command, cwd=workspace, stdout=subprocess.PIPE) as stray,
        subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL) as other,
    ):
        try:
            assert stray.stdout is not None
            stray.stdout.readline()
            programs = {"id": said("actions"), "ps": said(f"{stray.pid} 1\n{other.pid} 1")}
            place = {"GITHUB_WORKSPACE": str(workspace)}
            code, words = run(root / "ci/runners/hooks/job-completed.sh", home, programs, place)
            signals = ["TERM", "KILL"] if deaf else ["TERM"]
            expected = [f"SIG{each} to {stray.pid}, which the job left" for each in signals]
            assert (code, words.splitlines()) == (0, [*expected, "no strays, an empty workspace"])
            assert stray.wait(timeout=10) != 0
            assert other.poll() is None
        finally:
            stray.kill()
            other.kill()
    assert left(home) == []


@pytest.fixture
def installed(root: Path, tmp_path: Path) -> Path:
    """``once.sh`` where the set-up puts it, with a runner that says what it was given."""
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "once.sh").write_text((root / "ci/runners/once.sh").read_text())
    says = tmp_path / "run.sh"
    says.write_text('#!/bin/sh\necho "$# $PWD $TMPDIR"; env | grep ^ACTIONS_ | sort; cd "$HOME"; find . | sort\n')
    says.chmod(0o755)
    with tarfile.open(folder / "runner.tar.gz", "w:gz") as archive:
        archive.add(says, "run.sh")
    return folder


def test_every_job_gets_a_new_home_and_runner(home: Path, installed: Path) -> None:
    (home / ".gitconfig").write_text("[core] hooksPath = /tmp/x\n")
    (home / "runner/run.sh").write_text("echo of an earlier job\n")
    assert run(installed / "once.sh", home, {}, {})[1].startswith("no just-in-time configuration")
    (home / "jit").write_text("one-job")
    code, words = run(installed / "once.sh", home, {}, {})
    assert (code, words.splitlines()) == (
        0,
        [
            f"0 {home}/runner {home}/tmp",  # nothing on the command line
            f"ACTIONS_RUNNER_HOOK_JOB_COMPLETED={installed}/hooks/job-completed.sh",
            f"ACTIONS_RUNNER_HOOK_JOB_STARTED={installed}/hooks/job-started.sh",
            "ACTIONS_RUNNER_INPUT_JITCONFIG=one-job",
            *(".", "./runner", "./runner/run.sh", "./tmp"),
        ],
    )


def test_no_other_home_is_wiped(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "jit").write_text("one-job")
    code, words = run(installed / "once.sh", tmp_path, {}, {})
    assert (code, "would be wiped" in words, installed.is_dir()) == (1, True, True)


@pytest.mark.parametrize(
    ("machine", "kernel", "state", "starts"),
    [
        ("gb10", "Linux", "inactive", "systemctl start actions-runner.service"),
        ("m5", "Darwin", "state = not running", "launchctl kickstart system/actions-runner"),
    ],
)
def test_the_owner_opens_the_machine_for_one_job(
    root: Path, tmp_path: Path, machine: str, kernel: str, state: str, starts: str
) -> None:
    log = tmp_path / "log"
    note = f'echo "$(basename "$0") $*" >>"{log}"'
    programs = {
        "gh": f"{note}; printf secret-jit",
        "sudo": f'{note}; [ "$1" = -u ] && exec cat >>"{log}"; exec "$@"',
        **{name: f"{note}; echo '{state}'" for name in ("systemctl", "launchctl")},
        "uname": f"echo {kernel}",
    }
    script, home = root / "ci/runners/open.sh", tmp_path / "job"
    code, words = run(script, home, programs, {}, "o/r", machine)
    assert (code, words.splitlines()[-1]) == (0, f"{machine} waits for one job of o/r")
    lines = log.read_text().splitlines()
    assert lines[-1] == starts
    assert f"-f labels[]={machine}" in log.read_text()
    folder = "/home/actions" if machine == "gb10" else "/Users/actions"
    (handed,) = [line for line in lines if line.startswith("sudo -u actions")]
    assert handed.endswith(f"sh {folder}/job/jit")  # whole: sudo may keep the owner's HOME
    assert [line for line in lines if "secret-jit" in line and line.startswith(("sudo", "gh"))] == []
    log.write_text("")
    open_already = programs | {"systemctl": "echo active", "launchctl": "echo 'state = running'"}
    code, words = run(script, home, open_already, {}, "o/r", machine)
    assert (code, "it is open already" in words, "gh" in log.read_text()) == (1, True, False)
    code, words = run(script, home, programs, {}, "o/r", "m5" if machine == "gb10" else "gb10")
    assert (code, "this machine is no" in words) == (2, True)


@pytest.mark.parametrize("name", ["setup-gb10.sh", "setup-m5.sh"])
def test_no_job_can_write_where_the_scripts_lie(root: Path, name: str) -> None:
    text = (root / "ci/runners" / name).read_text()
    targets = re.findall(r"(?m)^install .*-m 0(?:755|644) .*?(\S+)$", text)
    assert len(targets) == 4
    assert all(target.startswith('"$ours/') for target in targets)
    assert "\nours=/usr/local/lib/actions-runner\n" in text
    writable = re.findall(r"(?m)^(?:install -d -o actions|chown -R? ?actions).*?(\S+)$", text)
    assert writable == ['"$home/job"']
