"""Finished units of a measurement that is not, on disk as soon as each ends, so that a kill costs one unit.

A unit is what can be measured by itself: a row of a benchmark, a case, one run under a profiler. One file a
measurement, ``<folder>/<name>.jsonl``: a line for the state that the run was in, one for what it found before the
units, then one a unit. Each line is synced before the next unit starts. A line that was cut off counts for nothing.
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

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.machine import Machine
from upstream_patch.records import canonical, dispatch_hash, provenance
from upstream_patch.records.schema import Body, KernelIdentity

FOLDER = "unfinished"
"""In the folder of what a run writes beside the evidence."""
_BODY: TypeAdapter[Body] = TypeAdapter(Body)


class CannotKeep(UserError):
    """A unit cannot be written down, so measuring further ones would be in vain."""


class State(BaseModel):
    """What two runs must share for one to go on where the other stopped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    plan: str
    """Hash of what was asked for."""
    kernel: KernelIdentity
    dispatch: str
    machine: Machine
    versions: dict[str, str]
    """With our commit."""
    environment: dict[str, str]
    """MLX's and CUDA's variables (``provenance.environment``)."""

    @classmethod
    def of(
        cls, name: str, asked: object, kernel: KernelIdentity, machine: Machine, versions: Mapping[str, str]
    ) -> State:
        """That of this process. ``asked``: everything that the units depend on, with a ``repr`` that tells it apart."""
        return cls(
            name=name,
            plan=hashlib.sha256(repr(asked).encode()).hexdigest(),
            kernel=kernel,
            dispatch=dispatch_hash.today(),
            machine=machine,
            versions=dict(versions),
            environment=provenance.environment(),
        )

    def differences(self, other: State) -> list[str]:
        """The names of what is not the same, e.g. ``kernel`` or ``versions.commit``."""
        ours, theirs = self.model_dump(), other.model_dump()
        return sorted(_differences(ours, theirs))


@dataclass(frozen=True)
class Unit:
    """A finished part of a body."""

    name: str
    items: Mapping[str, Any]
    """Field of the body -> a list of models, which adds to the field's list; or the field's value."""
    raw: Mapping[str, str] = field(default_factory=dict)
    """What is attached to the record for it."""


@dataclass(frozen=True)
class Unfinished:
    """What a run left that did not end."""

    state: State
    command: str
    stored: Mapping[str, str]
    """Unit -> the record that already holds it, of this run and those it went on from."""
    opening: Body | None
    """All but the units; None where the run did not come that far."""
    units: Sequence[Unit]
    """Those that no record holds."""
    ended: datetime
    """When the last of them was finished."""


@dataclass
class Journal:
    """The file of one measurement. Only the process that opened it writes it."""

    path: Path
    kept: list[str] = field(default_factory=list)
    """Units that are written down."""
    _size: int = field(default=0, repr=False)

    def read(self) -> Unfinished | None:
        """What is there; None where there is nothing. Raises UserError when it cannot be made out."""
        if not self.path.is_file():
            return None
        data = self.path.read_bytes()
        *whole, cut = data.split(b"\n")  # what follows the last end of line was cut off
        self._size = len(data) - len(cut)
        try:
            head, *lines = [_line(line) for line in whole]
            state = State.model_validate(head["state"])
            command, stored, ended = str(head["command"]), dict(head["stored"]), head["at"]
            opening = _BODY.validate_python(lines[0]["opening"]) if lines else None
            units = [_unit(line, opening) for line in lines[1:]] if opening is not None else []
            ended = datetime.fromisoformat(lines[-1]["at"] if units else ended)
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            first = str(error).partition("\n")[0]
            raise UserError(f"{self.path} is damaged ({first}): move it away, and run again") from None
        self.kept = [unit.name for unit in units]
        return Unfinished(state, command, stored, opening, units, ended)

    def begin(self, state: State, command: str, stored: Mapping[str, str]) -> None:
        """Start anew: what was there must be in a record by now, or not be wanted."""
        head = {"state": state.model_dump(), "command": command, "stored": dict(stored)}
        text = _text(head)
        try:
            write_text(self.path, text)
        except OSError as error:
            raise CannotKeep(f"{self.path} cannot be written: {error.strerror or error}") from None
        self._size, self.kept = len(text.encode()), []

    def opening(self, body: Body) -> None:
        self._append([{"opening": body.model_dump()}])

    def units(self, units: Sequence[Unit]) -> None:
        """Raises CannotKeep where the disk is full; the units before these are still there."""
        self._append(
            [
                {
                    "unit": unit.name,
                    "items": {name: _plain(value) for name, value in unit.items.items()},
                    "raw": dict(unit.raw),
                }
                for unit in units
            ]
        )
        self.kept += [unit.name for unit in units]

    def end(self) -> None:
        """Every unit is in a record."""
        self.path.unlink(missing_ok=True)

    def _append(self, lines: Sequence[dict[str, Any]]) -> None:
        data = "".join(map(_text, lines)).encode()
        try:
            with self.path.open("r+b") as file:
                file.truncate(self._size)  # a line that was cut off
                file.seek(self._size)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, self._size)
            raise CannotKeep(f"{self.path} cannot be written: {error.strerror or error}") from None
        self._size += len(data)


@contextmanager
def opened(folder: Path, name: str) -> Iterator[Journal]:
    """The journal of a measurement. Raises UserError while another process measures with the same folder, or where it
    cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotKeep(f"{folder} cannot be made: {error.strerror or error}") from None
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another measurement is running and writes to {folder}: wait for it, or stop it") from None
        for partial in folder.glob(f".{name}.*"):  # of a writer that was killed
            partial.unlink()
        yield Journal(folder / f"{name}.jsonl")
    finally:
        os.close(handle)


def _plain(value: Any) -> Any:
    return [item.model_dump() for item in value] if isinstance(value, list) else value


def _unit(line: Mapping[str, Any], opening: Body) -> Unit:
    """Its items in the types that the body has."""
    items = dict(line["items"])
    body = type(opening).model_validate(opening.model_dump() | items)
    return Unit(str(line["unit"]), {name: getattr(body, name) for name in items}, dict(line["raw"]))


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
