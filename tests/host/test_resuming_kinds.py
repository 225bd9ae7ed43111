"""Decode, profiles and peers stop, are out of disk and go on as a benchmark does (test_resuming)."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.host import measured
from tests.host.measured import HOOK, KERNEL, KINDS, MACHINE, UNITS, units
from upstream_patch.errors import UserError
from upstream_patch.measure import ncu
from upstream_patch.records.store import load_all, verify

every = pytest.mark.parametrize("kind", KINDS)
DONE = 3


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "ROW_S", 0.0)
    measured.simulate(monkeypatch)


@pytest.fixture
def run(tmp_path: Path, kind: str) -> Callable[..., list[str]]:
    """Runs the measurement; what it said."""

    def runs(**changes: Any) -> list[str]:
        said: list[str] = []
        try:
            measured.measurement(kind, tmp_path / "evidence", said.append, **changes).run(tmp_path / "out")
        except (KeyboardInterrupt, UserError) as error:
            said.append(str(error))
        return said

    return runs


@pytest.fixture
def records(tmp_path: Path) -> Callable[[], list[tuple[list[str], list[str]]]]:
    """(units, notes of what was not run) of every record, those with the most units last."""

    def found() -> list[tuple[list[str], list[str]]]:
        assert verify(tmp_path / "evidence") == []
        bodies: list[Any] = [loaded.record.body for loaded in load_all(tmp_path / "evidence")]
        return sorted(
            ((units(body), [note for note in body.notes if note.startswith("not run")]) for body in bodies),
            key=lambda each: len(each[0]),
        )

    return found


def stop_after(monkeypatch: pytest.MonkeyPatch, done: int, stop: Callable[[], Any]) -> None:
    monkeypatch.setattr(HOOK, "number", 0)
    monkeypatch.setattr(HOOK, "before", lambda number: stop() if number == done + 1 else None)


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@every
def test_sigterm_leaves_a_record_and_the_next_run_goes_on(
    kind: str,
    run: Callable[..., list[str]],
    records: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    stop_after(monkeypatch, DONE, sigterm)
    said = run()
    assert said[-1] == "stopped by SIGTERM"
    ((done, notes),) = records()
    missing = [name for name in UNITS[kind] if name not in done]
    assert len(done) == DONE
    assert sorted(notes) == sorted(f"not run, stopped by SIGTERM: {name}" for name in missing)
    rest = f"{10 - DONE} rows" + (", traces" if kind == "decode" else "")
    assert said[-2].startswith(f"not run, stopped by SIGTERM: {rest}; {DONE} rows are in ")
    (line,) = run()
    assert line.startswith(f"going on: {DONE} of 10 rows are in simulated-")
    assert [names for names, _ in records()] == [done, missing]
    assert list((tmp_path / "out").iterdir()) == []


@every
def test_a_full_disk_keeps_what_was_finished(
    kind: str, run: Callable[..., list[str]], records: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stop_after(monkeypatch, DONE, lambda: context.setattr(os, "fsync", full))
    with monkeypatch.context() as context:
        context.setattr("upstream_patch.records.placing.write_text", full)
        (line,) = run()
    assert f"No space left on device; {DONE} rows are kept in " in line
    assert "\n" not in line
    assert records() == []
    said = run()
    assert said[0].startswith(f"{DONE} rows of a run that was killed are in ")
    (few, killed), (rest, _) = records()
    assert (len(few), sorted(few + rest)) == (DONE, sorted(UNITS[kind]))
    assert sorted(killed) == sorted(f"not run, killed: {name}" for name in rest)


@every
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"asked": "other batches"}, "plan"),
        ({"kernel": KERNEL.model_copy(update={"hash": "cd" * 32})}, "kernel.hash"),
        ({"machine": MACHINE.model_copy(update={"cpu": "another"})}, "machine.cpu"),
        ({"versions": {"commit": "b"}}, "versions.commit"),
    ],
)
def test_units_of_another_state_are_not_mixed_in(
    kind: str,
    run: Callable[..., list[str]],
    records: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    named: str,
) -> None:
    stop_after(monkeypatch, DONE, sigterm)
    run()
    assert run(**changes) == [f"all rows are measured again: another {named} than in the run that did not end"]
    assert [len(names) for names, _ in records()] == [DONE, len(UNITS[kind])]


@pytest.mark.parametrize("kind", ["profile"])
def test_a_profiler_that_fails_midway_leaves_what_it_had(
    kind: str, run: Callable[..., list[str]], records: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise ncu.ProfilerFailed("ncu failed with exit code 9: another profiler is attached")

    stop_after(monkeypatch, 0, fails)
    assert run() == ["ncu failed with exit code 9: another profiler is attached"]
    assert records() == []
    stop_after(monkeypatch, DONE, fails)
    (line,) = run()
    assert line.startswith("not run, ncu failed with exit code 9: another profiler is attached: 7 rows; 3 rows are in ")
    run()
    assert sorted(name for names, _ in records() for name in names) == sorted(UNITS[kind])
