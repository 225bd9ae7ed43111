"""Each job's commands, from its workflow's file, run here as far as this machine goes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.machines import LEGS
from ci.pack import sha256
from ci.result import FILE, RecordLine
from tests.workflows import samples
from tests.workflows.local_runner import JobResult, LocalRun, checkout, git


@pytest.fixture(scope="module")
def tree(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(root, tmp_path_factory.mktemp("jobs"))


def start(
    tree: Path,
    text: str,
    event: str,
    ref: str = "refs/heads/main",
    variables: Mapping[str, str] | None = None,
    inputs: Mapping[str, str] | None = None,
) -> LocalRun:
    head = git(tree, "rev-parse", "HEAD")
    github = {"event_name": event, "ref": ref, "sha": head, "run_id": "7", "actor": "someone", "token": ""}
    return LocalRun(tree, text, github, variables or {}, inputs or {}).run()


def results(run: LocalRun) -> dict[str, set[str]]:
    return {name: {each.result for each in jobs} for name, jobs in run.jobs.items()}


def test_every_hosted_job_names_a_session_of_the_noxfile(tree: Path, texts: dict[str, str]) -> None:
    run = start(tree, texts["ci.yml"], "pull_request", "refs/pull/1/merge")
    assert results(run) == {"plan": {"success"}, "hosted": {"success"}, "passed": {"success"}}, run.jobs
    assert run.calls == [f"-s {session}" for leg in LEGS["ci"] for session in leg.sessions]


@pytest.mark.parametrize(
    ("file", "event", "calls"),
    [
        ("drafts.yml", "push", ["-s records", "-s draft"]),
        ("drift.yml", "schedule", ["-s drift -- --mlx out/mlx"]),
    ],
)
def test_a_workflow_of_one_job(tree: Path, texts: dict[str, str], file: str, event: str, calls: list[str]) -> None:
    run = start(tree, texts[file], event)
    assert {result for each in results(run).values() for result in each} == {"success"}, run.jobs
    assert run.calls == calls
    if file == "drafts.yml":
        assert list((run.artifacts / "drafts").rglob("*.md"))


def with_one_leg(text: str) -> str:
    """The plan's matrix, but for one entry."""
    matrix = "fromJSON(needs.plan.outputs.matrix)"
    assert matrix in text
    return text.replace(matrix, """fromJSON('{"include":[{"session":"lint","minutes":9,"job_minutes":29}]}')""")


def test_the_nightly_simulator_takes_the_full_cross(tree: Path, texts: dict[str, str]) -> None:
    run = start(tree, with_one_leg(texts["nightly.yml"]), "schedule")
    assert results(run) == {"plan": {"success"}, "hosted": {"success"}, "simulator": {"success"}}, run.jobs
    assert run.calls == ["-s lint", "-s simulate -- --full"]


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('nox -s "$SESSION"', 'nox -s "$SESION"'),
        ("matrix.session }}", "matrix.sesion }}"),
        ("ci plan ci", "ci plan cl"),
        ("ci passed", "ci past"),
    ],
)
def test_a_typing_mistake_in_a_step_is_seen(tree: Path, texts: dict[str, str], was: str, becomes: str) -> None:
    text = with_one_leg(texts["ci.yml"])
    assert was in text
    assert set.union(*results(start(tree, text, "push")).values()) == {"success"}
    assert "failure" in set.union(*results(start(tree, text.replace(was, becomes), "push")).values())


def test_without_a_registered_machine_no_device_job_starts(tree: Path, texts: dict[str, str]) -> None:
    run = start(tree, texts["device.yml"], "schedule")
    skipped = {"skipped"}
    expected = {"gate": {"success"}, "gb10": skipped, "m5": skipped, "collect": skipped, "propose": skipped}
    assert results(run) == expected
    assert "is not registered (variable DEVICES)" in run.pages()


def test_a_pull_request_never_passes_the_gate(tree: Path, texts: dict[str, str]) -> None:
    run = start(tree, texts["device.yml"], "pull_request", "refs/pull/1/merge", variables={"DEVICES": "gb10 m5"})
    assert results(run)["gate"] == {"failure"}
    assert set.union(*(found for name, found in results(run).items() if name != "gate")) == {"skipped"}


def test_a_machine_that_is_none_measures_nothing_and_says_so(tree: Path, texts: dict[str, str]) -> None:
    """All of device.yml, here: no GB10, so its health check stops it, and the collector has no record to attest."""
    run = start(
        tree, texts["device.yml"], "workflow_dispatch", variables={"DEVICES": "gb10"}, inputs={"machine": "gb10"}
    )
    assert results(run) == {
        "gate": {"success"},
        "gb10": {"failure"},
        "m5": {"skipped"},
        "collect": {"success"},
        "propose": {"skipped"},
    }, run.jobs
    assert run.calls == []
    page = run.pages()
    assert "**Not fit to measure**: GPU" in page
    assert "the machine was not fit to measure; nothing was measured" in page
    assert "Records that verify: 0." in page
    assert sorted(path.name for path in (run.artifacts / "device-gb10").rglob("*") if path.is_file()) == ["device.json"]


def test_what_a_device_measured_is_verified_attested_and_pushed(
    root: Path, tmp_path: Path, texts: dict[str, str]
) -> None:
    """The jobs after a device's, with the record of an H200 in place of a GB10's, which nobody has made."""
    tree = checkout(root, tmp_path)
    machines = tree / "ci/machines.py"
    machines.write_text(machines.read_text().replace('"gb10", "NVIDIA GB10"', '"h200", "NVIDIA H200"'))
    record, *others = sorted((tree / "evidence/records/h200").glob("*.json"), key=lambda path: path.stat().st_size)
    for other in others:  # so that little is verified
        other.unlink()
        shutil.rmtree(tree / "evidence/raw" / other.stem, ignore_errors=True)
    path = record.relative_to(tree).as_posix()
    measured = json.loads(record.read_text())["versions"]["commit"]
    sent = tmp_path / "tree.artifacts/device-h200"
    files = [record, *(tree / "evidence/raw" / record.stem).glob("*")]
    lines = []
    for file in files:
        name = file.relative_to(tree)
        (sent / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(file, sent / name)
        lines.append(RecordLine(path=name.as_posix(), sha256=sha256(sent / name)))
    git(
        tree,
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "commit",
        "--quiet",
        "--all",
        "--message=without it",
    )
    run = samples.GOOD.model_copy(update={"machine": "h200", "commit": measured, "files": tuple(lines)})
    (sent / FILE).write_text(run.model_dump_json())
    github = {"event_name": "push", "ref": "refs/heads/main", "run_id": "7", "run_attempt": "2", "token": ""}
    done = {
        "gate": JobResult(outputs={"any": "true", "commit": measured}),
        "gb10": JobResult(),
        "m5": JobResult("skipped"),
    }
    after = LocalRun(tree, texts["device.yml"], github, done=done)
    jobs = after.run().jobs
    assert [jobs[name][0].result for name in ("collect", "propose")] == ["success", "success"], jobs
    assert "Records that verify: 1." in after.pages()
    assert "files are on `evidence/run-7-2`: a maintainer opens the pull request." in after.pages()
    pushed = git(tmp_path / "origin.git", "log", "-1", "--format=%an", "--name-only", "evidence/run-7-2").split()
    assert pushed[0] == "github-actions[bot]"
    assert path in pushed
