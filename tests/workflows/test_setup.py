"""The set-up scripts of both machines, run here twice: in a folder that stands for the machine's root, with programs in
PATH that stand for the system's and note their calls."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-ins are for Linux")

ROOTS = ("/home", "/Users", "/etc", "/usr/local/lib", "/Library/LaunchDaemons", "/var/log", "/proc/driver")
READ = {
    *("/usr/bin/env", "/bin/bash", "/dev/null", "/usr/bin/nvidia-modprobe", "/usr/local/cuda/bin"),
    *("/usr/local/cuda/bin/", "/Library/Frameworks/Python.framework/Versions/Current/bin"),
}
NOTES = 'echo "$(basename "$0") $*" >>"$NOTES"'
# without the owners, which only root can give away
INSTALL = f"""{NOTES}
for word; do
  shift
  case $word in -o | -g) skip=1 ;; *) if [ -n "$skip" ]; then skip=; else set -- "$@" "$word"; fi ;; esac
done
exec /usr/bin/install "$@"
"""
QUIET = ("useradd", "usermod", "chown", "systemctl", "update-initramfs", "nvidia-smi", "ncu", "compute-sanitizer")
MAC = ("sysadminctl", "createhomedir", "dseditgroup", "pmset", "xcrun", "launchctl", "sysctl", "openssl")
PROGRAMS = {
    **{name: NOTES for name in (*QUIET, *MAC)},
    "id": 'case "$*" in -u) echo 0 ;; *) exit "$(cat "$FOLDER/user")" ;; esac',
    "uname": 'cat "$FOLDER/uname"',
    "install": INSTALL,
    "dpkg-query": "echo install ok installed",
    "sw_vers": 'cat "$FOLDER/version"',
    "shasum": 'shift 2; exec sha256sum "$@"',
}


class Machine:
    def __init__(self, root: Path, folder: Path, script: str, system: str) -> None:
        self.folder = folder
        self.root = folder / "root"
        for place in ROOTS:
            (self.root / place.lstrip("/")).mkdir(parents=True)
        for name in ("home/actions", "Users/actions", "etc/modprobe.d", "etc/systemd/system", "proc/driver/nvidia"):
            (self.root / name).mkdir(parents=True)
        tools = folder / "tools"
        tools.mkdir()
        for name, text in PROGRAMS.items():
            (tools / name).write_text(f"#!/bin/bash\n{text}\n")
            (tools / name).chmod(0o755)
        here = folder / "runners"
        (here / "hooks").mkdir(parents=True)
        text = (root / "ci/runners" / script).read_text()
        written = re.compile(rf"(?<![\w$/])({'|'.join(ROOTS)})(?=[/\s\"]|$)", re.MULTILINE)
        rest = re.sub(rf"{written.pattern}[\w/.-]*|</\w+>", "", text, flags=re.MULTILINE)
        # any other path would be the real one
        assert set(re.findall(r"(?<![\w$.}:\"/])\"?(/[A-Za-z][\w/.-]*)", rest)) <= READ
        self.script = here / script
        self.script.write_text(written.sub(rf"{self.root}\1", text))
        for name in ("once.sh", "hooks/job-started.sh", "hooks/job-completed.sh"):
            (here / name).write_text((root / "ci/runners" / name).read_text())
        (folder / "runner.tar.gz").write_text("a runner")
        self.digest = hashlib.sha256(b"a runner").hexdigest()
        for name, said in (("uname", system), ("user", "1"), ("version", "26.2")):
            (folder / name).write_text(said)
        (folder / "notes").touch()

    def run(self, digest: str | None = None) -> tuple[int, str, list[str]]:
        """Exit code, what it said, and the calls that it made."""
        (self.folder / "notes").write_text("")
        environment = {"FOLDER": str(self.folder), "NOTES": str(self.folder / "notes")}
        environment["PATH"] = f"{self.folder}/tools:{os.environ['PATH']}"
        command = ["bash", str(self.script), str(self.folder / "runner.tar.gz"), digest or self.digest]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return ran.returncode, ran.stdout + ran.stderr, (self.folder / "notes").read_text().splitlines()

    def files(self) -> dict[str, str]:
        found = sorted(path for path in self.root.rglob("*") if path.is_file())
        return {path.relative_to(self.root).as_posix(): path.read_text().replace(str(self.root), "") for path in found}


OURS = {f"usr/local/lib/actions-runner/{name}" for name in ("once.sh", "runner.tar.gz")} | {
    f"usr/local/lib/actions-runner/hooks/{name}.sh" for name in ("job-started", "job-completed")
}


@pytest.fixture
def gb10(root: Path, tmp_path: Path) -> Machine:
    machine = Machine(root, tmp_path, "setup-gb10.sh", "Linux aarch64")
    (machine.root / "proc/driver/nvidia/params").write_text("RmProfilingAdminOnly: 1\n")
    return machine


@pytest.fixture
def m5(root: Path, tmp_path: Path) -> Machine:
    return Machine(root, tmp_path, "setup-m5.sh", "Darwin arm64")


def test_a_gb10_is_set_up_and_set_up_again(gb10: Machine) -> None:
    code, said, calls = gb10.run()
    assert (code, "restart the machine" in said, "\ndone: open it" in said) == (0, True, True), said
    assert "useradd --create-home --shell /bin/bash --user-group actions" in calls
    assert "update-initramfs -u" in calls
    files = gb10.files()
    unit, counters = "etc/systemd/system/actions-runner.service", "etc/modprobe.d/upstream-patch-counters.conf"
    assert files.keys() == OURS | {unit, counters, "proc/driver/nvidia/params"}
    assert files[counters] == "options nvidia NVreg_RestrictProfilingToAdminUsers=0\n"
    assert "ExecStart=/usr/local/lib/actions-runner/once.sh\n" in files[unit]
    assert "ReadWritePaths=/home/actions/job\n" in files[unit]
    assert (gb10.root / "home/actions/job").stat().st_mode & 0o777 == 0o700
    (gb10.folder / "user").write_text("0")
    (gb10.root / "proc/driver/nvidia/params").write_text("RmProfilingAdminOnly: 0\n")
    code, said, calls = gb10.run()
    assert (code, "warning" in said) == (0, False), said
    assert [call for call in calls if call.startswith(("useradd", "update-initramfs"))] == []
    assert {name: text for name, text in gb10.files().items() if not name.startswith("proc")} == {
        name: text for name, text in files.items() if not name.startswith("proc")
    }


def test_a_set_up_that_was_cut_off_goes_on(gb10: Machine) -> None:
    """The counters' file is there, but its initramfs was not made."""
    update = gb10.folder / "tools/update-initramfs"
    update.write_text("#!/bin/sh\nexit 1\n")
    assert gb10.run()[0] == 1
    update.write_text(f"#!/bin/bash\n{NOTES}\n")
    code, _, calls = gb10.run()
    assert (code, "update-initramfs -u" in calls) == (0, True)


def test_an_m5_is_set_up_and_set_up_again(m5: Machine) -> None:
    loaded = m5.folder / "tools/launchctl"
    loaded.write_text(f'#!/bin/bash\n{NOTES}\n[ "$1" != print ]\n')
    code, said, calls = m5.run()
    assert (code, "\ndone: open it" in said) == (0, True), said
    plist = "Library/LaunchDaemons/actions-runner.plist"
    files = m5.files()
    assert files.keys() == OURS | {plist, "var/log/actions-runner.log"}
    assert "<string>/Users/actions/job</string>" in files[plist]
    assert "<string>/usr/local/lib/actions-runner/once.sh</string>" in files[plist]
    assert [call.split()[1] for call in calls if call.startswith("launchctl")] == ["bootout", "print", "bootstrap"]
    (m5.folder / "user").write_text("0")
    code, _, calls = m5.run()  # not loaded yet, as after a bootstrap that failed
    assert [call.split()[1] for call in calls if call.startswith("launchctl")] == ["print", "bootstrap"]
    loaded.write_text(f"#!/bin/bash\n{NOTES}\n")
    code, _, calls = m5.run()
    assert (code, [call.split()[1] for call in calls if call.startswith("launchctl")]) == (0, ["print"])
    assert m5.files() == files


@pytest.mark.parametrize("version", ["26.1", "15.7.2", "26"])
def test_an_m5_of_an_older_system_is_not_set_up(m5: Machine, version: str) -> None:
    (m5.folder / "version").write_text(version)
    code, said, calls = m5.run()
    assert (code, f"macOS {version}" in said, calls, m5.files()) == (1, True, [], {})


@pytest.mark.parametrize("name", ["gb10", "m5"])
def test_another_archive_or_machine_is_refused(name: str, request: pytest.FixtureRequest) -> None:
    machine: Machine = request.getfixturevalue(name)
    assert machine.run("0" * 64)[0] == 1
    assert not (machine.root / "usr/local/lib/actions-runner/runner.tar.gz").exists()
    (machine.folder / "uname").write_text("Linux x86_64")
    code, said, calls = machine.run()
    assert (code, "this is Linux x86_64" in said, calls) == (1, True, [])
