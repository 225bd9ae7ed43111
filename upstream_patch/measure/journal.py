"""Rows of a benchmark that is not finished, on disk as soon as each is measured, so that a kill costs one row.

One file a suite, ``<folder>/bench.<suite>.jsonl``: a line for the state that the run was in, one for what it measured
before the rows, then one a row. Each line is synced before the next row starts. A line that was cut off counts for
nothing. The rows are complete in themselves (checked and paired in their own run), so what is left of a killed run is a
record of that run, with its own probe; the next run measures the other rows, and stores a record of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.machine import Machine
from upstream_patch.measure.suites import Suite
from upstream_patch.records import canonical, dispatch_hash
from upstream_patch.records.schema import BenchBody, BenchRow, KernelIdentity

FOLDER = "unfinished"
"""In the folder of what a run writes beside the evidence."""


class CannotKeep(UserError):
    """A row cannot be written down, so measuring further ones would be in vain."""


class State(BaseModel):
    """What two runs must share for one to go on where the other stopped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    suite: str
    plan: str
    """Hash of the suite's rows and rounds."""
    kernel: KernelIdentity
    dispatch: str
    machine: Machine
    versions: dict[str, str]
    """With our commit."""
    environment: dict[str, str]
    """MLX's variables."""

    @classmethod
    def of(cls, suite: Suite, kernel: KernelIdentity, machine: Machine, versions: Mapping[str, str]) -> State:
        """That of this process."""
        plan = hashlib.sha256(repr((suite.rows, suite.rounds)).encode()).hexdigest()
        environment = {name: value for name, value in sorted(os.environ.items()) if name.startswith("MLX_")}
        return cls(
            suite=suite.name,
            plan=plan,
            kernel=kernel,
            dispatch=dispatch_hash.today(),
            machine=machine,
            versions=dict(versions),
            environment=environment,
        )

    def differences(self, other: State) -> list[str]:
        """The names of what is not the same, e.g. ``kernel`` or ``versions.commit``."""
        ours, theirs = self.model_dump(), other.model_dump()
        return sorted(_differences(ours, theirs))


@dataclass(frozen=True)
class Unfinished:
    """What a run left that did not end."""

    state: State
    command: str
    stored: Mapping[str, str]
    """Row -> the record that already holds it, of this run and those it went on from."""
    opening: BenchBody | None
    """All but the rows; None where the run did not come that far."""
    rows: Sequence[BenchRow]
    """Those that no record holds."""
    ended: datetime
    """When the last of them was measured."""


@dataclass
class Journal:
    """The file of one suite. Only the process that opened it writes it."""

    path: Path
    kept: int = 0
    """Rows that this process has written down."""
    _size: int = field(default=0, repr=False)

    def read(self) -> Unfinished | None:
        """What is there; None where there is nothing. Raises UserError when it cannot be made out."""
        if not self.path.is_file():
            return None
        *whole, _ = self.path.read_bytes().split(b"\n")  # what follows the last end of line was cut off
        try:
            head, *lines = [_line(line) for line in whole]
            state = State.model_validate(head["state"])
            command, stored, ended = str(head["command"]), dict(head["stored"]), head["at"]
            opening = BenchBody.model_validate(lines[0]["opening"]) if lines else None
            rows = [BenchRow.model_validate(line["row"]) for line in lines[1:]]
            ended = datetime.fromisoformat(lines[-1]["at"] if rows else ended)
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            first = str(error).partition("\n")[0]
            raise UserError(f"{self.path} is damaged ({first}): move it away, and run again") from None
        return Unfinished(state, command, stored, opening, rows, ended)

    def begin(self, state: State, command: str, stored: Mapping[str, str]) -> None:
        """Start anew: what was there must be in a record by now, or not be wanted."""
        head = {"state": state.model_dump(), "command": command, "stored": dict(stored)}
        text = _text(head)
        try:
            write_text(self.path, text)
        except OSError as error:
            raise CannotKeep(f"{self.path} cannot be written: {error.strerror or error}") from None
        self._size, self.kept = len(text.encode()), 0

    def opening(self, body: BenchBody) -> None:
        self._append({"opening": body.model_dump()})

    def row(self, row: BenchRow) -> None:
        """Raises CannotKeep where the disk is full; the rows before are still there."""
        self._append({"row": row.model_dump()})
        self.kept += 1

    def end(self) -> None:
        """Every row is in a record."""
        self.path.unlink(missing_ok=True)

    def _append(self, what: dict[str, Any]) -> None:
        data = _text(what).encode()
        try:
            with self.path.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, self._size)
            raise CannotKeep(f"{self.path} cannot be written: {error.strerror or error}") from None
        self._size += len(data)


@contextmanager
def opened(folder: Path, suite: str) -> Iterator[Journal]:
    """The journal of a suite. Raises UserError while another process measures with the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another benchmark is running and writes to {folder}: wait for it, or stop it") from None
        for partial in folder.glob(".bench.*"):  # of a writer that was killed
            partial.unlink()
        yield Journal(folder / f"bench.{suite}.jsonl")
    finally:
        os.close(handle)


def _text(what: dict[str, Any]) -> str:
    """One line; samples with the digits that a record keeps, so that a row is the same in both."""
    return json.dumps(canonical.tidy({**what, "at": datetime.now(UTC).isoformat()}), ensure_ascii=False) + "\n"


def _line(text: bytes) -> dict[str, Any]:
    found = canonical.loads(text.decode())
    if not isinstance(found, dict):
        raise ValueError("a line is not an object")
    return found


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str = "") -> Iterator[str]:
    for name in ours.keys() | theirs.keys():
        one, other = ours.get(name), theirs.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(one, other, f"{where}{name}.")
        elif one != other:
            yield f"{where}{name}"
