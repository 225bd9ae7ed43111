"""MLX's rules for contributors as data, and a person's reading of the files that they stand in.

``mlx.json`` holds each rule in our own words, where it stands, and the gate that enforces it (``person``: filing does,
by asking a person at a terminal). It was compiled from copies of those files, the newest of which nobody here has read,
so the gate ``rules`` is red until a person has read them in a checkout, and again after every change of them.
"""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import AwareDatetime

from upstream_patch.draft import inputs
from upstream_patch.draft.commands import folders
from upstream_patch.draft.inputs import Commit, Input, Sha256
from upstream_patch.errors import UserError
from upstream_patch.series.checkout import open_checkout

NAME = "rules"
FRESH_DAYS = 7
"""A reading older than this is none of the day's rules."""
REFRESH = "upstream-patch rules refresh --mlx PATH"


class Place(Input):
    file: str
    commit: str
    """That the copy was of; empty where the rule was only seen quoted."""


class Rule(Input):
    id: str
    says: str
    stands: tuple[Place, ...]
    gate: str


class Rules(Input):
    version: int
    repository: str
    compiled: str
    first_hand: bool
    watched: tuple[str, ...]
    """Patterns of the files whose change turns the gate red."""
    rules: tuple[Rule, ...]


class Reading(Input):
    """The watched files of one commit."""

    commit: Commit
    committed: AwareDatetime
    read: AwareDatetime
    rules_sha256: Sha256
    """Of the rules that they were compared with."""
    files: dict[str, Sha256]
    unknown: str = ""
    """Why nothing says that the commit is the head of upstream's main; empty where something does."""

    @property
    def digest(self) -> str:
        """Short name of what was read: the files and our rules, whatever the day and the commit."""
        return hashlib.sha256(json.dumps([self.rules_sha256, self.files], sort_keys=True).encode()).hexdigest()[:12]


class Readings(Input):
    """``inputs/rules.json``: what was seen last, and what a person said to have read."""

    seen: Reading
    accepted: Reading | None = None
    texts: dict[str, str]
    """Of the accepted files, to show what changed since."""


@cache
def source() -> bytes:
    return resources.files("upstream_patch.draft.rules").joinpath("mlx.json").read_bytes()


@cache
def rules() -> Rules:
    return Rules.model_validate_json(source())


def sha256() -> str:
    return hashlib.sha256(source()).hexdigest()


def refresh(work: Path, checkout: Path, accept: str | None = None, now: datetime | None = None) -> Iterator[str]:
    """Read the watched files of a checkout's HEAD, store that, and say line by line what changed and how to go on.

    ``accept`` is the digest that an earlier call printed: the person has read those files. Raises UserError when the
    files are no longer those, when a file that a rule stood in is gone, and when ``checkout`` is no clone of MLX;
    MissingTool without git.
    """
    commit, committed, unknown, texts = _watched(checkout)
    seen = Reading(
        commit=commit,
        committed=committed,
        read=now or datetime.now(UTC),
        rules_sha256=sha256(),
        files={path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()},
        unknown=unknown,
    )
    before = inputs.read(work, NAME, Readings)
    old = before.texts if before else {}
    if accept is not None and accept != seen.digest:
        raise UserError(f"the files are {seen.digest} now, not {accept}: read what {again(work)} shows, then name that")
    missing = _missing(texts)
    if accept is not None and missing:
        rule, file = missing[0]
        raise UserError(
            f"{file} is not there, in which rule {rule} stood: find where it stands now and correct "
            "upstream_patch/draft/rules/mlx.json, or name a clone at the head of its main branch"
        )
    known = accept is not None or (before is not None and before.accepted is not None and _same(before.accepted, seen))
    kept = seen if known else before.accepted if before else None
    inputs.write(work, NAME, Readings(seen=seen, accepted=kept, texts=texts if known else old))
    yield f"{rules().repository} {commit} of {committed:%Y-%m-%d}: {len(texts)} files with rules"
    if behind := unknown or inputs.behind(committed, seen.read):
        yield f"the gate `rules` stays red: {behind}"
    elif known:
        yield f"read: {seen.digest}; the gate `rules` is green for {FRESH_DAYS} days, or until they change"
    if known:
        return
    yield from _changes(old, texts)
    if not missing:
        yield f"when you have read them: {again(work)} --read {seen.digest}"


def again(work: Path) -> str:
    """``REFRESH`` for a folder of drafts."""
    return f"{REFRESH}{folders(work.parent)}"


def judge(work: Path, now: datetime) -> tuple[bool, str]:
    """Whether a person has read today's rules, and what is wrong where not."""
    found = inputs.read(work, NAME, Readings)
    if found is None or found.accepted is None:
        return False, "nobody has read upstream's rules at first hand"
    if found.accepted.rules_sha256 != sha256():
        return False, "this project's copy of the rules changed since they were read"
    if not _same(found.accepted, found.seen):
        changed = sorted(dict(found.accepted.files.items() ^ found.seen.files.items()))
        return False, f"upstream's rules changed since they were read: {', '.join(changed)}"
    age = inputs.age_hours(found.seen.read, now) / 24
    if age > FRESH_DAYS:
        return False, f"upstream's rules were last looked at {age:.0f} days ago"
    if found.seen.unknown:
        return False, found.seen.unknown
    if behind := inputs.behind(found.seen.committed, now):
        return False, behind
    head = f"{found.seen.commit[:12]} of {found.seen.committed:%Y-%m-%d}"
    return True, f"read at {found.accepted.commit[:12]}, the same at {head}"


def _same(one: Reading, other: Reading) -> bool:
    return one.digest == other.digest


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for path in sorted(old.keys() | new.keys()):
        if old.get(path) == new.get(path):
            continue
        yield from difflib.unified_diff(
            old.get(path, "").splitlines(), new.get(path, "").splitlines(), f"read/{path}", f"now/{path}", lineterm=""
        )
        for rule in rules().rules:
            if any(place.file == path for place in rule.stands):
                yield f"=> check that {path} still says: {rule.says} (rule {rule.id}, gate {rule.gate})"
    for rule_id, file in _missing(new):
        yield f"=> rule {rule_id} stood in {file}, which is not there: find where it stands now"


def _watched(path: Path) -> tuple[str, datetime, str, dict[str, str]]:
    """HEAD, when it was committed, why it is not known to be upstream's, and the text of every watched file in it.

    What is not committed does not count.
    """
    checkout = open_checkout(path)
    read = checkout.reader()
    names = checkout.git("-c", "core.quotePath=off", "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    texts = {name: read(name) or "" for name in names if _is_watched(name)}
    return checkout.commit(), checkout.committed(), ": ".join(filter(None, checkout.not_upstream())), texts


def _is_watched(path: str) -> bool:
    return any(fnmatch.fnmatch(path, pattern) for pattern in rules().watched)


def _missing(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """(rule, file) where a rule stood in a watched file that is not there."""
    return [
        (rule.id, place.file)
        for rule in rules().rules
        for place in rule.stands
        if place.file not in texts and _is_watched(place.file)
    ]
