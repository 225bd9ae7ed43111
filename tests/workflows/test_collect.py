"""From a device's checkout to a branch with its records: packed, verified, placed, pushed; and what is refused."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from ci import branches, collect, git, pack
from ci.result import FILE
from tests.workflows.local_runner import git as run_git
from upstream_patch import contribution
from upstream_patch.errors import UserError

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.fixture
def clone(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with an empty evidence, and an origin; the tests work in it."""
    tree = tmp_path / "tree"
    (tree / "evidence/records").mkdir(parents=True)
    (tree / "evidence/README.md").write_text("kept\n")
    (tree / ".gitignore").write_text("out/\n")
    run_git(tree, "init", "--quiet", "--initial-branch=main")
    run_git(tree, "add", "--all")
    run_git(tree, *IDENTITY, "commit", "--quiet", "--message=first")
    run_git(tree, "clone", "--quiet", "--bare", ".", str(tmp_path / "origin.git"))
    run_git(tree, "remote", "add", "origin", str(tmp_path / "origin.git"))
    monkeypatch.chdir(tree)
    return tree


def bring(root: Path, clone: Path) -> Path:
    """Add a whole record of another machine to the checkout, as a suite does; the record."""
    record = min((root / "evidence/records/h200").glob("*correctness*.json"), key=lambda path: path.stat().st_size)
    target = clone / "evidence/records/h200" / record.name
    target.parent.mkdir(parents=True)
    shutil.copyfile(record, target)
    raw = root / "evidence/raw" / record.stem
    if raw.is_dir():
        shutil.copytree(raw, clone / "evidence/raw" / record.stem)
    return target


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an H200's records are there to try with: no GB10 and no M5 has made one."""
    from ci.machines import DEVICES, Device

    monkeypatch.setitem(DEVICES, "h200", Device("h200", "NVIDIA H200", ("self-hosted",), "contribution", 10))


def sent(clone: Path) -> tuple[Path, str]:
    """The artifacts of one device, and the commit that it measured; the checkout is without what it made."""
    (record,) = (clone / "evidence/records/h200").iterdir()
    measured = json.loads(record.read_text())["versions"]["commit"]

    def at_that_commit(*arguments: str) -> str:
        return measured if arguments[0] == "rev-parse" else git.git(*arguments)

    pack.pack("h200", "success", clone, clone / "out/device", at_that_commit)
    shutil.copytree(clone / "out/device", clone / "out/artifacts/device-h200")
    run_git(clone, "clean", "-fdq", "evidence")
    return clone / "out/artifacts", measured


RUN = {"GITHUB_RUN_ID": "77", "GITHUB_RUN_ATTEMPT": "2"}


@pytest.mark.usefixtures("h200")
def test_a_record_goes_from_the_device_to_a_branch(root: Path, clone: Path, tmp_path: Path) -> None:
    record = bring(root, clone)
    artifacts, measured = sent(clone)
    runs, records = collect.collect(artifacts, measured, Path("evidence"), Path("out/evidence"))
    assert (len(runs), records) == (1, 1)
    run_git(clone, "clean", "-fdq", "evidence")  # the next job has a checkout of its own
    branch, paths = branches.propose(Path("out/evidence"), RUN | {"GITHUB_ACTOR": "someone"})
    assert branch == "evidence/run-77-2"
    assert run_git(clone, "log", "-1", "--format=%an %cn") == "github-actions[bot] github-actions[bot]"
    assert record.relative_to(clone).as_posix() in paths
    pushed = run_git(tmp_path / "origin.git", "diff", "--name-only", "main", branch).splitlines()
    assert sorted(pushed) == sorted(paths)
    assert run_git(tmp_path / "origin.git", "rev-parse", "main") == run_git(clone, "rev-parse", f"{branch}~")


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("edit", "is not the file that was listed"),
        ("extra", "is not both listed and there"),
        ("gone", "is not both listed and there"),
        ("elsewhere", "is no device run"),
        ("climb", "is no device run"),
        ("newline", "is no device run"),
        ("link", "is a link"),
        ("large", "is larger than 50000000 bytes"),
        ("large form", "is larger than 50000000 bytes"),
        ("host", "says that it is of gb10"),
        ("host and name", "is no record of gb10"),
        ("commit", "not of a device at"),
        ("other code", "was measured on commit"),
        ("damage", "faults in what the devices sent"),
        ("form", "is no device run"),
    ],
)
def test_what_is_not_as_it_was_listed_is_refused(root: Path, clone: Path, harm: str, said: str) -> None:
    name = bring(root, clone).relative_to(clone).as_posix()
    artifacts, measured = sent(clone)
    folder = artifacts / "device-h200"
    run = json.loads((folder / FILE).read_text())
    if harm == "edit":
        (folder / name).write_text("{}")
    elif harm == "extra":
        (folder / "evidence/x").write_text("x")
    elif harm == "gone":
        (folder / name).unlink()
    elif harm in ("elsewhere", "climb", "newline"):
        forged = f"evidence/raw/x\n{'0' * 64}  ci/x.py"  # a line of its own in the manifest
        other = {"elsewhere": "ci/x.py", "climb": "evidence/records/../../x", "newline": forged}[harm]
        (folder / other).parent.mkdir(parents=True, exist_ok=True)
        (folder / other).write_text("x")
        run["files"].append({"path": other, "sha256": pack.sha256(folder / other)})
    elif harm == "link":
        (folder / name).unlink()
        (folder / name).symlink_to(clone / "evidence/README.md")
    elif harm == "large":
        with (folder / name).open("ab") as file:
            file.truncate(50_000_001)
    elif harm.startswith("host"):
        run["machine"] = "gb10"
    elif harm in ("commit", "other code"):
        run["commit"] = "f" * 40
        measured = measured if harm == "commit" else "f" * 40
    elif harm == "damage":
        (folder / name).write_text((folder / name).read_text().replace("H200", "H201"))
        run["files"] = [each | {"sha256": pack.sha256(folder / each["path"])} for each in run["files"]]
    elif harm == "form":
        run["more"] = 1
    (folder / FILE).write_text(json.dumps(run) + (" " * 50_000_000 if harm == "large form" else ""))
    if harm == "host and name":
        folder.rename(folder.with_name("device-gb10"))
    with pytest.raises(UserError, match=said):
        collect.collect(artifacts, measured, Path("evidence"), Path("out/evidence"))
    assert not Path("out/evidence").exists()


def test_no_artifact_is_no_success(clone: Path) -> None:
    with pytest.raises(UserError, match="no device sent an artifact"):
        collect.collect(Path("out/none"), "f" * 40, Path("evidence"), Path("out/evidence"))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("evidence/records/h200/x.json", "is not the file that was attested"),
        (".github/workflows/x.yml", "is not the collector's"),
        ("../x", "is not the collector's"),
        ("evidence/raw/x/../../../ci/x.py", "is not the collector's"),
        ("evidence/records/h200/old.json", "is committed already"),
    ],
)
def test_only_new_records_that_were_attested_are_committed(clone: Path, path: str, said: str) -> None:
    collected = Path("out/evidence")
    collected.mkdir(parents=True)
    (collected / path).parent.mkdir(parents=True, exist_ok=True)
    (collected / path).write_text("new")
    old = clone / "evidence/records/h200/old.json"
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_text("old")
    digest = "0" * 64 if "not the file" in said else pack.sha256(collected / path)
    (collected / collect.MANIFEST).write_text(f"{digest}  {path}\n")
    with pytest.raises(UserError, match=said):
        branches.propose(collected, RUN)
    assert run_git(clone, "branch", "--format=%(refname:short)") == "main"
    assert old.read_text() == "old"


def test_nobody_proposes_by_hand_or_nothing(clone: Path) -> None:
    with pytest.raises(UserError, match="nobody by hand"):
        branches.propose(clone, {})
    (clone / collect.MANIFEST).write_text("")
    with pytest.raises(UserError, match="has no record"):
        branches.propose(clone, RUN)


def test_a_link_does_not_leave_the_machine(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the owner")
    raw = clone / "evidence/raw/h200-x"
    raw.mkdir(parents=True)
    (raw / "samples.csv").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"samples\.csv is a link"):
        pack.pack("gb10", "success", clone, clone / "out/device")
    assert not (clone / "out/device").exists()


def test_the_stages_of_the_suite_are_those_that_leave(clone: Path) -> None:
    """As the chain itself writes them."""
    context = contribution.Context(out=clone / "out", console=Console(file=io.StringIO()), evidence=clone / "evidence")
    stage = contribution.Stage("build", lambda _: contribution.Result(contribution.Outcome.RAN, "2 kernels", "more"))
    contribution.contribution(context, [stage])
    assert [line.stage for line in pack.pack("gb10", "success", clone, clone / "out/device").stages] == ["build"]
    (clone / "out/stages.json").write_text('[{"stage": "x"}]')
    with pytest.raises(UserError, match=r"cannot be packed: .* 0.outcome: Field required"):
        pack.pack("gb10", "success", clone, clone / "out/device")


def test_a_device_only_adds(clone: Path, root: Path) -> None:
    record = bring(root, clone)
    run_git(clone, "add", "--all")
    run_git(clone, *IDENTITY, "commit", "--quiet", "--message=second")
    record.write_text("{}")
    with pytest.raises(UserError, match="records are only added"):
        pack.pack("gb10", "success", clone, clone / "out/device")
    with pytest.raises(UserError, match="no outcome"):
        pack.pack("gb10", "fine", clone, clone / "out/device")


def test_a_reviewed_pull_request_is_mirrored_and_nothing_else(clone: Path, tmp_path: Path) -> None:
    def propose(number: int, path: str) -> str:
        run_git(clone, "switch", "--quiet", "--detach", "main")
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        (clone / path).write_text("new\n")
        run_git(clone, "add", "--all")
        run_git(clone, *IDENTITY, "commit", "--quiet", f"--message={path}")
        run_git(clone, "push", "--quiet", "origin", f"HEAD:refs/pull/{number}/head")
        return run_git(clone, "rev-parse", "HEAD")

    kernel, workflow = propose(7, "upstream_patch/x.cuh"), propose(8, ".github/workflows/device.yml")
    quoted, other_case = propose(10, ".github/workflows/\u00e9.yml"), propose(11, "CI/health.py")
    assert branches.mirror(7, kernel) == "device/pr-7"
    assert run_git(tmp_path / "origin.git", "rev-parse", "device/pr-7") == kernel
    for number, asked, said in (
        (7, kernel[:12], "no full commit"),
        (7, workflow, "read what is new first"),
        (9, kernel, "remote ref"),
        (8, workflow, "decides on the devices"),
        (10, quoted, "decides on the devices"),  # git prints such a name in quotes
        (11, other_case, "decides on the devices"),  # on a Mac that is ci/health.py
    ):
        with pytest.raises(UserError, match=said):
            branches.mirror(number, asked)
    assert run_git(tmp_path / "origin.git", "for-each-ref", "--format=%(refname)", "refs/heads/device") == (
        "refs/heads/device/pr-7"
    )


def test_what_decides_is_not_moved_out_of_the_way(clone: Path) -> None:
    (clone / "ci").mkdir()
    (clone / "ci/gate.py").write_text("a decision\n" * 9)
    run_git(clone, "add", "--all")
    run_git(clone, *IDENTITY, "commit", "--quiet", "--message=second")
    run_git(clone, "push", "--quiet", "origin", "main")
    run_git(clone, "switch", "--quiet", "--detach", "main")
    run_git(clone, "mv", "ci/gate.py", "kept.py")
    run_git(clone, *IDENTITY, "commit", "--quiet", "--message=moved")
    run_git(clone, "push", "--quiet", "origin", "HEAD:refs/pull/12/head")
    with pytest.raises(UserError, match=r"it changes ci/gate\.py"):
        branches.mirror(12, run_git(clone, "rev-parse", "HEAD"))


def test_the_token_reaches_git_and_no_command_line() -> None:
    found = branches.credentials({"TOKEN": "secret", "GITHUB_SERVER_URL": "https://example.org"})
    assert found["GIT_CONFIG_KEY_0"] == "http.https://example.org/.extraheader"
    asked = subprocess.run(
        ["git", "config", "--get", found["GIT_CONFIG_KEY_0"]],
        env=found | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.startswith("AUTHORIZATION: basic ")
    assert branches.credentials({}) == {}
    with pytest.raises(git.GitError, match="git rev-parse"):
        git.git("rev-parse", "--verify", "--quiet", "no-such-thing")
