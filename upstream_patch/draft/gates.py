"""The gates: named checks that must be open before a draft may be sent, each tied to what it looked at by a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from upstream_patch.draft import body, checks, excuses, managed, proving
from upstream_patch.draft.commands import folders
from upstream_patch.draft.contributions import CUDA, Contribution
from upstream_patch.draft.documents import Document, all_of, find
from upstream_patch.draft.look import Look
from upstream_patch.errors import UserError
from upstream_patch.records import facts, store
from upstream_patch.records.facts import Fact

CODES = {
    "drafted": 20,
    "benchmarks": 21,
    "tests": 22,
    "unaffected": 23,
    "formatting": 24,
    "base": 25,
    "branch": 33,
    "holes": 26,
    "disclosure": 27,
    "claims": 28,
    "mentions": 29,
    "size": 30,
    "duplicates": 31,
    "rules": 32,
}
"""Gate -> exit code of a verb that it stops; in the order in which they are shown: evidence, words, upstream."""
FOR = {
    "issue": ("drafted", "benchmarks", "holes", "disclosure", "claims", "mentions", "size", "duplicates", "rules"),
    "pr": tuple(CODES),
    "link-back": ("drafted", "holes", "claims", "mentions", "size"),
    "docs": ("drafted", "holes", "claims"),
}
"""Draft -> its gates."""


class Outcome(StrEnum):
    GREEN = "green"
    EXCUSED = "excused"
    STALE = "stale"
    """An excuse was given for another finding, or for other content, than today's."""
    RED = "red"


@dataclass(frozen=True)
class Gate:
    draft: str
    """``issue``, ``pr``, ``link-back`` or ``docs``."""
    name: str
    outcome: Outcome
    code: str
    """The finding in one stable word, ``ok`` where the gate is green; an excuse is for one such finding."""
    why: str
    """What was found, in one line; with a person's own reason where it is excused."""
    fix: str
    """The way out; empty where the gate is open."""
    content_hash: str
    """sha256 of all that the gate looked at, the draft's text among it, and of what it found: the state, or the
    finding, is another, so is the hash."""

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


def status(
    work: Path,
    evidence: Path,
    drafts: Sequence[str] = (),
    now: datetime | None = None,
    about: Contribution = CUDA,
) -> tuple[Gate, ...]:
    """Every gate of the drafts, in order; of all of the contribution's where none is named. ``work`` is the folder of
    the drafts (``out/drafts``).

    A draft that was never written has one gate, ``drafted``, which is red. ``now`` is given only in tests. Raises
    UserError where ``work`` or ``evidence`` holds something that cannot be read.
    """
    records = store.load_all(evidence)
    derived = about.of(facts.derive(records))
    proving.refresh(work, records, derived, about)
    documents = [find(name, about) for name in drafts or all_of(about)]
    return tuple(gate for one in documents for gate in _gates(one, work, evidence, derived, now or datetime.now(UTC)))


def ready(draft: str, work: Path, evidence: Path, now: datetime | None = None, about: Contribution = CUDA) -> Ready:
    """Title and body, when every gate of the draft is open. Raises GateClosed for the first that is not."""
    document = find(draft, about)
    gates = status(work, evidence, (draft,), now, about)
    for gate in gates:
        if not gate.open:
            raise GateClosed(gate)
    text = managed.read(work / document.file)
    together = hashlib.sha256("".join(gate.content_hash for gate in gates).encode()).hexdigest()
    return Ready(document.title(text), body.body(text), together)


def excuse(
    draft: str,
    name: str,
    because: str,
    work: Path,
    evidence: Path,
    now: datetime | None = None,
    about: Contribution = CUDA,
) -> Path:
    """Record a person's reason to pass over what a red gate found. Raises UserError where there is nothing that may be
    excused."""
    gate = next((gate for gate in status(work, evidence, (draft,), now, about) if gate.name == name), None)
    if gate is None:
        raise UserError(f"{draft} has no gate {name}: {', '.join(FOR[draft])}")
    if gate.outcome is Outcome.GREEN:
        raise UserError(f"{draft}: {name} is green and needs no excuse")
    return excuses.give(work, about.key(draft), name, gate.code, because, gate.content_hash, now)


def _gates(document: Document, work: Path, evidence: Path, derived: Sequence[Fact], now: datetime) -> Iterator[Gate]:
    draft, about = document.name, document.contribution
    file = work / document.file
    if not file.exists():
        nothing = hashlib.sha256(b"").hexdigest()
        fix = f"upstream-patch draft {draft}{about.option}{folders(work.parent, evidence)}"
        yield Gate(draft, "drafted", Outcome.RED, "missing", f"there is no {file}", fix, nothing)
        return
    look = Look(document, work, managed.read(file), derived, now, evidence)
    for name in FOR[draft]:
        finding = checks.CHECKS[name](look)
        digest = checks.content_hash(look, finding)
        outcome, why, fix = Outcome.GREEN if finding.ok else Outcome.RED, finding.why, finding.fix
        given = None if finding.ok else excuses.of(work, about.key(draft), name)
        if given and given.content_hash == digest and finding.code not in excuses.NEVER:
            outcome, why, fix = Outcome.EXCUSED, f"{why}; excused: {given.because}", ""
        elif given:
            what = "other content" if given.code == finding.code else f"another finding ({given.code})"
            outcome, why = Outcome.STALE, f"{why}; the excuse of {given.given:%Y-%m-%d} was for {what}"
        yield Gate(draft, name, outcome, finding.code, why, fix, digest)
