"""How a fact may be stated: in which units, which way round, and of which problems."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from upstream_patch.draft.comparing import Comparison
from upstream_patch.draft.numbers import Number
from upstream_patch.draft.reading import SHAPED, Scope
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records.facts import Fact

_BATCH = re.compile(r"decode\..+\.B(\d+)\.")
_SPEEDUP = re.compile(r"speedup(?:_over_folded)?(?:_low|_high)?$")
_FRACTION = re.compile(r"_(?:fraction|share)$")
_WORDS: Mapping[str, re.Pattern[str]] = {
    "probe": re.compile(r"\b(?:probe|read\w*|bandwidth|memory|floor|empty|launch\w*)\b", re.IGNORECASE),
    "record": re.compile(r"\b(?:probe|read\w*|bandwidth|memory|floor|empty|launch\w*)\b", re.IGNORECASE),
    "host": re.compile(r"\b(?:hosts?(?:'s)?|calls?|Python|build\w*|enqueu\w*|CPU|overhead)\b", re.IGNORECASE),
    "peer": re.compile(
        r"\b(?:PyTorch(?:'s)?|torch|tinygemm|prepacked|peers?|other (?:kernel|library))\b", re.IGNORECASE
    ),
    "hot": re.compile(r"\b(?:hot|warm|cached?|L2|resident)\b", re.IGNORECASE),
    "chain": re.compile(
        r"\b(?:chain\w*|depend\w*|wait\w*|serial\w*|in turn|one by|after the other|decod\w*)\b",
        re.IGNORECASE,
    ),
    **dict.fromkeys(("b1k", "1mk"), re.compile(r"\b(?:decod\w*|batch\w*|clients?|sequences?|B\s?=)|\[", re.IGNORECASE)),
    "share": re.compile(
        r"\b(?:probe|bandwidth|peak|roof\w*|memory|DRAM|shares?|fraction|part of|spends?|spent|of a step|matmuls?)\b",
        re.IGNORECASE,
    ),
}
"""What a text must speak of to state a fact of no problem, another library, another protocol or layout, or a share."""
_ARM = re.compile(r"\.(stock|ours|folded|peer)(?=[._])")


@dataclass(frozen=True)
class Known:
    """A fact as a sentence could state it: one reading of it in one unit."""

    fact: Fact
    unit: str
    value: float

    @property
    def problem(self) -> Problem | None:
        return _placed(self.fact.id)[0]

    @property
    def batch(self) -> int | None:
        match = _BATCH.match(self.fact.id)
        return int(match[1]) if match else None

    @property
    def kind(self) -> str:
        """Alike of facts that differ in their problem or batch only."""
        return re.sub(r"\.B\d+\.", ".", _placed(self.fact.id)[1])


def readings(fact: Fact, told: Comparison) -> Iterator[Known]:
    """The ways in which a sentence may state a fact."""
    if isinstance(fact.value, str):
        return
    value = float(fact.value)
    if _SPEEDUP.search(fact.id) and value > 0:
        for unit, one in _speedup(value, told):
            yield Known(fact, unit, one)
        return
    yield Known(fact, "us", 1e3 * value) if fact.unit == "ms" else Known(fact, fact.unit, value)
    if _FRACTION.search(fact.id):
        yield Known(fact, "percent", 100 * value)


def _speedup(value: float, told: Comparison) -> Iterator[tuple[str, float]]:
    """Of ours over the other: the same way round as the sentence has it."""
    better, worse, neither = told.direction > 0, told.direction < 0, not (told.gain or told.loss)
    if better or not told.direction:
        yield "ratio", value
        if told.of_time:
            yield "ratio", 1 / value
    if told.share:
        yield "percent", 100 / value
    if worse:
        yield "ratio", 1 / value
        if value < 1:
            yield "ratio", value
    if better and (told.gain or neither):
        yield "percent", 100 * (value - 1)
    if better and (told.loss or neither):
        yield "percent", 100 * (1 - 1 / value)
    if worse:
        yield "percent", 100 * (1 / value - 1)
        yield "percent", 100 * (1 - value)


def pinned(pins: Sequence[tuple[str, str]], known: Mapping[str, Fact], told: Comparison) -> list[Known]:
    """Of the facts that a person pinned; what is no fact is left out."""
    found: list[Known] = []
    for name, over in pins:
        fact, under = known.get(name), known.get(over)
        if fact and not over:
            found += readings(fact, told)
        elif fact and under and not isinstance(fact.value, str) and not isinstance(under.value, str) and under.value:
            found.append(Known(fact if fact.stale else under, "ratio", float(fact.value) / float(under.value)))
    return found


def totals(facts: Sequence[Fact]) -> list[Fact]:
    """Counts over all dtypes, and over all tools, of a host."""
    parts: dict[tuple[str, str, str], list[Fact]] = {}
    for fact in facts:
        family, _, rest = fact.id.partition(".")
        if family in ("correctness", "sanitizer") and rest.count(".") == 2 and fact.unit == "count":
            parts.setdefault((family, fact.host, fact.id.rpartition(".")[2]), []).append(fact)
    return [
        replace(
            alike[0],
            id=f"{family}.{host}.*.{name}",
            value=sum(float(fact.value) for fact in alike),
            stale=any(fact.stale for fact in alike),
        )
        for (family, host, name), alike in parts.items()
        if len(alike) > 1
    ]


def fits(one: Known, scope: Scope, told: Comparison, text: str) -> bool:
    """Whether a fact is about what a number is said of, of its arm, and of what the sentence speaks of."""
    if any(not _WORDS[about].search(text) for about in _abouts(one.fact.id)):
        return False
    arm = _ARM.search(one.fact.id)
    if arm and told.arm and arm[1] != told.arm and not _SPEEDUP.search(one.fact.id):
        return False
    if _SPEEDUP.search(one.fact.id) and told.other and told.other != _other(one.fact.id):
        return False
    return _of(one, scope)


def _abouts(fact_id: str) -> Iterator[str]:
    """What sets a fact apart from the plain times: its family, protocol, layout, or that it is a share."""
    _, rest = _placed(fact_id)
    parts = rest.split(".")
    yield from (part for part in (parts[0], *parts[2:-1]) if part in _WORDS)
    if _FRACTION.search(fact_id):
        yield "share"


def _other(fact_id: str) -> str:
    """What a speedup is over."""
    if fact_id.startswith("peer."):
        return "peer"
    return "folded" if "_over_folded" in fact_id else "stock"


def _of(one: Known, scope: Scope) -> bool:
    sizes = scope.sizes
    if one.batch is not None:
        if "batch" not in sizes and any(kind in sizes for kind in SHAPED):
            return False
        return one.batch in sizes.get("batch", sizes.get("m", {one.batch}))
    problem = one.problem
    if problem is None:
        return True
    rows = sizes.get("m", sizes.get("batch"))
    if rows is not None and problem.m not in rows:
        return False
    if "shape" in sizes and (problem.k, problem.n) not in sizes["shape"]:
        return False
    return all(
        getattr(problem, kind) in sizes[kind]
        for kind in ("k", "n", "bits", "group_size", "dtype", "mode")
        if kind in sizes
    )


def past(hits: Sequence[Known], others: Sequence[Known], number: Number) -> Known | None:
    """A fact that is beyond what is said to be the largest, or smallest, of its kind; None where it is."""
    for hit in hits:
        alike = [one for one in others if one.kind == hit.kind]
        beyond = [
            one for one in alike if (one.value > number.high if number.bound == "most" else one.value < number.low)
        ]
        if not beyond:
            return None
    return beyond[0]


def verdicts(facts: Sequence[Fact], scope: Scope, told: Comparison) -> list[Known]:
    """Verdicts of the plain protocol and layout, and of decode, that a comparison is said of."""
    found = []
    for fact in facts:
        one = Known(fact, "text", 0.0)
        plain = one.problem and fact.id.endswith(f".{one.problem.id}.verdict") and one.problem.layout == "mk"
        decode = one.batch is not None and fact.id.endswith(".speedup_verdict") and "batch" in scope.sizes
        if (plain or decode) and _other(fact.id) == (told.other or "stock") and _of(one, scope):
            found.append(one)
    return found


@cache
def _placed(fact_id: str) -> tuple[Problem | None, str]:
    """The problem of a fact's id, whatever protocol, arm and value it is of, and the id without it."""
    parts = fact_id.split(".")
    if len(parts) < 4 or parts[0] not in ("small_m", "nax", "ncu", "peer"):
        return None, fact_id
    for end in range(len(parts), 3, -1):
        try:
            problem = parse_problem(".".join(parts[2:end]))
        except ValueError:
            continue
        return problem, ".".join((*parts[:2], problem.layout, *parts[end:]))
    return None, fact_id
