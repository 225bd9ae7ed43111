"""What the gates look at: a written draft, the facts, and what other rooms handed over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from upstream_patch.draft import body, inputs
from upstream_patch.draft.commands import EVIDENCE, folders
from upstream_patch.draft.documents import Document
from upstream_patch.draft.inputs import SeriesProof
from upstream_patch.records.facts import Fact

OK = "ok"
FRESH_HOURS = 24
"""A search for duplicates, and a look at upstream's head, holds for a day."""


@dataclass(frozen=True)
class Finding:
    code: str
    """What was found, in one stable word: ``unread``, ``outdated``; ``OK`` where the gate is open."""
    why: str
    fix: str = ""
    seen: tuple[str, ...] = ()
    """What the gate looked at besides the draft's text, and all that it found there which ``why`` leaves out."""

    @property
    def ok(self) -> bool:
        return self.code == OK


@dataclass(frozen=True)
class Look:
    """A written draft and all that its gates look at."""

    document: Document
    work: Path
    text: str
    facts: Sequence[Fact]
    now: datetime
    evidence: Path = EVIDENCE

    @property
    def again(self) -> str:
        return self.command("draft")

    @property
    def drift(self) -> str:
        return f"{self.document.contribution.drift}{folders(self.work.parent, self.evidence)}"

    def command(self, verb: str, *, reads_records: bool = True) -> str:
        """A verb of this draft, as a person types it."""
        where = folders(self.work.parent, self.evidence) if reads_records else folders(self.work.parent)
        return f"upstream-patch {verb} {self.document.name}{self.document.contribution.option}{where}"

    def key(self, name: str) -> str:
        """Of an input that is this contribution's alone."""
        return self.document.contribution.key(name)

    @property
    def file(self) -> Path:
        return self.work / self.document.file

    @property
    def title(self) -> str:
        return self.document.title(self.text)

    @cached_property
    def body(self) -> str:
        return body.body(self.text)

    @cached_property
    def series(self) -> SeriesProof | None:
        return inputs.read(self.work, self.key("series"), SeriesProof)

    @cached_property
    def seen_facts(self) -> str:
        return json.dumps([(fact.id, fact.value, fact.stale) for fact in self.facts])
