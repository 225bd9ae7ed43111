"""The sanitizer's driver with a fake program, and what a record of it must hold."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.correctness import exact, sanitize
from upstream_patch.correctness.paths import H200
from upstream_patch.correctness.sanitize import OPTIONS, SanitizerFailed
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import Gpu
from upstream_patch.records import facts, rules
from upstream_patch.records.keeping import Keeper
from upstream_patch.records.schema import SanitizerBody, Tool
from upstream_patch.records.store import RecordError

PLANNED = len(exact.launched(H200))
CLEAN = {tool: "========= ERROR SUMMARY: 0 errors" for tool in OPTIONS}
CLEAN["racecheck"] = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
FAULTY = {tool: "========= ERROR SUMMARY: 3 errors" for tool in OPTIONS}
FAULTY["racecheck"] = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"
COUNT = f"launches: {PLANNED}, wrong: 0"
HASHES = "".join(f"output {number}: {number:064x}\n" for number in range(PLANNED))


class Fake:
    """compute-sanitizer as it answers on a GPU: clean on the sound kernel, reporting what is planted."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, str]] = {}
        for tool in OPTIONS:
            self.answers[tool, ""] = 0, f"========= COMPUTE-SANITIZER\n{HASHES}{COUNT}\n{CLEAN[tool]}\n"
        for plant in exact.PLANTS:
            said = (
                f"========= COMPUTE-SANITIZER\n========= {plant.says} of size 2 bytes\nplanted {plant.name}: 1 launch"
            )
            self.answers[plant.tool, plant.name] = sanitize.ERROR_EXIT, f"{said}\n{FAULTY[plant.tool]}\n"
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        self.commands.append(list(command))
        if command[1] == "--version":
            return subprocess.CompletedProcess(command, 0, "NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1.0\n", "")
        at = command.index("upstream_patch.correctness.exact")
        code, said = self.answers[command[2], (*command[at + 2 :], "")[0]]
        return subprocess.CompletedProcess(command, code, said, "")


@pytest.fixture
def fake() -> Fake:
    return Fake()


def run(fake: Fake, keep: Path | None = None) -> tuple[SanitizerBody, dict[str, bytes]]:
    keeper = Keeper(list(sanitize.jobs()))
    body = sanitize.sanitize(device=H200, program="cs", runner=fake, build=lambda *_: None, keep=keep, keeper=keeper)
    return body, keeper.raw()


def test_every_tool_runs_and_must_find_its_plants(fake: Fake, tmp_path: Path) -> None:
    body, logs = run(fake, tmp_path)
    assert body.sanitizer_version == "2025.3.1.0"
    assert [(each.tool, each.launches, each.errors) for each in body.sound] == [(tool, PLANNED, 0) for tool in OPTIONS]
    assert {each.plant for each in body.runs} == {None, *(plant.name for plant in exact.PLANTS)}
    assert {each.log for each in body.runs} == set(logs) == {path.name for path in tmp_path.iterdir()}
    assert sanitize.faults(body) == []
    assert all("--error-exitcode" in command for command in fake.commands[1:])
    memcheck = next(command for command in fake.commands if "memcheck" in command)
    assert memcheck[memcheck.index("--leak-check") + 1] == "full"


def test_every_launch_has_the_hash_of_its_output_and_every_tool_the_same(fake: Fake) -> None:
    body, _ = run(fake)
    assert [each.output_sha256 for each in body.launched] == [f"{number:064x}" for number in range(PLANNED)]
    code, said = fake.answers["racecheck", ""]
    fake.answers["racecheck", ""] = code, said.replace(f"output 3: {3:064x}", f"output 3: {4:064x}")
    with pytest.raises(SanitizerFailed, match="launch 3 gave other bits"):
        run(fake)
    fake.answers["racecheck", ""] = code, said.replace(f"output 3: {3:064x}\n", "")
    with pytest.raises(SanitizerFailed, match=f"racecheck: {PLANNED - 1} hashes"):
        run(fake)


@pytest.mark.parametrize("tool", OPTIONS)
def test_a_fault_of_the_kernel_is_kept_and_said(fake: Fake, tool: Tool) -> None:
    fake.answers[tool, ""] = sanitize.ERROR_EXIT, f"{COUNT}\n{FAULTY[tool]}\n"
    body, _ = run(fake)
    (line,) = sanitize.faults(body)
    assert line.startswith(f"{tool}: {1 if tool == 'racecheck' else 3} errors")


@pytest.mark.parametrize("plant", exact.PLANTS, ids=lambda plant: plant.name)
@pytest.mark.parametrize("how", ["clean", "another fault", "exit code"])
def test_a_blind_tool_stops_the_run(fake: Fake, plant: exact.Plant, how: str) -> None:
    code, said = fake.answers[plant.tool, plant.name]
    fake.answers[plant.tool, plant.name] = {
        "clean": (0, f"planted {plant.name}: 1 launch\n{CLEAN[plant.tool]}\n"),
        "another fault": (code, said.replace(plant.says, "Leaked 12 bytes")),
        "exit code": (0, said),
    }[how]
    with pytest.raises(SanitizerFailed, match=f"blind: it did not report the planted fault {plant.name}"):
        run(fake)


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [
        (0, COUNT, "0 summaries"),
        (0, f"{COUNT}\n{CLEAN['memcheck']}\n{CLEAN['memcheck']}", "2 summaries"),
        (0, f"{COUNT}\nERROR SUMMARY: 0 errors", "0 summaries"),
        (1, f"Traceback\n{CLEAN['memcheck']}", "did not come to its end"),
        (0, f"launches: {PLANNED - 1}, wrong: 0\n{CLEAN['memcheck']}", "planned were"),
        (9, f"{COUNT}\n{CLEAN['memcheck']}", "exit code 9"),
        (0, f"{COUNT}\n{CLEAN['memcheck']}", "nothing of itself"),
        (0, f"========= COMPUTE-SANITIZER\n========= Internal error\n{COUNT}\n{CLEAN['memcheck']}", "Internal error"),
        (0, f"{COUNT}\n{FAULTY['memcheck']}", "exit code 0 and 3 errors"),
    ],
)
def test_a_run_that_is_no_whole_one_is_refused(fake: Fake, code: int, said: str, why: str) -> None:
    fake.answers["memcheck", ""] = code, said
    with pytest.raises(SanitizerFailed, match=why):
        run(fake)


def test_a_wrong_result_is_said(fake: Fake) -> None:
    said = f"wrong: case 7: off by one\nlaunches: {PLANNED}, wrong: 1\n{CLEAN['initcheck']}\n"
    fake.answers["initcheck", ""] = 1, said
    with pytest.raises(UserError, match=r"1 of .* wrong under initcheck: wrong: case 7: off by one"):
        run(fake)


def test_a_run_that_hangs_is_stopped(fake: Fake) -> None:
    def hang(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        if command[-1] == "lanes_outside_mask":
            raise subprocess.TimeoutExpired(command, timeout_s)
        return fake(command, timeout_s)

    with pytest.raises(SanitizerFailed, match=f"--tool synccheck took more than {sanitize.PLANT_TIMEOUT_S} s"):
        sanitize.sanitize(device=H200, program="cs", runner=hang, build=lambda *_: None)


def test_what_a_stopped_tool_started_ends_with_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # a child that holds the fifo open for writing, as the watched program holds the GPU
    with pytest.raises(subprocess.TimeoutExpired):
        sanitize._run(["sh", "-c", f"(exec 3<>{fifo}; sleep 60) & sleep 60"], 0.5)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    for _ in range(100):
        with suppress(BlockingIOError):  # somebody has it open for writing: a killed process takes a moment to end
            assert os.read(reader, 1) == b""
            break
        time.sleep(0.05)
    else:
        pytest.fail("what the tool started is still there")
    os.close(reader)


def test_a_run_that_fails_ends_the_others(tmp_path: Path) -> None:
    """As Ctrl-C does: what waits for a tool must not wait for its time limit."""
    tool = tmp_path / "cs"
    tool.write_text("#!/bin/sh\n[ $1 = --version ] && echo Version 1.0 && exit\n[ $2 = memcheck ] || exec sleep 60\n")
    tool.chmod(0o755)
    start = time.monotonic()
    with pytest.raises(SanitizerFailed, match="memcheck printed 0 summaries"):
        sanitize.sanitize(device=H200, program=str(tool), build=lambda *_: None, progress=_first_fails)
    assert time.monotonic() - start < 30


def _first_fails(done: int, total: int, name: str) -> None:
    raise SanitizerFailed(f"{name.removesuffix('.log')} printed 0 summaries")


def test_a_missing_program_has_a_way_out() -> None:
    def gone(_: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(MissingTool, match=sanitize.VARIABLE):
        sanitize.sanitize(device=H200, program="cs", runner=gone, build=lambda *_: None)


def test_a_record_gives_counts_as_facts(fake: Fake, synthetic: Any) -> None:
    body, logs = run(fake)
    synthetic.write(body, attachments=logs)
    found = {fact.id: fact.value for fact in facts.derive(synthetic.load())}
    for tool in OPTIONS:
        planted = sum(plant.tool == tool for plant in exact.PLANTS)
        counts = {"launches": PLANNED, "errors": 0, "warnings": 0, "plants_found": planted}
        assert {name: found[f"sanitizer.test.{tool}.{name}"] for name in counts} == counts
    assert found["sanitizer.test.formats"] == 21


def test_only_an_instance_that_no_tool_saw_makes_the_counts_stale(fake: Fake, synthetic: Any) -> None:
    """The launches go beyond what a problem's route chooses today, so that they hold every instance."""
    body, logs = run(fake)
    h200 = synthetic.machine.model_copy(
        update={"gpu": synthetic.machine.gpu.model_copy(update={"compute_capability": "9.0", "multiprocessors": 132})}
    )
    one = body.launched[0].kernel
    renamed = [
        launch.model_copy(update={"kernel": "an_older_instance"}) if launch.kernel == one else launch
        for launch in body.launched
    ]
    for hours, (launched, stale) in enumerate([(body.launched, False), (renamed, True)]):
        changed = body.model_copy(update={"launched": launched})
        synthetic.write(changed, age_hours=hours, attachments=logs, machine=h200)
        found = {fact.id: fact for fact in facts.derive(synthetic.load()[-1:], lambda _: synthetic.kernel.hash)}
        assert found["sanitizer.test.memcheck.launches"].stale is stale


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda runs: runs[1:], "memcheck did not run"),
        (lambda runs: [each for each in runs if each.plant is None or each.tool != "synccheck"], "for synccheck"),
        (lambda runs: [*runs[:-1], runs[-1].model_copy(update={"errors": 0})], "did not report the planted"),
        (lambda runs: [runs[0].model_copy(update={"launches": 7}), *runs[1:]], "saw 7 launches"),
        (lambda runs: [runs[0].model_copy(update={"log": "other.log"}), *runs[1:]], "not among the attachments"),
        (lambda runs: [*runs, runs[0]], "says again"),
        (lambda runs: [runs[0], runs[1].model_copy(update={"log": runs[0].log}), *runs[2:]], "has the log of"),
    ],
)
def test_a_record_of_a_part_is_refused(fake: Fake, synthetic: Any, change: Any, why: str) -> None:
    body, logs = run(fake)
    with pytest.raises(RecordError, match=why):
        synthetic.write(body.model_copy(update={"runs": change(body.runs)}), attachments=logs)


def _first(body: SanitizerBody, count: int, hashed: bool = True) -> SanitizerBody:
    """A record of so many launches, true to itself."""
    launched = [each if hashed else each.model_copy(update={"output_sha256": None}) for each in body.launched[:count]]
    runs = [each if each.plant else each.model_copy(update={"launches": count}) for each in body.runs]
    return body.model_copy(update={"launched": launched, "runs": runs})


def test_a_known_host_needs_the_matrix_of_its_time(fake: Fake, synthetic: Any, tmp_path: Path) -> None:
    body, logs = run(fake)
    machine = synthetic.machine.model_copy(update={"gpu": Gpu(name="NVIDIA H200", vendor="nvidia")})
    given = {"host": "h200", "machine": machine, "root": tmp_path / "real", "attachments": logs}
    least, older = rules.LEAST_LAUNCHES, rules.LEAST_LAUNCHES_WITHOUT_HASHES
    for count, hashed in ((least - 1, True), (older - 1, False)):
        with pytest.raises(RecordError, match=f"body.launched: {count} launches are a part of the matrix"):
            synthetic.write(_first(body, count, hashed), **given)
    synthetic.write(_first(body, older, hashed=False), **given)
    synthetic.write(body, 1, **given)


def test_fewer_launches_than_before_are_refused(fake: Fake, synthetic: Any) -> None:
    body, logs = run(fake)
    synthetic.write(body, attachments=logs)
    with pytest.raises(RecordError, match=rf"{PLANNED // 2} launches are a part of the matrix, .* has {PLANNED}"):
        synthetic.write(_first(body, PLANNED // 2), 1, attachments=logs)
