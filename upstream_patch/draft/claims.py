"""The claim check: every number in a person's prose against the facts, within its own rounding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from upstream_patch.draft import prose
from upstream_patch.draft.prose import Claim, Sentence
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records.facts import Fact
from upstream_patch.records.provenance import HOSTS

_ALIASES = {"DGX Spark": "gb10"}
_VENDOR = re.compile(r"^(?:NVIDIA|Apple|AMD|Intel)\s+")
_BATCH = re.compile(r"decode\..+\.B(\d+)\.")
_FORWARD = re.compile(r"forward\.\w+\.(?P<model>.+)\.T(?P<tokens>\d+)\.")
_UNITLESS = ("norm", "ulp")
_GAIN = re.compile(r"\b(?:faster|more|gains?|improve\w*|speed-?up|higher)\b", re.IGNORECASE)
_LOSS = re.compile(r"\b(?:less|lower|shorter|reduc\w*|saves?|fewer)\b", re.IGNORECASE)
_SLOWER = re.compile(r"\b(?:slower|longer)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Remark:
    """One thing in the prose that no fact bears out."""

    line: int
    words: str
    what: str
    nearest: str
    """The nearest fact, as ``id = value unit``; empty where there is none to name."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.words!r} {self.what}" + (f"; nearest: {self.nearest}" if self.nearest else "")


@dataclass(frozen=True)
class Match:
    """A number that facts bear out, and which: a short number may be right by chance."""

    line: int
    words: str
    facts: tuple[str, ...]
    """As ``id = value unit``."""

    def __str__(self) -> str:
        more = f" (and {len(self.facts) - 1} more: name M, K x N or the fact)" if len(self.facts) > 1 else ""
        return f"line {self.line}: {self.words!r} is {self.facts[0]}{more}"


@dataclass(frozen=True)
class _Known:
    """A fact as a sentence could state it: one reading of it in one unit."""

    fact: Fact
    unit: str
    value: float
    problem: Problem | None


def check(text: str, facts: Sequence[Fact]) -> list[Remark]:
    """What a draft's prose claims and the facts do not; ``judge`` has the reading of it."""
    return [one for one in judge(text, facts) if isinstance(one, Remark)]


def judge(text: str, facts: Sequence[Fact]) -> list[Remark | Match]:
    """Every number of a draft's prose with the facts that it is, and what no fact bears out.

    That is: numbers that no fact has within their rounding, stale facts, facts of another device than the sentence
    names, devices without a fact, superlatives beside no fact.

    A sentence that names M, K x N, a batch B of decode, or the model or tokens of a forward pass is checked against
    facts of those only. ``<!-- fact ID -->`` in a sentence narrows its numbers of that unit to that fact,
    ``<!-- fact ID / ID -->`` to the quotient of two. Code is not read: quoted output is not the person's claim. A size
    that some problem of the facts has needs no unit.
    """
    known = {fact.id: fact for fact in facts}
    devices = _devices(facts)
    sizes = {size for fact in facts if (problem := _problem(fact.id)) for size in _sizes(problem)}
    found: list[Remark | Match] = []
    for sentence in prose.sentences(text, devices):
        found += _about(sentence, facts, known, devices, sizes)
    return found


def _about(
    sentence: Sentence, facts: Sequence[Fact], known: dict[str, Fact], devices: dict[str, str], sizes: set[int]
) -> Iterator[Remark | Match]:
    hosts = {devices.get(name, name.lower().replace(" ", "")): name for name in sentence.devices}
    matched = 0
    pinned, missing = _pinned(sentence, known)
    yield from (Remark(sentence.line, name, "is pinned and is no fact", "") for name in missing)
    readings = (
        [one for fact in facts for one in _readings(fact, sentence) if _fits(one, sentence)] if sentence.claims else []
    )
    for claim in sentence.claims:
        if not claim.unit and "." not in claim.words and round(claim.low + 0.5) in sizes:
            continue
        judged = _judge(claim, [one for one in pinned if one.unit == claim.unit] or readings, hosts)
        matched += isinstance(judged, Match)
        yield judged
    if sentence.superlatives and not matched and not sentence.pins:
        for line, word in sentence.superlatives:
            yield Remark(line, word, "stands beside no number that a fact has: give the number, or pin the fact", "")


def _judge(claim: Claim, readings: Sequence[_Known], hosts: dict[str, str]) -> Remark | Match:
    units = (claim.unit,) if claim.unit else _UNITLESS
    alike = [one for one in readings if one.unit in units]
    here = [one for one in alike if not hosts or one.fact.host in hosts]
    hits = [one for one in here if _within(claim, one.value)]
    if sound := [one for one in hits if not one.fact.stale]:
        return Match(claim.line, claim.words, tuple(_show(one) for one in sound))
    if hits:
        fact = hits[0].fact
        return Remark(
            claim.line, claim.words, f"is a stale fact: renew it on {fact.host} with `{fact.command}`", _show(hits[0])
        )
    elsewhere = [one for one in alike if _within(claim, one.value)]
    named = " or ".join(hosts.values())
    if hosts and not any(one.fact.host in hosts for one in readings):
        return Remark(
            claim.line, claim.words, f"is said of {named}, of which this draft has no fact", _nearest(claim, elsewhere)
        )
    if hosts and elsewhere:
        return Remark(claim.line, claim.words, f"is a fact of another device than {named}", _nearest(claim, elsewhere))
    what = "is no fact" if claim.unit else "has no unit, and is no fact"
    return Remark(claim.line, claim.words, what, _nearest(claim, here))


def _within(claim: Claim, value: float) -> bool:
    slack = 1e-9 * max(abs(claim.low), abs(claim.high))
    return claim.low - slack <= value <= claim.high + slack


def _nearest(claim: Claim, readings: Sequence[_Known]) -> str:
    middle = (claim.low + claim.high) / 2
    return _show(min(readings, key=lambda one: abs(one.value - middle))) if readings else ""


def _show(one: _Known) -> str:
    return f"{one.fact.id} = {one.value:.6g} {one.unit}"


def _readings(fact: Fact, sentence: Sentence) -> Iterator[_Known]:
    """The ways in which a sentence may state a fact."""
    if isinstance(fact.value, str):
        return
    problem = _problem(fact.id)
    yield (
        _Known(fact, "us", 1e3 * fact.value, problem)
        if fact.unit == "ms"
        else _Known(fact, fact.unit, fact.value, problem)
    )
    if fact.id.endswith("_fraction"):
        yield _Known(fact, "percent", 100 * fact.value, problem)
    elif fact.id.endswith(".speedup") and fact.value > 0:
        if _GAIN.search(sentence.words):
            yield _Known(fact, "percent", 100 * (fact.value - 1), problem)
        if _LOSS.search(sentence.words):
            yield _Known(fact, "percent", 100 * (1 - 1 / fact.value), problem)
        if _SLOWER.search(sentence.words):
            yield _Known(fact, "percent", 100 * (1 / fact.value - 1), problem)
            yield _Known(fact, "ratio", 1 / fact.value, problem)


def _pinned(sentence: Sentence, known: dict[str, Fact]) -> tuple[list[_Known], list[str]]:
    readings: list[_Known] = []
    missing = [name for pin in sentence.pins for name in pin if name and name not in known]
    for name, over in sentence.pins:
        if name in missing or over in missing:
            continue
        fact = known[name]
        if not over:
            readings += _readings(fact, sentence)
        elif isinstance(fact.value, float | int) and isinstance(known[over].value, float | int):
            stale = fact if fact.stale else known[over]
            readings.append(_Known(stale, "ratio", float(fact.value) / float(known[over].value), None))
    return readings, missing


def _fits(one: _Known, sentence: Sentence) -> bool:
    problem, batch, forward = one.problem, _BATCH.match(one.fact.id), _FORWARD.match(one.fact.id)
    if batch and sentence.batches and int(batch[1]) not in sentence.batches:
        return False
    if forward and sentence.tokens and int(forward["tokens"]) not in sentence.tokens:
        return False
    if forward and sentence.models and not prose.plain(forward["model"]).startswith(tuple(sentence.models)):
        return False
    if problem is None:
        return True
    if sentence.rows and problem.m not in sentence.rows:
        return False
    return not sentence.shapes or (problem.k, problem.n) in sentence.shapes


@cache
def _problem(fact_id: str) -> Problem | None:
    """Of a fact's id, whatever protocol, arm and value it is of."""
    parts = fact_id.split(".")
    if len(parts) < 4 or parts[0] not in ("small_m", "nax", "ncu", "peer"):
        return None
    for end in range(len(parts), 3, -1):
        try:
            return parse_problem(".".join(parts[2:end]))
        except ValueError:
            continue
    return None


def _sizes(problem: Problem) -> tuple[int, ...]:
    return problem.m, problem.n, problem.k, problem.bits, problem.group_size


def _devices(facts: Iterable[Fact]) -> dict[str, str]:
    """Name -> host: the machines of the two contributions, and the GPUs that facts name."""
    named = {product: host for host, product in HOSTS.items()} | _ALIASES
    named |= {
        str(fact.value): fact.host for fact in facts if fact.id.startswith("record.") and fact.id.endswith(".gpu")
    }
    return named | {_VENDOR.sub("", name): host for name, host in named.items()}
