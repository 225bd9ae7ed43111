"""A measurement that survives what stops it: its units are kept as they come, and the next run goes on from there.

Where a part of the units is a record in itself, what is left of a run that was killed is a record of that run, with its
own conditions; the next run measures the other units, and stores a record of its own. Where only the whole is one (a
matrix of cases), the units wait in the journal for the run that has them all.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from upstream_patch.errors import UserError
from upstream_patch.machine import Machine
from upstream_patch.measure.checked import WrongResult
from upstream_patch.records import host_id, journal
from upstream_patch.records.journal import CannotKeep, Journal, State, Unfinished, Unit
from upstream_patch.records.keeping import Keeper, assembled, attachments, why
from upstream_patch.records.schema import Body, KernelIdentity
from upstream_patch.records.store import RecordError, Root, folder_of, readable, write

Say = Callable[[str], None]


class Finished(NamedTuple):
    path: Path
    detail: str
    """What this run added, in words."""
    body: Body | None
    """Of the record; None where nothing was left to measure."""


@dataclass(frozen=True)
class Measurement:
    """What is measured on this machine, and where its record goes."""

    name: str
    """Of its journal."""
    plan: Sequence[str]
    """Names of all units, in the order in which a record has them."""
    asked: object
    """What the units depend on, beside the state of the machine (``State.of``)."""
    measure: Callable[[Keeper], Body]
    """Measure what the keeper does not skip; the body has ``keeper.notes`` among its notes where it has any."""
    command: str
    machine: Machine
    versions: Mapping[str, str]
    kernel: KernelIdentity
    evidence: Root
    say: Say
    words: str = "rows"
    """What the units are."""
    beside: tuple[str, ...] = ()
    """Units that are named, not counted with the others."""
    parts: bool = True
    """A record may hold a part of the units."""

    @property
    def state(self) -> State:
        return State.of(self.name, self.asked, self.kernel, self.machine, self.versions)

    def run(self, folder: Path, *, fresh: bool = False) -> Finished:
        """Measure the units that no earlier run of the same state has, and store them.

        ``folder`` holds the units meanwhile. What a killed run left there becomes a record of that run first, or where
        a part is none, of this one. ``fresh``: measure every unit again all the same. Where Ctrl-C or SIGTERM stopped
        the run, KeyboardInterrupt is raised once its units are stored. Raises UserError when a unit or the record
        cannot be written; finished units wait in the folder for the next run.
        """
        with journal.opened(folder, self.name) as log, _sigterm():
            stored, taken = self._go_on(log, fresh)
            if stored and len(stored) == len(self.plan):
                log.end()
                return Finished(
                    self._path(list(stored.values())[-1]), f"all {self._count(stored)} were measured already", None
                )
            if not taken:
                log.begin(self.state, self.command, stored)
            units = {unit.name: unit for unit in taken}
            keeper = Keeper(self.plan, log, stored, units, self.parts)
            try:
                body = self.measure(keeper)
            except WrongResult:
                log.end()  # the units before it are of a kernel that is wrong
                raise
            except (KeyboardInterrupt, CannotKeep) as error:
                if not log.kept:
                    raise
                kept = f"{self._of(log.kept)} are kept in {log.path}"
                raise self._stop(error, f"{why(error)}: no record; {kept}; the same command goes on") from None
            if not keeper.units:
                raise UserError(f"nothing was measured: {'; '.join(keeper.notes)}")
            if taken:
                of = f"{self._of([unit.name for unit in taken])} are of an earlier run in this state that was stopped"
                body = body.model_copy(update={"notes": [*getattr(body, "notes", ()), of]})
            path = self._store(log, keeper, body)
            if keeper.waiting and self.parts:
                log.begin(self.state, self.command, stored | dict.fromkeys(keeper.units, path.stem))
            else:
                log.end()
        detail = self._count(keeper.units.keys() - set(self.beside))
        if keeper.stopped is not None:
            left = self._count(keeper.waiting)
            said = f"{why(keeper.stopped)}: {left}; {detail} are in {path}; the same command goes on"
            raise self._stop(keeper.stopped, said)
        missing = len(set(self.plan) - keeper.units.keys() - stored.keys() - set(self.beside))
        return Finished(path, detail + (f", {missing} left out (see its notes)" if missing else ""), body)

    def _stop(self, stopped: KeyboardInterrupt | UserError, said: str) -> KeyboardInterrupt | UserError:
        if isinstance(stopped, KeyboardInterrupt):
            self.say(said)
            return stopped
        return UserError(said)

    def _count(self, names: Collection[str]) -> str:
        beside = [name for name in self.beside if name in names]
        return ", ".join([f"{len(names) - len(beside)} {self.words}", *beside])

    def _path(self, record: str) -> Path:
        base = folder_of(self.evidence)
        return base / "records" / record.partition("-")[0] / f"{record}.json"

    def _store(self, log: Journal, keeper: Keeper, body: Body) -> Path:
        try:
            return write(
                body,
                host=host_id(self.machine),
                command=self.command,
                machine=self.machine,
                versions=self.versions,
                kernel=self.kernel,
                root=self.evidence,
                attachments=keeper.raw(),
            )
        except RecordError:
            log.end()  # it would be refused again
            raise
        except UserError as error:
            kept = f"{self._count(log.kept)} are kept in {log.path}"
            raise UserError(f"{error}; {kept}: put that right, and run the same command again") from error

    def _go_on(self, log: Journal, fresh: bool) -> tuple[dict[str, str], list[Unit]]:
        """Units that need not be measured again: those in records, with the record's id, and those for this run's."""
        earlier = log.read()
        if earlier is None:
            return {}, []
        known = self._known(earlier)
        if not self.parts and known.keys() != set(self.plan):
            return {}, [] if fresh or self._changed(earlier) else self._taken(log, earlier)
        stored = self._stored(earlier, known)
        if stored is None or fresh or self._changed(earlier):
            return {}, []
        present = {record.id for record in readable(self.evidence, host_id(self.machine))}
        held = {unit: record for unit, record in stored.items() if record in present}
        if held:
            where = ", ".join(sorted(set(held.values())))
            self.say(f"going on: {self._of(held)} are in {where}")
        return held, []

    def _of(self, names: Collection[str]) -> str:
        """3 of 10 rows."""
        counted, planned = ([name for name in those if name not in self.beside] for those in (names, self.plan))
        return f"{len(counted)} of {len(planned)} {self.words}"

    def _changed(self, earlier: Unfinished) -> bool:
        changed = earlier.state.differences(self.state)
        if changed:
            self.say(
                f"all {self.words} are measured again: another {', '.join(changed)} than in the run that did not end"
            )
        return bool(changed)

    def _taken(self, log: Journal, earlier: Unfinished) -> list[Unit]:
        taken = [unit for unit in earlier.units if unit.name in self.plan]
        if taken:
            self.say(f"going on: {self._of([unit.name for unit in taken])} are in {log.path}")
        return taken

    def _known(self, earlier: Unfinished) -> dict[str, str]:
        """The units of a run that was killed after its record was stored."""
        return {
            name: record.id
            for record in readable(self.evidence, host_id(earlier.state.machine))
            if _same_run(record.body, earlier)
            for name in _held(record.body, earlier.units)
        }

    def _stored(self, earlier: Unfinished, known: dict[str, str]) -> dict[str, str] | None:
        """Each unit that an earlier run finished, and the record that now holds it; None where that is refused."""
        stored = {**earlier.stored, **known}
        units = [unit for unit in earlier.units if unit.name not in known]
        if units and earlier.opening is not None:
            names = [unit.name for unit in units]
            try:
                path = self._store_killed(earlier, earlier.opening, units, stored)
            except RecordError as error:
                count = self._count(names)
                self.say(f"{count} of a run that was killed are no evidence, and are measured again: {error}")
                return None
            self.say(f"{self._count(names)} of a run that was killed are in {path}")
            stored |= dict.fromkeys(names, path.stem)
        return stored

    def _store_killed(
        self, earlier: Unfinished, opening: Body, units: Sequence[Unit], stored: Mapping[str, str]
    ) -> Path:
        names = [unit.name for unit in units]
        ordered = sorted(units, key=lambda unit: self.plan.index(unit.name) if unit.name in self.plan else 0)
        notes = [
            *getattr(opening, "notes", ()),
            f"the run was killed after {self._count(names)}: clocks and throttling after it were not captured",
            *(f"not run, killed: {name}" for name in self.plan if name not in stored and name not in names),
        ]
        return write(
            assembled(opening, ordered).model_copy(update={"notes": notes}),
            host=host_id(earlier.state.machine),
            command=earlier.command,
            machine=earlier.state.machine,
            versions=earlier.state.versions,
            kernel=earlier.state.kernel,
            root=self.evidence,
            attachments=attachments(units),
            created=earlier.ended,
            variables=earlier.state.environment,
        )


def _same_run(body: Body, earlier: Unfinished) -> bool:
    """Whether a record's body has what the run found before its units; notes are added to, units are its own."""
    opening = earlier.opening
    own = {"notes", *(name for unit in earlier.units for name in unit.items)}
    return type(body) is type(opening) and all(
        getattr(body, name) == getattr(opening, name) for name in type(body).model_fields if name not in own
    )


def _held(body: Body, units: Sequence[Unit]) -> list[str]:
    """The units that are in a body."""
    there = {
        name: {item.model_dump_json() for item in getattr(body, name)}
        for name in {name for unit in units for name, value in unit.items.items() if isinstance(value, list)}
    }

    def holds(name: str, value: Any) -> bool:
        if isinstance(value, list):
            return all(item.model_dump_json() in there[name] for item in value)
        return bool(getattr(body, name) == value)

    return [unit.name for unit in units if all(holds(*each) for each in unit.items.items())]


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
