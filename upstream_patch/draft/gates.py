"""The gates: named checks that must be open before a draft may be sent, each tied to what it looked at by a hash."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from upstream_patch.errors import UserError
from upstream_patch.records.store import Root

BODY_LIMIT = 65_536
"""Characters that GitHub takes in a body."""
MARKER_ROOM = 256
"""Of them, kept free for the hidden line by which a filed text is found again."""
CODES = {
    "drafted": 20,
    "holes": 21,
    "disclosure": 22,
    "claims": 23,
    "benchmarks": 24,
    "tests": 25,
    "unaffected": 26,
    "formatting": 27,
    "duplicates": 28,
    "rules": 29,
    "size": 30,
    "mentions": 31,
    "base": 32,
}
"""Gate -> exit code of a verb that it stops."""
FOR = {
    "issue": ("drafted", "holes", "disclosure", "claims", "benchmarks", "duplicates", "rules", "size", "mentions"),
    "pr": tuple(CODES),
    "link-back": ("drafted", "holes", "claims", "size", "mentions"),
    "docs": ("drafted", "holes", "claims"),
}
"""Draft -> its gates, in the order in which they are shown."""


class Outcome(StrEnum):
    GREEN = "green"
    EXCUSED = "excused"
    STALE = "stale"
    """An excuse was given for other content than today's."""
    RED = "red"


@dataclass(frozen=True)
class Gate:
    draft: str
    """``issue``, ``pr``, ``link-back`` or ``docs``."""
    name: str
    outcome: Outcome
    why: str
    """What was found, in one line; with a person's own reason where it is excused."""
    fix: str
    """The way out; empty where the gate is open."""
    content_hash: str
    """sha256 of all that the gate looked at, the draft's text among it: other content, another hash."""

    @property
    def open(self) -> bool:
        return self.outcome in (Outcome.GREEN, Outcome.EXCUSED)


class GateClosed(UserError):
    """A gate is not open; ``exit_code`` is the gate's own (``CODES``)."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(f"{gate.draft}: {gate.name} is {gate.outcome}: {gate.why}: {gate.fix}")
        self.gate = gate
        self.exit_code = CODES[gate.name]


@dataclass(frozen=True)
class Ready:
    """What a person may send: the text without any marker of the tool."""

    title: str
    """Empty for a comment (``link-back``)."""
    body: str
    content_hash: str
    """Over the hashes of all gates: store it with the receipt, and refuse when it has changed since the preview."""


def status(work: Path, evidence: Root, drafts: tuple[str, ...] = tuple(FOR)) -> tuple[Gate, ...]:
    """Every gate of the drafts, in order. ``work`` is the folder of the drafts (``out/drafts``).

    A draft that was never written has one gate, ``drafted``, which is red. Raises UserError where ``work`` holds
    something that cannot be read.
    """
    raise NotImplementedError


def ready(draft: str, work: Path, evidence: Root) -> Ready:
    """Title and body, when every gate of the draft is open. Raises GateClosed for the first that is not."""
    raise NotImplementedError
