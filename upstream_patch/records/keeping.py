"""What every measurement does with its units: leave out those that are finished, keep each one, and stop in order."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from upstream_patch.errors import UserError
from upstream_patch.records.journal import CannotKeep, Journal, Unit
from upstream_patch.records.schema import Body

B = TypeVar("B", bound=BaseModel)


@dataclass
class Keeper:
    """The units of one run. Without a journal they are kept in memory only."""

    plan: Sequence[str]
    """Names of all units, in the order in which a record has them."""
    journal: Journal | None = None
    stored: Collection[str] = ()
    """Units that are not measured, since a record of an earlier run in the same state holds them."""
    units: dict[str, Unit] = field(default_factory=dict)
    """Those that are finished and go into this run's record."""
    parts: bool = True
    """A record may hold a part of the units. Where it may not, what stops the run is raised at once."""
    notes: list[str] = field(default_factory=list)
    """Why units are missing, in lines."""
    waiting: list[str] = field(default_factory=list)
    """Units that another run may measure: the time was over, or the run was stopped, before them."""
    stopped: KeyboardInterrupt | UserError | None = None
    """What stopped the run before its end."""

    def open(self, opening: Body) -> None:
        """What was found before the first unit. Raises CannotKeep."""
        if self.journal is not None and not self.units:  # the units of an earlier run have an opening
            self.journal.opening(opening)

    def skips(self, name: str, deadline: float = math.inf) -> bool:
        """Whether a unit is not to be measured: it is finished, or the run is over, which is noted.

        ``deadline``, on ``time.monotonic``: no unit starts after it.
        """
        if name in self.stored or name in self.units:
            return True
        if self.stopped is None and time.monotonic() <= deadline:
            return False
        self._missing(name, why(self.stopped) if self.stopped else "not reached in time")
        return True

    @contextmanager
    def unit(self, name: str, *stops: type[UserError]) -> Iterator[None]:
        """Measure a unit. Ctrl-C, a full disk and ``stops`` end the run after the last finished unit, without raising:
        the units after it are skipped. Raised where none is finished, and where a part is no record."""
        ending: tuple[type[KeyboardInterrupt | UserError], ...] = (KeyboardInterrupt, CannotKeep, *stops)
        try:
            yield
        except ending as error:
            if not self.units or not self.parts:
                raise
            self.stopped = error
            if name not in self.units:
                self._missing(name, why(error))

    def keep(self, name: str, raw: Mapping[str, str] | None = None, **items: Any) -> None:
        """A unit is finished (``Unit``). Raises CannotKeep; it is in this run's record all the same."""
        self._keep([Unit(name, items, raw or {})])

    def keep_all(self, units: Mapping[str, Mapping[str, Any]]) -> None:
        """Several units that ended together: name -> ``Unit.items``."""
        self._keep([Unit(name, items) for name, items in units.items()])

    def _keep(self, units: Sequence[Unit]) -> None:
        self.units.update((unit.name, unit) for unit in units)
        if self.journal is not None and units:
            self.journal.units(units)

    def items(self, name: str) -> list[Any]:
        """What the finished units give one list of the body, in the order of the plan."""
        return [item for unit in self._ordered() for item in unit.items.get(name, ())]

    def body(self, opening: B) -> B:
        """The opening with every finished unit."""
        return assembled(opening, self._ordered())

    def raw(self) -> dict[str, bytes]:
        """Attachments of the finished units."""
        return attachments(list(self.units.values()))

    def _ordered(self) -> list[Unit]:
        return [self.units[name] for name in self.plan if name in self.units]

    def _missing(self, name: str, reason: str) -> None:
        self.waiting.append(name)
        self.notes.append(f"{reason}: {name}")


def assembled(opening: B, units: Sequence[Unit]) -> B:
    """A body of its units. What two units share, as two rows one model, is in it once."""
    fields: dict[str, Any] = {}
    seen: dict[str, set[str]] = {}
    for unit in units:
        for name, value in unit.items.items():
            if not isinstance(value, list):
                fields[name] = value
                continue
            there = fields.setdefault(name, list(getattr(opening, name)))
            known = seen.setdefault(name, {item.model_dump_json() for item in there})
            for item in value:
                if (text := item.model_dump_json()) not in known:
                    known.add(text)
                    there.append(item)
    return opening.model_copy(update=fields)


def attachments(units: Sequence[Unit]) -> dict[str, bytes]:
    return {name: text.encode() for unit in units for name, text in unit.raw.items()}


def why(stopped: KeyboardInterrupt | UserError) -> str:
    """How the note of a unit begins that was not run."""
    return f"not run, {' '.join(str(stopped).split()) or 'stopped by Ctrl-C'}"
