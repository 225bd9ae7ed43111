"""How a fact may be stated: in which units, which way round, of which problems, and in what words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from upstream_patch.draft.comparing import Comparison
from upstream_patch.draft.mentions import plain
from upstream_patch.draft.numbers import Number
from upstream_patch.draft.reading import SHAPED, Scope
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records.facts import Fact

_BATCH = re.compile(r"(?:decode\.\w+\.(?P<model>.+)\.B|wheel\.\w+\.decode\.b)(?P<batch>\d+)\.")
_FORWARD = re.compile(r"forward\.\w+\.(?P<model>.+)\.T(?P<tokens>\d+)\.")
_ONLY = ("hot", "chain")
"""The protocol of all rows of the staged Metal kernels: there it goes without saying."""
_SPEEDUP = re.compile(r"speedup(?:_over_folded)?(?:_low|_high)?$")
_FRACTION = re.compile(r"_(?:fraction|share)$")
_ARM = re.compile(r"\.(?:(?P<arm>stock|ours|folded|peer)(?=[._])|(?P<delivery>(?:wheel|runtime)_(?!to_)))")
"""Both deliveries of our kernel are ours."""
_DELIVERIES = re.compile(r"[._]wheel_to_runtime")
_NEEDS = (
    ("share", _FRACTION),
    ("delivery", _DELIVERIES),
    ("folded", re.compile(r"[._](?:over_)?folded(?:[._]|$)")),
    ("kernels", re.compile(r"\.(?:\w+_)?(?:matmul|trace)[._]")),
    ("generator", re.compile(r"_generator_")),
    ("packed", re.compile(r"\.packed_bytes$")),
    ("host", re.compile(r"^decode\..*_host_ms$")),
)
"""What a fact is of that its text must speak of, by its id."""
_READ = r"\b(?:probe|read\w*|bandwidth|memory|floor|empty|launch\w*)\b"
_TOGETHER = r"\b(?:decod\w*|batch\w*|clients?|sequences?|B\s?=)|\["
_WORDS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(words, re.IGNORECASE)
    for name, words in {
        "probe": _READ,
        "record": _READ,
        "host": r"\b(?:hosts?(?:'s)?|calls?|Python|build\w*|enqueu\w*|CPU|overhead)\b",
        "peer": r"\b(?:PyTorch(?:'s)?|torch|tinygemm|prepacked|peers?|other (?:kernel|library))\b",
        "hot": r"\b(?:hot|warm|cached?|L2|resident)\b",
        "chain": r"\b(?:chain\w*|depend\w*|wait\w*|serial\w*|in turn|one (?:after|by)|after the other|decod\w*)\b",
        "b1k": _TOGETHER,
        "1mk": _TOGETHER,
        "folded": r"\bfold\w*|\bbatched call|\bone call\b",
        "kernels": r"\b(?:matmuls?|matri\w+|multiplications?|projections?|linear layers?|GEMMs?|kernels?|trac\w+"
        r"|profil\w+|launch\w*|spen[dt]\w*)\b",
        "packed": r"\b(?:pack\w*|stored?|hold\w*|size|large)\b",
        "probed": r"\b(?:probe\w*|floor|empty)\b",
        "generator": r"\b(?:generat\w+|mlx[-_]lm|whole loop)\b",
        "whole": r"\b(?:end[- ]to[- ]end|e2e|whole[- ]model|full[- ]model)\b",
        "delivery": r"\b(?:runtime|deliver\w*)\b",
        "share": r"\b(?:probe|bandwidth|peak|roof\w*|memory|DRAM|shares?|frac\w*|part of|spen[dt]s?|a step|matmuls?)\b",
    }.items()
}
"""What a text must speak of to state a fact of no problem, another library, another protocol or layout, our two
deliveries, or a share; and ``whole``, of which no problem's fact is."""


@dataclass(frozen=True)
class _Place:
    """What a fact's id says."""

    problem: Problem | None
    batch: int | None
    model: str
    """Of a decode, as ``mentions.plain`` has it; empty where the record does not say."""
    forward: tuple[str, int] | None
    """Model, as ``mentions.plain`` has it, and tokens of a forward pass."""
    arm: str
    other: str
    """What a speedup is over; empty of all else."""
    kind: str
    """Alike of facts that differ in their problem or batch only."""
    needs: frozenset[str]
    """Of ``_WORDS``."""


@dataclass(frozen=True)
class Known:
    """A fact as a sentence could state it: one reading of it in one unit."""

    fact: Fact
    unit: str
    value: float
    quotient: bool = False
    """Of two facts, which may be of two problems, arms or devices."""

    @property
    def of_some(self) -> bool:
        """It is of one problem, or of one number of clients."""
        place = _place(self.fact.id)
        return place.problem is not None or place.batch is not None


def readings(fact: Fact, told: Comparison) -> Iterator[Known]:
    """The ways in which a sentence may state a fact."""
    if isinstance(fact.value, str):
        return
    value = float(fact.value)
    if _place(fact.id).other and value > 0:
        for unit, one in _speedup(value, told):
            yield Known(fact, unit, one)
        return
    yield Known(fact, "us", 1e3 * value) if fact.unit == "ms" else Known(fact, fact.unit, value)
    if "share" in _place(fact.id).needs:
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
            quotient = float(fact.value) / float(under.value)
            either = fact if fact.stale else under
            found.append(Known(either, "ratio", quotient, True))
            if not (told.loss if quotient >= 1 else told.gain):
                found.append(Known(either, "percent", 100 * abs(quotient - 1), True))
            if told.share:
                found.append(Known(either, "percent", 100 * quotient, True))
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


def spoken(text: str) -> frozenset[str]:
    """Which of the special facts a text speaks of."""
    return frozenset(name for name, pattern in _WORDS.items() if pattern.search(text))


def fits(fact: Fact, scope: Scope, told: Comparison, words: frozenset[str]) -> bool:
    """Whether a fact is about what a number is said of, of its arm, and of what the text speaks of (``spoken``)."""
    place = _place(fact.id)
    if place.problem is not None and "whole" in words:
        return False
    if scope.named and fact.id.startswith(("probe.", "record.")) and "probed" not in words:
        return False
    return place.needs <= words and bears(fact, scope, told)


def bears(fact: Fact, scope: Scope, told: Comparison) -> bool:
    """Whether a fact that a person pinned is about what a number is said of, and of its arm."""
    place = _place(fact.id)
    if place.other and told.other not in ("", place.other):
        return False
    if place.arm and told.arm not in ("", place.arm) and not place.other:
        return False
    return _of(place, scope)


def _of(place: _Place, scope: Scope) -> bool:
    sizes, problem = scope.sizes, place.problem
    if place.batch is not None:
        if "batch" not in sizes and any(kind in sizes for kind in SHAPED):
            return False
        if place.model and not _is_model(place.model, sizes):
            return False
        return place.batch in sizes.get("batch", sizes.get("m", {place.batch}))
    if place.forward is not None:
        model, tokens = place.forward
        return (
            _is_model(model, sizes)
            and ("tokens" in sizes or not sizes.keys() & {"m", *SHAPED})
            and tokens in sizes.get("tokens", {tokens})
        )
    if problem is None:
        return True
    if "tokens" in sizes and not sizes.keys() & {"m", *SHAPED}:
        return False
    if sizes.keys() & {"batch", "model"} and not sizes.keys() & {"m", *SHAPED}:
        return False
    rows = sizes.get("m", sizes.get("batch"))
    if rows is not None and problem.m not in rows:
        return False
    if "shape" in sizes and (problem.k, problem.n) not in sizes["shape"]:
        return False
    kinds = (kind for kind in ("k", "n", "bits", "group_size", "dtype", "mode") if kind in sizes)
    return all(getattr(problem, kind) in sizes[kind] for kind in kinds)


def _is_model(model: str, sizes: Mapping[str, frozenset[object]]) -> bool:
    named = [str(name) for name in sizes.get("model", ())]
    return not named or any(model.startswith(name) or name.startswith(model) for name in named)


def past(hits: Sequence[Known], others: Sequence[Known], number: Number) -> Known | None:
    """A fact that is beyond what is said to be the largest, or smallest, of its kind; None where it is."""
    beyond = None
    for hit in hits:
        alike = [one for one in others if _place(one.fact.id).kind == _place(hit.fact.id).kind]
        most = number.bound == "most"
        beyond = next((one for one in alike if (one.value > number.high if most else one.value < number.low)), None)
        if beyond is None:
            return None
    return beyond


def uneven(hits: Sequence[Known], others: Sequence[Known]) -> Known | None:
    """A fact of other rows than any hit: what is said of several M is true of some only. None where it is of all."""
    found = None
    for hit in hits:
        kind = _place(hit.fact.id).kind
        there = {_rows(one) for one in hits if _place(one.fact.id).kind == kind}
        alike = (one for one in others if _place(one.fact.id).kind == kind)
        found = next((one for one in alike if _rows(one) not in there), None)
        if found is None:
            return None
    return found


def of_one(hits: Sequence[Known], others: Sequence[Known]) -> Known | None:
    """A fact of another problem or model than any hit, of the kind of each: it is so of some only."""
    found = None
    for kind in {_place(hit.fact.id).kind for hit in hits}:
        there = {hit.fact.id for hit in hits}
        alike = (one for one in others if _place(one.fact.id).kind == kind)
        found = next((one for one in alike if one.fact.id not in there), None)
        if found is None:
            return None
    return found


def other_model(hits: Sequence[Known], others: Sequence[Known]) -> Known | None:
    """A fact of a decode of another model than the hits are of; None where they are of all, or of none."""
    models = {_place(hit.fact.id).model for hit in hits}
    return (
        None if "" in models else next((one for one in others if _place(one.fact.id).model not in {*models, ""}), None)
    )


def _rows(one: Known) -> int | None:
    problem = _place(one.fact.id).problem
    return problem.m if problem else None


def verdicts(facts: Sequence[Fact], scope: Scope, told: Comparison) -> list[Fact]:
    """Verdicts of the plain protocol and layout, and of decode, that a comparison is said of."""
    found = []
    for fact in facts:
        place = _place(fact.id)
        only = ".hot.chain" if fact.id.startswith("nax.") else ""
        ends = place.problem and f".{place.problem.id}{only}.verdict"
        usual = place.problem and fact.id.endswith(str(ends)) and place.problem.layout == "mk"
        decode = place.batch is not None and fact.id.endswith(".speedup_verdict") and "batch" in scope.sizes
        other = "peer" if fact.id.startswith("peer.") else "stock"
        if (usual or decode) and other == (told.other or "stock") and _of(place, scope):
            found.append(fact)
    return found


@cache
def _place(fact_id: str) -> _Place:
    problem, rest = _problem(fact_id)
    batch, arm, parts = _BATCH.match(fact_id), _ARM.search(fact_id), rest.split(".")
    forward = _FORWARD.match(fact_id)
    spoken = frozenset(_ONLY if parts[0] == "nax" else ())
    also = [name for name, of in _NEEDS if of.search(fact_id)]
    other = ("folded" if "_over_folded" in fact_id else "stock") if _SPEEDUP.search(fact_id) else ""
    return _Place(
        problem=problem,
        batch=int(batch["batch"]) if batch else None,
        model=plain(batch["model"] or "") if batch else "",
        forward=(plain(forward["model"]), int(forward["tokens"])) if forward else None,
        arm=(arm["arm"] or "ours") if arm else "",
        other="peer" if other and parts[0] == "peer" else other,
        kind=re.sub(r"\.[BTb]\d+\.", ".", rest),
        needs=frozenset({*parts[:1], *parts[2:-1], *also}) & _WORDS.keys() - spoken,
    )


def _problem(fact_id: str) -> tuple[Problem | None, str]:
    """The problem of a fact's id, whatever protocol, arm and value it is of, and the id with its layout alone."""
    parts = fact_id.split(".")
    if len(parts) < 4 or parts[0] not in ("small_m", "nax", "ncu", "peer", "wheel"):
        return None, fact_id
    for end in range(len(parts), 3, -1):
        try:
            problem = parse_problem(".".join(parts[2:end]))
        except ValueError:
            continue
        return problem, ".".join((*parts[:2], problem.layout, *parts[end:]))
    return None, fact_id
