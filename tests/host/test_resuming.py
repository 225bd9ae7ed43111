"""A benchmark that is killed, stopped or out of disk keeps its complete rows, and the next run goes on from there."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.host import measured
from tests.host.measured import KERNEL, KINDS, MACHINE, UNITS
from upstream_patch.errors import UserError
from upstream_patch.measure import bench
from upstream_patch.measure.checked import WrongResult
from upstream_patch.records import journal
from upstream_patch.records.journal import FOLDER, Journal
from upstream_patch.records.schema import BenchBody
from upstream_patch.records.store import load_all, verify

DRIVER = Path(__file__).with_name("killed.py")
IDS = [f"64x64.b4.g64.bf16.M{m}" for m in range(1, 11)]


class Place:
    """Evidence and the folder of unfinished runs, and what was said."""

    def __init__(self, folder: Path, kind: str = "bench") -> None:
        self.kind, self.evidence, self.out = kind, folder / "evidence", folder / "out" / FOLDER
        self.said: list[str] = []

    def run(self, fresh: bool = False, **changes: Any) -> tuple[Path, str]:
        measurement = measured.measurement(self.kind, self.evidence, self.said.append, **changes)
        done = measurement.run(self.out, fresh=fresh)
        return done.path, done.detail

    def bodies(self) -> list[BenchBody]:
        assert verify(self.evidence) == []
        bodies = [loaded.record.body for loaded in load_all(self.evidence)]
        return [body for body in bodies if isinstance(body, BenchBody)]

    def rows(self) -> list[list[str]]:
        return sorted([row.fact_stem for row in body.rows] for body in self.bodies())

    @property
    def journal(self) -> Path:
        return self.out / "bench.tiny.jsonl"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    monkeypatch.setattr(measured, "ROW_S", 0.0)
    measured.simulate(monkeypatch)
    return Place(tmp_path)


def stops_at(m: int, stop: Callable[[], None]) -> Callable[..., Any]:
    def row(at: Any, spec: Any, *more: Any, **named: Any) -> Any:
        if spec.problem.m == m:
            stop()
        return measured.row(at, spec, *more, **named)

    return row


def ctrl_c() -> None:
    raise KeyboardInterrupt


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def crash() -> None:
    raise RuntimeError("the driver is gone")


def test_kill_9_at_random_points_loses_nothing_and_leaves_nothing_by_halves(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(DRIVER), str(tmp_path), "7"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    for run in (*found["measures"], *found["writers"]):
        assert (run["wrong"], run["left"]) == ([], []), run
    assert [run["kind"] for run in found["measures"]] == list(KINDS)
    for run in found["measures"]:
        assert run["units"] == sorted(UNITS[run["kind"]]), "each unit once, over all records"
        assert any(0 < known < len(IDS) for known in run["growth"])
    assert sum(run["kills"] for run in found["measures"]) + len(found["writers"]) >= 20


@pytest.mark.parametrize(("stop", "words"), [(ctrl_c, "stopped by Ctrl-C"), (sigterm, "stopped by SIGTERM")])
def test_a_stopped_run_keeps_its_rows_and_the_next_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, stop: Callable[[], None], words: str
) -> None:
    monkeypatch.setattr(bench, "_row", stops_at(4, stop))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        place.run()
    assert signal.getsignal(signal.SIGTERM) is before
    (body,) = place.bodies()
    assert [row.fact_stem for row in body.rows] == IDS[:3]
    assert [note for note in body.notes if note.startswith("not run")] == [f"not run, {words}: {id}" for id in IDS[3:]]
    assert place.said[-1].startswith(f"not run, {words}: 7 rows; 3 rows are in ")
    monkeypatch.setattr(bench, "_row", measured.row)
    path, detail = place.run()
    assert detail == "7 rows"
    assert place.rows() == sorted([IDS[:3], IDS[3:]])
    assert place.said[-1].startswith("going on: 3 of 10 rows are in simulated-")
    assert path.is_file() and not place.journal.exists()
    assert place.run()[1] == "10 rows"  # nothing is left to go on with


def test_ctrl_c_before_the_first_row_leaves_no_record(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_row", stops_at(1, ctrl_c))
    with pytest.raises(KeyboardInterrupt):
        place.run()
    assert place.bodies() == []
    monkeypatch.setattr(bench, "_row", measured.row)
    assert place.run()[1] == "10 rows"


def test_a_crash_is_gone_on_with_as_a_record_of_its_own(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_row", stops_at(6, crash))
    with pytest.raises(RuntimeError, match="the driver is gone"):
        place.run(versions={"commit": "a"})
    assert place.bodies() == []
    monkeypatch.setattr(bench, "_row", measured.row)
    monkeypatch.setattr(bench, "launch_floor", lambda *_: [2.0])
    place.run()
    first, second = sorted(place.bodies(), key=lambda body: len(body.rows), reverse=True)
    assert [len(first.rows), len(second.rows)] == [5, 5]
    floors = {body.launch_floor_us[0]: [row.fact_stem for row in body.rows] for body in (first, second)}
    assert floors == {1.0: IDS[:5], 2.0: IDS[5:]}, "each run has its own probe and floor"
    killed = next(body for body in (first, second) if body.launch_floor_us == [1.0])
    assert "the run was killed after 5 rows: clocks and throttling after it were not captured" in killed.notes
    assert [note for note in killed.notes if note.startswith("not run, killed")] == [
        f"not run, killed: {id}" for id in IDS[5:]
    ]
    assert killed.graph_limits is not None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"versions": {"commit": "b"}}, "versions.commit"),
        ({"kernel": {"hash": "cd" * 32}}, "kernel.hash"),
        ({"machine": {"cpu": "another"}}, "machine.cpu"),
    ],
)
def test_rows_of_another_state_are_not_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], named: str
) -> None:
    monkeypatch.setattr(bench, "_row", stops_at(6, crash))
    with pytest.raises(RuntimeError):
        place.run()
    monkeypatch.setattr(bench, "_row", measured.row)
    given: dict[str, Any] = {
        name: value if name == "versions" else {"kernel": KERNEL, "machine": MACHINE}[name].model_copy(update=value)
        for name, value in changes.items()
    }
    assert place.run(**given)[1] == "10 rows"
    assert place.rows() == sorted([IDS[:5], IDS])  # what the first one measured is still true of what it measured
    assert place.said[-1] == f"all rows are measured again: another {named} than in the run that did not end"


def test_a_killed_run_keeps_the_variables_that_it_ran_with(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_row", stops_at(6, crash))
    monkeypatch.setenv("MLX_OF_THIS_TEST", "killed")
    with pytest.raises(RuntimeError):
        place.run()
    monkeypatch.setattr(bench, "_row", measured.row)
    monkeypatch.setenv("MLX_OF_THIS_TEST", "next")
    assert place.run()[1] == "10 rows"
    assert place.said[-1].startswith("all rows are measured again: another environment.MLX_OF_THIS_TEST than ")
    records = [loaded.record for loaded in load_all(place.evidence)]
    ran = {len(measured.units(one.body)): (one.environment or {})["MLX_OF_THIS_TEST"] for one in records}
    assert ran == {5: "killed", 10: "next"}


def test_fresh_measures_every_row(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_row", stops_at(6, crash))
    with pytest.raises(RuntimeError):
        place.run()
    monkeypatch.setattr(bench, "_row", measured.row)
    assert place.run(fresh=True)[1] == "10 rows"


def test_a_kill_after_the_record_was_stored_repeats_no_row(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "end", lambda self: ctrl_c())
    with pytest.raises(KeyboardInterrupt):
        place.run()
    monkeypatch.undo()
    path, detail = place.run()
    assert detail == "all 10 rows were measured already"
    assert path == place.evidence / "records" / "simulated" / path.name and path.is_file()
    assert place.rows() == [IDS]
    assert not place.journal.exists()


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_what_was_complete(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the rows cannot be written down, then not even the record; when there is room again, nothing is lost."""
    synced = os.fsync
    monkeypatch.setattr(bench, "_row", stops_at(4, lambda: monkeypatch.setattr(os, "fsync", full)))
    with monkeypatch.context() as patch:
        patch.setattr("upstream_patch.records.placing.write_text", full)
        with pytest.raises(UserError, match=r"No space left on device; 3 rows are kept in .*bench\.tiny\.jsonl"):
            place.run()
    assert place.bodies() == []
    monkeypatch.setattr(bench, "_row", measured.row)
    monkeypatch.setattr(os, "fsync", synced)
    place.run()
    assert sorted(len(rows) for rows in place.rows()) == [3, 7]
    assert sorted(one for rows in place.rows() for one in rows) == sorted(IDS)


def test_a_full_disk_that_still_takes_the_record_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_row", stops_at(4, lambda: monkeypatch.setattr(Journal, "_append", refuse)))

    def refuse(*_: Any) -> None:
        raise journal.CannotKeep("the journal cannot be written: No space left on device")

    with pytest.raises(UserError, match="not run, the journal cannot be written: No space left on device: 6 rows; 4"):
        place.run()
    assert place.rows() == [IDS[:4]]


def test_a_line_that_was_cut_off_counts_for_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_row", stops_at(6, crash))
    with pytest.raises(RuntimeError):
        place.run()
    data = place.journal.read_bytes()
    place.journal.write_bytes(data[:-40])
    monkeypatch.setattr(bench, "_row", measured.row)
    place.run()
    assert sorted(len(rows) for rows in place.rows()) == [4, 6]
    for damaged in (
        data.replace(b'"unit"', b'"unix"'),
        data.replace(b'"kind": "bench"', b'"kind": "ncu"'),
        b"\n",
        b"{}\n",
    ):
        place.journal.write_bytes(damaged)
        with pytest.raises(UserError, match=r"bench\.tiny\.jsonl is damaged .*: move it away, and run again"):
            place.run()


def test_a_wrong_result_leaves_no_rows_to_go_on_with(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> None:
        raise WrongResult("wrong")

    monkeypatch.setattr(bench, "_row", stops_at(6, wrong))
    with pytest.raises(WrongResult):
        place.run()
    assert not place.journal.exists()


def test_two_benchmarks_do_not_share_a_folder(place: Place) -> None:
    with journal.opened(place.out, "tiny"), pytest.raises(UserError, match="another measurement is running"):
        place.run()
