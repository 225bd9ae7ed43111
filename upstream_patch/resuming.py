"""A benchmark that survives what stops it: its rows are kept as they come, and the next run goes on from there."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from upstream_patch.errors import UserError
from upstream_patch.machine import Machine
from upstream_patch.measure import journal
from upstream_patch.measure.bench import run_suite, why
from upstream_patch.measure.checked import WrongResult
from upstream_patch.measure.journal import Journal, State, Unfinished
from upstream_patch.measure.steps import Progress
from upstream_patch.measure.suites import Suite
from upstream_patch.records import host_id
from upstream_patch.records.schema import BenchBody, BenchRow, KernelIdentity
from upstream_patch.records.store import RecordError, Root, folder_of, readable, write

Say = Callable[[str], None]


@dataclass(frozen=True)
class Benchmark:
    """A suite on this machine, and where its record goes."""

    suite: Suite
    command: str
    machine: Machine
    versions: Mapping[str, str]
    kernel: KernelIdentity
    evidence: Root
    say: Say

    @property
    def state(self) -> State:
        return State.of(self.suite, self.kernel, self.machine, self.versions)

    def run(
        self, folder: Path, *, limit_s: float = math.inf, fresh: bool = False, progress: Progress | None = None
    ) -> tuple[Path, str]:
        """Measure the rows that no earlier run of the same state has, and store them: the record, and what is in it.

        ``folder`` holds the rows meanwhile. What a killed run left there becomes a record of that run first. ``fresh``:
        measure every row again all the same. Where Ctrl-C or SIGTERM stopped the run, KeyboardInterrupt is raised once
        its rows are stored. Raises UserError when a row or the record cannot be written; complete rows wait in the
        folder for the next run.
        """
        with journal.opened(folder, self.suite.name) as log, _sigterm():
            stored = {} if (earlier := self._take_up(log)) is None or fresh else self._held(*earlier)
            if len(stored) == len(self.suite.rows):
                log.end()
                return self._path(list(stored.values())[-1]), f"all {len(stored)} rows were measured already"
            log.begin(self.state, self.command, stored)
            try:
                run = run_suite(
                    self.suite.name,
                    progress=progress,
                    machine=self.machine,
                    limit_s=limit_s,
                    journal=log,
                    stored=stored,
                )
            except WrongResult:
                log.end()  # the rows before it are of a kernel that is wrong
                raise
            path = self._store(log, run.body)
            if run.waiting:
                log.begin(self.state, self.command, stored | {row.fact_stem: path.stem for row in run.body.rows})
            else:
                log.end()
        detail = f"{len(run.body.rows)} rows"
        if run.stopped is not None:
            said = f"{why(run.stopped)}: {len(run.waiting)} rows; {detail} are in {path}; the same command goes on"
            if isinstance(run.stopped, KeyboardInterrupt):
                self.say(said)
                raise run.stopped
            raise UserError(said)
        missing = len(self.suite.rows) - len(stored) - len(run.body.rows)
        return path, detail + (f", {missing} left out (see its notes)" if missing else "")

    def _path(self, record: str) -> Path:
        base = folder_of(self.evidence)
        return base / "records" / record.partition("-")[0] / f"{record}.json"

    def _store(self, log: Journal, body: BenchBody) -> Path:
        try:
            return write(
                body,
                host=host_id(self.machine),
                command=self.command,
                machine=self.machine,
                versions=self.versions,
                kernel=self.kernel,
                root=self.evidence,
            )
        except RecordError:
            log.end()  # it would be refused again
            raise
        except UserError as error:
            raise UserError(
                f"{error}; {log.kept} rows are kept in {log.path}: put that right, and run the same command again"
            ) from error

    def _take_up(self, log: Journal) -> tuple[Unfinished, dict[str, str]] | None:
        """What an earlier run left, and the record that now holds each row; None where it left nothing that counts."""
        earlier = log.read()
        if earlier is None:
            return None
        stored = dict(earlier.stored)
        known = {
            row.fact_stem: record.id
            for record in readable(self.evidence, host_id(earlier.state.machine))
            if isinstance(record.body, BenchBody)
            for row in record.body.rows
            if row in earlier.rows  # it was killed after its record was stored
        }
        stored |= known
        rows = [row for row in earlier.rows if row.fact_stem not in known]
        if rows and earlier.opening is not None:
            try:
                path = self._store_killed(earlier, earlier.opening, rows)
            except RecordError as error:
                self.say(f"{len(rows)} rows of a run that was killed are no evidence, and are measured again: {error}")
                return None
            self.say(f"{len(rows)} rows of a run that was killed are in {path}")
            stored |= {row.fact_stem: path.stem for row in rows}
        return earlier, stored

    def _store_killed(self, earlier: Unfinished, opening: BenchBody, rows: list[BenchRow]) -> Path:
        measured = {row.fact_stem for row in rows} | earlier.stored.keys()
        notes = [
            *opening.notes,
            f"the run was killed after {len(rows)} rows: clocks and throttling after it were not captured",
            *(f"not run, killed: {spec.id}" for spec in self.suite.rows if spec.id not in measured),
        ]
        return write(
            opening.model_copy(update={"rows": rows, "notes": notes}),
            host=host_id(earlier.state.machine),
            command=earlier.command,
            machine=earlier.state.machine,
            versions=earlier.state.versions,
            kernel=earlier.state.kernel,
            root=self.evidence,
            created=earlier.ended,
        )

    def _held(self, earlier: Unfinished, stored: dict[str, str]) -> dict[str, str]:
        """The rows that need not be measured again: none where anything has changed."""
        if changed := earlier.state.differences(self.state):
            self.say(f"all rows are measured again: another {', '.join(changed)} than in the run that did not end")
            return {}
        present = {record.id for record in readable(self.evidence, host_id(self.machine))}
        held = {row: record for row, record in stored.items() if record in present}
        if held:
            self.say(
                f"going on: {len(held)} of {len(self.suite.rows)} rows are in {', '.join(sorted(set(held.values())))}"
            )
        return held


@contextmanager
def _sigterm() -> Iterator[None]:
    """SIGTERM stops a run as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt("stopped by SIGTERM")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
