"""What each gate looks at, and what it says. ``gates`` puts hashes and excuses to it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from upstream_patch import kernels
from upstream_patch.draft import body, claims, holes, inputs, managed, rules
from upstream_patch.draft.documents import Document
from upstream_patch.draft.inputs import Duplicates, SeriesProof, Upstream
from upstream_patch.errors import UserError
from upstream_patch.records import kernel_hash
from upstream_patch.records.facts import Fact

BODY_LIMIT = 65_536
"""Characters that GitHub takes in a body."""
MARKER_ROOM = 256
"""Of them, kept free for the hidden line by which a filed text is found again."""
TITLE_LIMIT = 256
FRESH_HOURS = 24
"""A search for duplicates, and a look at upstream's head, holds for a day."""
BUG = "[BUG]"
_AI = re.compile(
    r"\b(?:AI|LLMs?|agents?|assistants?|Claude|Codex|Copilot|ChatGPT|Gemini|language models?)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Finding:
    ok: bool
    why: str
    fix: str = ""
    seen: tuple[str, ...] = ()
    """What the gate looked at besides the draft's text."""


@dataclass(frozen=True)
class Look:
    """A written draft and all that its gates look at."""

    document: Document
    work: Path
    text: str
    facts: Sequence[Fact]
    now: datetime

    @property
    def again(self) -> str:
        return f"upstream-patch draft {self.document.name}"

    @property
    def file(self) -> Path:
        return self.work / self.document.file

    @property
    def title(self) -> str:
        return body.title(self.text, BUG if self.document.name == "issue" else "")

    @cached_property
    def body(self) -> str:
        return body.body(self.text)

    @cached_property
    def series(self) -> SeriesProof | None:
        return inputs.read(self.work, "series", SeriesProof)

    @cached_property
    def seen_facts(self) -> str:
        return json.dumps([(fact.id, fact.value, fact.stale) for fact in self.facts])


def _drafted(look: Look) -> Finding:
    """Its blocks are those that would be written today."""
    fresh = ""
    try:
        fresh = look.document.render(look.facts, work=look.work)
        merged = managed.merge(look.text, fresh, str(look.file))
    except UserError as error:
        return Finding(False, str(error), look.again, (fresh,))
    if merged != look.text:
        why = "records, or what was filed or built, changed since it was drafted"
        return Finding(False, why, look.again, (fresh,))
    return Finding(True, "its tables are today's facts", seen=(fresh,))


def _holes(look: Look) -> Finding:
    found = [hole for hole in look.document.open_holes(look.file) if hole.id != "disclosure"]
    if not found:
        return Finding(True, "every hole holds a person's words")
    words = [hole for hole in found if hole.id in look.document.required]
    records = [hole for hole in found if hole.id not in look.document.required]
    why, fix = [], []
    if words:
        why.append(", ".join(f"{hole.id} (line {hole.line})" for hole in words))
        fix.append(f"write them in {look.file}")
    if records:
        why.append(
            f"{len(records)} in tables wait for a record or a filing, first line {records[0].line}: {records[0].hint}"
        )
        fix.append(f"make it, then {look.again}")
    return Finding(False, f"open: {'; '.join(why)}", "; ".join(fix))


def _disclosure(look: Look) -> Finding:
    words = holes.answer(look.text, "disclosure")
    open_ = any(hole.id == "disclosure" for hole in holes.open_holes(look.text, look.document.required))
    if open_ or not _AI.search(words):
        return Finding(False, "it does not say how AI was used", f"fill the hole disclosure in {look.file}")
    return Finding(True, "says how AI was used")


def _claims(look: Look) -> Finding:
    found = claims.check(look.text, look.facts)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        fix = f"upstream-patch draft claims {look.document.name} lists them; correct the words, or excuse them"
        return Finding(False, f"{found[0]}{more}", fix, (look.seen_facts,))
    return Finding(True, "every number is a fact within its rounding", seen=(look.seen_facts,))


def _benchmarks(look: Look) -> Finding:
    """Facts of both arms; for the pull request also both builds of the series."""
    stems = [
        {
            fact.id.removesuffix(f".{arm}_us")
            for fact in look.facts
            if fact.id.startswith("small_m.") and fact.id.endswith(f".{arm}_us") and not fact.stale
        }
        for arm in ("stock", "ours")
    ]
    both = stems[0] & stems[1]
    if not both:
        return Finding(False, "no record times stock and ours", "nox -s bench on a CUDA GPU", (look.seen_facts,))
    if look.document.name != "pr":
        return Finding(True, f"{len(both)} problems timed in both arms", seen=(look.seen_facts,))
    proof = _of_today(look)
    if isinstance(proof, Finding):
        return proof
    if not proof.affected:
        return Finding(False, "no problem was timed on both builds", _BUILD, (proof.model_dump_json(),))
    return Finding(True, f"{len(proof.affected)} problems timed on both builds", seen=(proof.model_dump_json(),))


def _tests(look: Look) -> Finding:
    proof = _of_today(look)
    if isinstance(proof, Finding):
        return proof
    seen = (proof.model_dump_json(),)
    base, patched = proof.base.failed, proof.patched.failed
    if not proof.base.ran or not proof.patched.ran:
        return Finding(False, "a build was not tested", _BUILD, seen)
    passing = [name for name in proof.new_tests if name not in base]
    failing = [name for name in proof.new_tests if name in patched]
    worse = [name for name in patched if name not in base]
    for names, what in (
        (passing, "does not fail on the base"),
        (failing, "does not pass with the series"),
        (worse, "fails with the series and not on the base"),
    ):
        if names:
            return Finding(False, f"{names[0]} {what}", f"correct the series or its tests, then {_BUILD}", seen)
    if not proof.new_tests:
        return Finding(False, "the series has no new test", f"add one that fails on the base, then {_BUILD}", seen)
    return Finding(True, f"{len(proof.new_tests)} new tests fail on the base and pass with the series", seen=seen)


def _unaffected(look: Look) -> Finding:
    proof = _of_today(look)
    if isinstance(proof, Finding):
        return proof
    seen = (proof.model_dump_json(),)
    changed = [cell for cell in proof.unaffected if cell.verdict != "SAME"]
    if changed or not proof.unaffected:
        what = f"{changed[0].problem} is {changed[0].verdict}" if changed else "no problem of another route was timed"
        return Finding(False, what, _BUILD, seen)
    return Finding(True, f"{len(proof.unaffected)} problems of other routes take the same time", seen=seen)


def _formatting(look: Look) -> Finding:
    proof = _of_today(look)
    if isinstance(proof, Finding):
        return proof
    seen = (proof.model_dump_json(),)
    if not proof.formatting.clean:
        return Finding(False, f"`{proof.formatting.command}` changes files", f"format the series, then {_BUILD}", seen)
    return Finding(True, f"`{proof.formatting.command}` is clean", seen=seen)


def _duplicates(look: Look) -> Finding:
    """Searched among open and closed for this title, and each hit named by number in the person's words."""
    found = inputs.read(look.work, f"duplicates_{look.document.name}", Duplicates)
    fix = f"upstream-patch duplicates {look.document.name}"
    if found is None:
        return Finding(False, "nobody has searched for duplicates", fix)
    seen = (found.model_dump_json(),)
    if found.title != look.title:
        return Finding(False, "the title changed since duplicates were searched", fix, seen)
    missing = [state for state in ("open", "closed") if all(search.state != state for search in found.searches)]
    if missing:
        return Finding(False, f"not searched among the {' and the '.join(missing)} ones", fix, seen)
    if (age := inputs.age_hours(found.searched, look.now)) > FRESH_HOURS:
        return Finding(False, f"searched {age:.0f} hours ago", fix, seen)
    hits = {hit.number: hit for search in found.searches for hit in search.hits}
    words = managed.strip(look.text)
    unread = [
        hit for number, hit in sorted(hits.items()) if not re.search(rf"(?:#|/(?:issues|pull)/){number}\b", words)
    ]
    if unread:
        first = f"#{unread[0].number} ({unread[0].state}: {unread[0].title})"
        return Finding(
            False,
            f"{len(unread)} hits are not named, first {first}",
            "read them, and say in your words how this one differs, or excuse them",
            seen,
        )
    return Finding(True, f"searched, {len(hits)} hits named", seen=seen)


def _rules(look: Look) -> Finding:
    ok, why = rules.judge(look.work, look.now)
    file = inputs.path(look.work, rules.NAME)
    return Finding(
        ok, why, "" if ok else rules.REFRESH, (rules.sha256(), file.read_text("utf-8") if file.exists() else "")
    )


def _size(look: Look) -> Finding:
    size = len(look.body) + MARKER_ROOM
    if size > BODY_LIMIT:
        why = f"{size:,} characters with the hidden marker, GitHub takes {BODY_LIMIT:,}"
        return Finding(False, why, "shorten your words, or move tables into the linked records")
    if len(look.title) > TITLE_LIMIT:
        return Finding(False, f"the title has {len(look.title)} characters, GitHub takes {TITLE_LIMIT}", "shorten it")
    return Finding(True, f"{size:,} of {BODY_LIMIT:,} characters")


def _mentions(look: Look) -> Finding:
    found = body.mentions(f"{look.title}\n\n{look.body}")
    if found:
        return Finding(False, f"it would notify {', '.join(found)}", f"take the @ out in {look.file}")
    return Finding(True, "notifies nobody by name")


def _base(look: Look) -> Finding:
    found = inputs.read(look.work, "upstream", Upstream)
    if found is None:
        return Finding(False, "nobody has compared the base with upstream's head", _DRIFT)
    proof = look.series
    seen = (found.model_dump_json(), proof.model_dump_json() if proof else "")
    if proof and (proof.base_commit, proof.series_sha256) != (found.base_commit, found.series_sha256):
        return Finding(False, "another base or series was compared than the one that was built", _DRIFT, seen)
    if (age := inputs.age_hours(found.checked, look.now)) > FRESH_HOURS:
        return Finding(False, f"compared {age:.0f} hours ago", _DRIFT, seen)
    if not found.applies or found.touched:
        what = f"upstream changed {', '.join(found.touched)}" if found.touched else "the series no longer applies"
        return Finding(False, f"{what} since {found.base_commit[:12]}", "rebase the series and build it again", seen)
    return Finding(True, f"no file of the series changed up to {found.head_commit[:12]}", seen=seen)


def _of_today(look: Look) -> SeriesProof | Finding:
    """The series' proof, if it is about the kernels of today."""
    proof = look.series
    if proof is None:
        return Finding(False, "MLX was not built with the series", _BUILD)
    changed = [
        name
        for name, digest in proof.kernel_hashes.items()
        if name not in kernels.KERNELS or kernel_hash.identity(name).hash != digest
    ]
    if changed or not proof.kernel_hashes:
        what = f"the kernel {changed[0]} changed since" if changed else "it names no kernel"
        return Finding(False, f"the build is not of today's series: {what}", _BUILD, (proof.model_dump_json(),))
    return proof


_BUILD = "nox -s build -- --mlx PATH"
_DRIFT = "nox -s drift -- --mlx PATH"
CHECKS: Mapping[str, Callable[[Look], Finding]] = {
    "drafted": _drafted,
    "holes": _holes,
    "disclosure": _disclosure,
    "claims": _claims,
    "benchmarks": _benchmarks,
    "tests": _tests,
    "unaffected": _unaffected,
    "formatting": _formatting,
    "duplicates": _duplicates,
    "rules": _rules,
    "size": _size,
    "mentions": _mentions,
    "base": _base,
}


def content_hash(look: Look, finding: Finding) -> str:
    """Of the draft's text and of what the gate looked at besides."""
    return hashlib.sha256(json.dumps([look.document.name, look.text, *finding.seen]).encode()).hexdigest()
