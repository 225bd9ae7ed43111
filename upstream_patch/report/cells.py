"""What the page's tables are made of: a number, and the record that it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from upstream_patch.records.facts import Fact

NOT_RUN = "not run"
STALE = "stale"


@dataclass(frozen=True)
class Cell:
    text: str
    href: str = ""
    """Of the record, from the page's own folder; empty where there is none."""
    title: str = ""
    """The fact's id, and what to do when it is stale."""
    tone: str = ""
    """A class: ``faster``, ``slower``, ``same``, ``unclear``, ``stale`` or ``none``."""
    below: Cell | None = None
    """A second line, smaller."""


@dataclass(frozen=True)
class Row:
    head: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Group:
    title: str
    """Empty where the table has but one."""
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    anchor: str
    title: str
    about: str
    columns: tuple[str, ...]
    """The first one heads the rows."""
    groups: tuple[Group, ...]

    @property
    def length(self) -> int:
        return sum(len(group.rows) for group in self.groups)


def link(record_path: str) -> str:
    """From the page, which lies in a folder beside the records', to a record named as facts name it."""
    return f"../{PurePosixPath(*PurePosixPath(record_path).parts[1:])}"


class Book:
    """The facts of one host, as cells. A stale one shows no value."""

    def __init__(self, facts: Iterable[Fact], host: str) -> None:
        self.host = host
        self.facts = {fact.id: fact for fact in facts if fact.host == host}

    def cell(self, fact_id: str, digits: str = ",.1f", scale: float = 1.0, unit: str = "") -> Cell:
        fact = self.facts.get(fact_id)
        if fact is None:
            return Cell(NOT_RUN, tone="none")
        if fact.stale:
            renew = f"{fact.id}: of another kernel, tuning or dispatch than today's; renew it with {fact.command}"
            return Cell(STALE, link(fact.record_path), renew, STALE)
        text = fact.value if isinstance(fact.value, str) else format(fact.value * scale, digits)
        return Cell(f"{text}{unit}", link(fact.record_path), fact.id)

    def value(self, fact_id: str) -> float | str | None:
        """None where there is no such fact. For what is never stale."""
        return self.facts[fact_id].value if fact_id in self.facts else None

    def verdict(self, fact_id: str) -> Cell:
        """FASTER, SAME, SLOWER or UNCLEAR, with its reason for who asks."""
        cell = self.cell(fact_id)
        reason = self.cell(f"{fact_id}_reason")
        title = f"{cell.title}: {reason.text}" if reason.title and not cell.tone else cell.title
        return replace(cell, title=title, tone=cell.tone or cell.text.lower())

    def pair(self, speed: str, step: str) -> Cell:
        """Tokens a second, with milliseconds a step below."""
        cell, below = self.cell(speed, ",.0f"), self.cell(step, ",.2f", unit=" ms")
        return cell if cell.tone or below.tone else replace(cell, below=below)

    def ratio(self, stem: str, unit: str = "x", name: str = "speedup", digits: str = ",.2f") -> Cell:
        """The speedup, with its interval below."""
        cell = self.cell(f"{stem}.{name}", digits, unit=unit)
        if cell.tone:
            return cell
        low, high = (self.cell(f"{stem}.{name}_{end}", digits) for end in ("low", "high"))
        if low.tone or high.tone:
            return cell
        return replace(cell, below=replace(low, text=f"{low.text} to {high.text}"))

    def stems(self, family: str, suffix: str) -> list[str]:
        """What stands before ``suffix`` in the facts of a family, in the order of the facts."""
        prefix = f"{family}.{self.host}."
        return [one.removesuffix(suffix) for one in self.facts if one.startswith(prefix) and one.endswith(suffix)]
