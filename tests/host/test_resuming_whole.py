"""What is a record only when it is whole: finished units wait for the run that has them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.host import test_sanitize as fakes
from tests.host.measured import KERNEL, MACHINE
from upstream_patch.correctness import exact, sanitize
from upstream_patch.correctness.paths import H200
from upstream_patch.errors import UserError
from upstream_patch.records.keeping import Keeper
from upstream_patch.records.schema import SanitizerBody
from upstream_patch.records.store import load_all, verify
from upstream_patch.resuming import Measurement

JOBS = list(sanitize.jobs())
DONE = 3
LAUNCHED = exact.launched(H200)[:2]


class Sanitizing:
    """Runs all jobs one after the other, with a stop before one of them; what was run, and what was said."""

    def __init__(self, folder: Path) -> None:
        self.evidence, self.out = folder / "evidence", folder / "out"
        self.ran: list[str] = []
        self.said: list[str] = []
        self.stop: BaseException | None = None

    def run(self, **changes: Any) -> None:
        fake, self.ran, self.said = fakes.Fake(), [], []

        def runner(command: Sequence[str], timeout_s: float) -> CompletedProcess[str]:
            if command[1] != "--version":
                if self.stop is not None and len(self.ran) == DONE:
                    raise self.stop
                self.ran.append(command[2])
            return fake(command, timeout_s)

        def measure(keeper: Keeper) -> SanitizerBody:
            return sanitize.sanitize(device=H200, program="cs", runner=runner, build=lambda *_: None, keeper=keeper)

        given: dict[str, Any] = {"kernel": KERNEL, "versions": {"commit": "a"}} | changes
        about: dict[str, Any] = {"command": "sanitize", "machine": MACHINE, "words": "runs", "parts": False}
        runs = Measurement(
            "sanitize", JOBS, JOBS, measure, evidence=self.evidence, say=self.said.append, **about, **given
        )
        try:
            runs.run(self.out)
        except (KeyboardInterrupt, UserError) as error:
            self.said.append(str(error))

    def bodies(self) -> list[SanitizerBody]:
        assert verify(self.evidence) == []
        bodies = [loaded.record.body for loaded in load_all(self.evidence)]
        return [body for body in bodies if isinstance(body, SanitizerBody)]


@pytest.fixture
def sanitizing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sanitizing:
    monkeypatch.setattr(sanitize, "AT_ONCE", 1)
    monkeypatch.setattr(exact, "launched", lambda _: LAUNCHED)
    hashes = "".join(f"output {number}: {number:064x}\n" for number in range(len(LAUNCHED)))
    monkeypatch.setattr(fakes, "HASHES", hashes)
    monkeypatch.setattr(fakes, "COUNT", f"launches: {len(LAUNCHED)}, wrong: 0")
    made = Sanitizing(tmp_path)
    made.stop = KeyboardInterrupt()
    made.run()
    made.stop = None
    return made


def test_what_was_stopped_is_no_record_and_is_gone_on_with(sanitizing: Sanitizing) -> None:
    (line, _) = sanitizing.said
    assert line.startswith(f"not run, stopped by Ctrl-C: no record; {DONE} of {len(JOBS)} runs are kept in ")
    assert sanitizing.bodies() == []
    sanitizing.run()
    assert len(sanitizing.ran) == len(JOBS) - DONE
    assert sanitizing.said[0].startswith(f"going on: {DONE} of {len(JOBS)} runs are in ")
    (body,) = sanitizing.bodies()
    assert [run.log for run in body.runs] == JOBS
    assert all(each.output_sha256 for each in body.launched), "from the logs of both runs"
    assert body.notes == [f"{DONE} of {len(JOBS)} runs are of an earlier run in this state that was stopped"]
    assert list(sanitizing.out.iterdir()) == []
    sanitizing.run()
    assert (len(sanitizing.ran), sanitizing.said) == (len(JOBS), [])


def test_another_kernel_starts_anew(sanitizing: Sanitizing) -> None:
    sanitizing.run(kernel=KERNEL.model_copy(update={"hash": "cd" * 32}))
    assert len(sanitizing.ran) == len(JOBS)
    assert sanitizing.said == ["all runs are measured again: another kernel.hash than in the run that did not end"]
    assert [body.notes for body in sanitizing.bodies()] == [[]]


def test_a_tool_that_fails_later_loses_no_finished_run(sanitizing: Sanitizing) -> None:
    (journal,) = sanitizing.out.iterdir()
    with journal.open("ab") as file:
        file.write(b'{"unit": "' + b"a line that was cut off" * 10_000)
    sanitizing.stop = sanitize.SanitizerFailed("the GPU is gone")
    sanitizing.run()
    assert sanitizing.said[-1] == "the GPU is gone"
    assert journal.read_bytes().endswith(b"}\n")
    sanitizing.stop = None
    sanitizing.run()
    assert sanitizing.said[0].startswith(f"going on: {2 * DONE} of {len(JOBS)} runs are in ")
    assert len(sanitizing.bodies()) == 1
