"""Facts: every number a draft, README or report may hold, derived from the raw samples in records, never stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from upstream_patch.errors import StaleFact
from upstream_patch.records import canonical, dispatch_hash, kernel_hash, rules
from upstream_patch.records.fact_rows import rows_of
from upstream_patch.records.speeds import speeds_of
from upstream_patch.records.store import LoadedRecord

VERBS: Mapping[str, str] = {
    "correctness": "correctness",
    "bench": "bench",
    "ncu": "profile",
    "sanitizer": "sanitize",
    "peer": "peers",
    "decode": "decode",
    "wheel": "wheel",
}
"""Kind of record -> the verb, and the nox session, that makes it."""
MAKES: Mapping[str, str] = {
    family: f"python -m upstream_patch {VERBS[kind]}"
    for family, kind in {"small_m": "bench", **{kind: kind for kind in VERBS if kind != "bench"}}.items()
} | {"build": "python -m upstream_patch build --mlx PATH"}
"""The command that makes a family of facts, to be run on the host that the id names."""


@dataclass(frozen=True)
class Fact:
    """One derived value. ``stale``: it is about our kernel or our dispatch, and that is not today's."""

    id: str
    value: float | str
    unit: str
    """``us``, ``ms``, ``GB/s`` (1e9 bytes), ``tokens/s``, ``token``, ``byte``, ``ratio``, ``norm``, ``ulp``,
    ``percent``, ``count``, or ``text``."""
    host: str
    record_path: str
    sha256: str
    stale: bool
    created: datetime
    command: str
    """The record's own command: what renews the fact."""


def derive(
    records: Sequence[LoadedRecord], today: Callable[[str], str] | None = None, dispatch: str | None = None
) -> list[Fact]:
    """Every fact of the records, in the order of their ids.

    Several records may hold one row (a problem's benchmark, its profile, a dtype's correctness). All facts of a row
    come from one of them: the newest in which what is said about our kernel is not stale, or else the newest.
    A correctness record that holds a part of the matrix of an older one gives none. ``today`` maps a kernel's name to
    its hash now, ``dispatch`` is our dispatch's; they are given only in tests.
    """
    kept: dict[str, list[Fact]] = {}
    up_to_date: set[str] = set()
    ordered = sorted(records, key=lambda item: (item.record.created, item.record.id))
    speeds = speeds_of([loaded.record for loaded in ordered])
    for loaded in ordered:
        record = loaded.record
        if rules.part_of_matrix(record, [other.record for other in ordered]):
            continue
        changed = record.kernel is not None and (today or _hash_today)(record.kernel.name) != record.kernel.hash
        for row in rows_of(record, speeds, dispatch or dispatch_hash.today()):
            stale = changed or row.outdated
            fresh = not stale and any(value.ours for value in row.values)
            if row.id in up_to_date and not fresh:
                continue
            if fresh:
                up_to_date.add(row.id)
            kept[row.id] = [
                Fact(
                    id=value.id,
                    value=canonical.tidy(value.value),  # the digits that were measured, whatever rows stand beside
                    unit=value.unit,
                    host=record.host,
                    record_path=loaded.path,
                    sha256=loaded.sha256,
                    stale=value.ours and stale,
                    created=record.created,
                    command=record.command,
                )
                for value in row.values
            ]
    return sorted((fact for facts in kept.values() for fact in facts), key=lambda fact: _natural(fact.id))


def current(fact: Fact) -> Fact:
    """The fact itself. Raises StaleFact, with the command that renews it, when it is stale."""
    if fact.stale:
        raise StaleFact(
            f"fact {fact.id} is stale, today's kernel, tuning or dispatch is not that of {fact.record_path}",
            f"renew it on {fact.host} with `{fact.command}`",
        )
    return fact


def to_json(facts: Iterable[Fact]) -> str:
    """A JSON list of objects: id, value, unit, host, record, sha256, stale, created, command."""
    rows = [
        {
            "id": fact.id,
            "value": fact.value,
            "unit": fact.unit,
            "host": fact.host,
            "record": fact.record_path,
            "sha256": fact.sha256,
            "stale": fact.stale,
            "created": fact.created.isoformat(),
            "command": fact.command,
        }
        for fact in facts
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False)


def _hash_today(kernel: str) -> str:
    """Empty for a kernel that is no longer in the package."""
    return kernel_hash.identity(kernel).hash if kernel in kernel_hash.KNOWN else ""


def _natural(fact_id: str) -> list[tuple[int, str]]:
    """M2 before M16."""
    return [(int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", fact_id)]
