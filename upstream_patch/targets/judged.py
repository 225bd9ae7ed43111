"""What was reached of each target: from facts that hold today, or no record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import get_args

from upstream_patch.errors import StaleFact
from upstream_patch.kernels.tuning import FORMATS, MAX_ROWS, Format, format_of
from upstream_patch.problem import DType, parse_problem
from upstream_patch.records.facts import Fact, current
from upstream_patch.records.schema import Cache, Order
from upstream_patch.targets.wanted import GROUPS, HOST, Target

DTYPES = tuple(dtype for dtype in get_args(DType) if dtype != "f32")


class Outcome(StrEnum):
    MET = "met"
    MISSED = "MISSED"
    NONE = "no record"


@dataclass(frozen=True)
class Judged:
    target: Target
    outcome: Outcome
    value: float | None
    beside: Mapping[str, float]
    """Fact id -> value, of those that have one in the run of the value."""


@dataclass(frozen=True)
class NeverSlower:
    """The target that no benchmarked row is slower than stock."""

    outcome: Outcome
    rows: int
    """With a verdict that holds today."""
    slower: tuple[Fact, ...]
    unclear: tuple[Fact, ...]
    """Verdicts."""
    without: tuple[tuple[Format, DType], ...]
    """Formats and dtypes of which no M of the target's range has a row."""


@dataclass(frozen=True)
class Count:
    met: int
    missed: int
    none: int

    @property
    def all(self) -> int:
        return self.met + self.missed + self.none


def judge(target: Target, facts: Mapping[str, Fact]) -> Judged:
    """``facts`` by id. A stale fact counts as none: what it says is of another kernel."""
    fact = _today(facts, target.fact)
    base = _today(facts, target.over) if target.over else None
    if fact is None or (target.over and (base is None or base.record_path != fact.record_path)):
        return Judged(target, Outcome.NONE, None, {})
    value = float(fact.value) / (float(base.value) if base else 1.0)
    names = (*(f"record.{Path(fact.record_path).stem}.{name}" for name in target.of_its_run), *target.beside)
    same = (one for name in names if (one := _today(facts, name)) and one.record_path == fact.record_path)
    outcome = Outcome.MET if target.met(value) else Outcome.MISSED
    return Judged(target, outcome, value, {one.id: float(one.value) for one in same})


def never_slower(facts: Mapping[str, Fact]) -> NeverSlower:
    """Met only when every format and dtype has rows and none is slower; which M and shapes they are is for a reader."""
    verdicts = [
        fact
        for name, given in facts.items()
        if name.startswith(f"small_m.{HOST}.") and name.endswith(".verdict") and (fact := _today(facts, given.id))
    ]
    seen = {_like(fact) for fact in verdicts}
    without = tuple(pair for pair in product(FORMATS, DTYPES) if pair not in seen)
    slower = tuple(fact for fact in verdicts if fact.value == "SLOWER")
    unclear = tuple(fact for fact in verdicts if fact.value == "UNCLEAR")
    outcome = Outcome.MISSED if slower else Outcome.NONE if without or unclear else Outcome.MET
    return NeverSlower(outcome, len(verdicts), slower, unclear, without)


def count(facts: Mapping[str, Fact]) -> Count:
    """Over every target; that no row is slower than stock is one."""
    found = [judge(target, facts).outcome for group in GROUPS for target in group.targets]
    found.append(never_slower(facts).outcome)
    return Count(*(found.count(outcome) for outcome in Outcome))


def by_id(facts: Iterable[Fact]) -> dict[str, Fact]:
    return {fact.id: fact for fact in facts}


def _like(verdict: Fact) -> tuple[Format, DType] | None:
    """Format and dtype of a row; None for one outside the target's M."""
    stem = verdict.id.removeprefix(f"small_m.{HOST}.").removesuffix(".verdict")
    for suffix in (*get_args(Cache), *get_args(Order)):
        stem = stem.removesuffix(f".{suffix}")
    problem = parse_problem(stem)
    return (format_of(problem), problem.dtype) if problem.m <= MAX_ROWS else None


def _today(facts: Mapping[str, Fact], name: str) -> Fact | None:
    try:
        return current(facts[name]) if name in facts else None
    except StaleFact:
        return None
