"""The claim check: every number in a person's prose against the facts, within its own rounding."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from upstream_patch.draft import boasts, prose, rivals, stating, unmeasured
from upstream_patch.draft.comparing import Comparison, against, compare, of_another, rival, spans
from upstream_patch.draft.devices import Devices
from upstream_patch.draft.numbers import COUNTED, Number
from upstream_patch.draft.prose import Sentence
from upstream_patch.draft.reading import Context, Reading, Scope
from upstream_patch.draft.stating import Known
from upstream_patch.records.facts import Fact

_NOWHERE = Number(0, 0, "", "", 0.0, 0.0)
LONGEST = 200
"""Words of a sentence that is read; the time grows with their square."""
_UNITLESS = ("norm", "ulp")
_GOES = re.compile(r"(?:from|to)\b|->|\u2192", re.IGNORECASE)
_ERROR = re.compile(r"\b(?:errors?|norm|ulps?|accura\w+|deviat\w+|differ\w+|tolerance)\b", re.IGNORECASE)
_LARGEST = re.compile(
    r"\b(?:largest|biggest|highest|greatest|peak|best)\s(?:gains?|speed-?ups?|factors?|ratios?|improvements?)\b",
    re.IGNORECASE,
)
_IT = re.compile(r"\s*(?:It|This|That|They|Here)\b")
_ALL = re.compile(
    r"\b(?:both|each|every|all)\s(?:(?!of\b)\w+\s)?(?:models?|shapes?|sizes?|layers?|formats?|dtypes?|widths?|projections?"
    r"|matmuls?)\b",
    re.IGNORECASE,
)
_ACROSS = re.compile(r"\b(?:than|as|over|versus|vs\.?|against)\s+(?:on\s+)?(?:an?\s+|the\s+)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Remark:
    """One thing in the prose that no fact bears out."""

    line: int
    words: str
    what: str
    nearest: str
    """The nearest fact, as ``id = value unit``; empty where there is none to name."""
    stale: bool = False
    """There is such a fact, of a kernel that is not today's."""

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


def check(text: str, facts: Sequence[Fact], device: str = "") -> list[Remark]:
    """What a draft's prose claims and the facts do not; ``judge`` has the reading of it."""
    return [one for one in judge(text, facts, device) if isinstance(one, Remark)]


def judge(text: str, facts: Sequence[Fact], device: str = "") -> list[Remark | Match]:
    """Every number of a draft's prose with the facts that it is, and what no fact bears out.

    That is: numbers that no fact has within their rounding, stale facts, facts of another device, arm or direction than
    the words around the number name, devices without a fact, superlatives and comparisons beside no fact.

    A number is said of the device, M, K x N, B and format that its clause names, or else the nearest clause, the
    sentences before in its paragraph, the section's heading, and ``device`` (a host) where all of the draft is about
    one. In a table it is of what its column's header says, too, and in a list of what the sentence over it says.
    ``<!-- fact ID -->`` in a sentence narrows its numbers of that unit to that fact, ``<!-- fact ID / ID -->`` to the
    quotient of two. Code is not read, but for a number or a size between backticks: quoted output is no claim.

    Where words leave open whose a number is (another name beside it, a difference, one of several models), it is listed
    rather than passed: a person who knows it to be right pins it.
    """
    known = {fact.id: fact for fact in facts}
    facts = [*facts, *stating.totals(facts)]
    devices = Devices(facts)
    base: Context = {"device": (device,)} if device else {}
    sections: list[tuple[int, Context, str]] = [(0, base, "")]
    before, heard, subject = base, "", ""
    found: list[Remark | Match] = []
    for sentence in prose.sentences(text):
        words = sentence.text.split()
        if len(words) > LONGEST:
            what = f"begins a sentence of {len(words):,} words, too long to be read: break it up"
            found.append(Remark(sentence.line_of(0), words[0], what, ""))
            continue
        if sentence.opens:
            sections = sections[:1]
        if sentence.level:
            sections = [one for one in sections if one[0] < sentence.level] or sections[:1]
        if sentence.first or sentence.opens or sentence.level:
            before, heard, subject = sections[-1][1], sections[-1][2], ""
        heard = f"{heard}\n{sentence.text}"
        reading = Reading(sentence.text, devices, before)
        subject = subject if _IT.match(sentence.text) else ""
        found += _Judge(sentence, reading, heard, facts, known, subject).remarks()
        subject = compare(sentence.text, (0, len(sentence.text))).arm or subject
        before = reading.after()
        if sentence.level:
            sections.append((sentence.level, before, heard))
    return found


@dataclass(frozen=True)
class _Judge:
    """Of one sentence."""

    sentence: Sentence
    reading: Reading
    heard: str
    """It, and what stands before it in its paragraph and in the headings over it."""
    facts: Sequence[Fact]
    known: dict[str, Fact]
    subject: str
    """The arm that a pronoun at its begin stands for; empty where none does."""

    def remarks(self) -> Iterator[Remark | Match]:
        yield from (
            self._remark(0, name, "is pinned and is no fact")
            for pin in self.sentence.pins
            for name in pin
            if name and name not in self.known
        )
        judged = [self._number(number) for number in self.reading.numbers]
        yield from judged
        borne = [one for one, number in zip(judged, self.reading.numbers, strict=True) if isinstance(one, Match)]
        counted = any(
            isinstance(one, Match) and number.unit == "count"
            for one, number in zip(judged, self.reading.numbers, strict=True)
        )
        if not (self.sentence.pins and (borne or self._shown())):
            yield from self._boasts(bool(borne), counted)
        yield from self._devices()

    def _number(self, number: Number) -> Remark | Match:
        scope = self.reading.scope(number)
        text = self.sentence.text
        told = compare(text, self.reading.clause(number.start), self.reading.reach(number.start))
        told = replace(told, arm=told.arm or self.reading.moved(number) or self._meant())
        pinned = [one for one in stating.pinned(self.sentence.pins, self.known, told) if one.unit in _units(number)]
        if not pinned and self._across(number):
            what = "compares two devices: pin the quotient of their facts, <!-- fact ID / ID -->"
            return self._remark(number.start, number.words, what)
        if number.unit in ("ratio", "percent") and (name := rival(text, number.start)):
            return self._remark(number.start, number.words, f"is over {name}, of which this draft has no fact")
        said = text[self._begins(number.start) : self.reading.clause(number.start)[1]]
        if not pinned and (what := unmeasured.why(text, said, number, self.facts)):
            return self._remark(number.start, number.words, what)
        if not pinned and number.unit in unmeasured.SPEED and (name := self._beside(number.start)):
            what = f"stands beside {name}, of which this draft has no fact: say whose it is, or pin the fact"
            return self._remark(number.start, number.words, what)
        about = self.reading.whole(number)
        if pinned and not any(one.quotient or stating.bears(one.fact, about, told) for one in pinned):
            what = "is pinned to a fact of another problem or arm than it is said of"
            return self._remark(number.start, number.words, what, _show(pinned[0]))
        words = stating.spoken(self.heard)
        readings = pinned or [
            one
            for fact in self.facts
            if stating.fits(fact, scope, told, words)
            for one in stating.readings(fact, told)
            if self._alike(one, number)
        ]
        hosts = {self.reading.devices.host(name): name for name in scope.devices}
        if len(hosts) < 2 or any(one.quotient for one in pinned):
            return self._said_of(number, scope, told, readings, hosts)
        each = [self._said_of(number, scope, told, readings, {host: name}) for host, name in hosts.items()]
        return next((one for one in each if isinstance(one, Remark)), each[0])

    def _said_of(
        self,
        number: Number,
        scope: Scope,
        told: Comparison,
        readings: Sequence[Known],
        hosts: dict[str | None, str],
    ) -> Remark | Match:
        here = [one for one in readings if not hosts or one.fact.host in hosts]
        hits = [one for one in here if _within(number, one.value)]
        if sound := [one for one in hits if not one.fact.stale]:
            if number.bound and (past := stating.past(sound, here, number)):
                side = "largest" if number.bound == "most" else "smallest"
                return self._remark(number.start, number.words, f"is not the {side}", _show(past))
            if not (scope.named or number.bound or self.sentence.pins) and all(one.of_some for one in sound):
                what = "names neither M, K x N nor B: say of which it is, pin the fact, or say `up to`"
                return self._remark(number.start, number.words, what, _show(sound[0]))
            if scope.each and not (number.bound or self.sentence.pins) and (other := stating.uneven(sound, here)):
                return self._remark(number.start, number.words, "is not so at each M that is named", _show(other))
            if not self.sentence.pins and (most := self._largest(number, told, sound)):
                return self._remark(number.start, number.words, "is not the largest", _show(most))
            if not number.bound and not self.sentence.pins:
                if _ALL.search(self._clause(number)) and (other := stating.of_one(sound, here)):
                    return self._remark(number.start, number.words, "is not so of all that it is said of", _show(other))
                if "model" not in scope.sizes and (other := stating.other_model(sound, here)):
                    return self._remark(number.start, number.words, "is of one model: name it", _show(other))
            return Match(self.sentence.line_of(number.start), number.words, tuple(_show(one) for one in sound))
        if hits:
            fact = hits[0].fact
            what = f"is a stale fact: renew it on {fact.host} with `{fact.command}`"
            return self._remark(number.start, number.words, what, _show(hits[0]), stale=True)
        elsewhere = [one for one in readings if _within(number, one.value)]
        named = " or ".join(hosts.values())
        if hosts and not any(host in self.reading.devices.known for host in hosts):
            what = f"is said of {named}, of which this draft has no fact"
        elif hosts and elsewhere:
            what = f"is a fact of another device than {named}"
        elif hosts and not any(one.fact.host in hosts for one in readings):
            what = f"is said of {named}, of which this draft has no such fact"
        else:
            what = "is no fact" if number.unit else "has no unit, and is no fact"
        return self._remark(number.start, number.words, what, _nearest(number, elsewhere or here))

    def _shown(self) -> bool:
        """Whether words without a number stand beside a pinned fact of the problem and device that they name."""
        scope, told = self.reading.whole(_NOWHERE), compare(self.sentence.text, (0, len(self.sentence.text)))
        hosts = {self.reading.devices.host(name) for name in scope.devices}
        facts = [self.known[name] for name, over in self.sentence.pins if name in self.known and not over]
        there = {fact.host for fact in facts if stating.bears(fact, scope, told)}
        return scope.named and bool(there) and hosts <= there

    def _alike(self, one: Known, number: Number) -> bool:
        if not number.unit:
            return one.unit in _UNITLESS and bool(_ERROR.search(self.sentence.text))
        if number.noun and one.unit == "count":
            return one.fact.id.rpartition(".")[2] in COUNTED[number.noun]
        return one.unit == number.unit

    def _meant(self) -> str:
        """The arm of the sentence before, where this one goes on about it."""
        return "" if spans(self.sentence.text) else self.subject

    def _clause(self, number: Number) -> str:
        return self.sentence.text[slice(*self.reading.clause(number.start))]

    def _begins(self, place: int) -> int:
        """Where what the clause there says begins: ``X goes from A to B`` says it all of X."""
        text, start = self.sentence.text, self.reading.clause(place)[0]
        while start > 0 and _GOES.match(text, start):
            start = self.reading.clause(start - 1)[0]
        return start

    def _largest(self, number: Number, told: Comparison, sound: Sequence[Known]) -> Known | None:
        """A larger ratio of another problem, where it is called the largest gain there is."""
        if number.unit != "ratio" or not _LARGEST.search(self.sentence.text):
            return None
        any_ = Scope((), {})
        facts = (fact for fact in self.facts if stating.fits(fact, any_, told, stating.spoken(self.heard)))
        others = [one for fact in facts for one in stating.readings(fact, told) if one.unit == "ratio"]
        return stating.past(sound, others, replace(number, bound="most"))

    def _beside(self, place: int) -> str:
        """The other library or kernel that the clause there, or what it is compared with, names; empty without one."""
        start, end = self._begins(place), self.reading.reach(place)
        arms = [span for *span, _ in spans(self.sentence.text)]
        found = [
            one
            for one in rivals.names(self.reading.named)
            if not any(first < one.end() and one.start() < last for first, last in arms)
        ]
        here = [one for one in found if start <= one.start() < end]
        if not here and not compare(self.sentence.text, (start, end)).other:
            here = [one for one in found if against(self.sentence.text, one.start())]
        return next((one.group() for one in here), "")

    def _across(self, number: Number) -> bool:
        """Whether a ratio is of one device to another."""
        return number.unit in ("ratio", "percent") and any(
            one.kind == "device"
            and one.start > number.start
            and _ACROSS.search(self.sentence.text[max(0, one.start - 60) : one.start])
            for one in self.reading.mentions
        )

    def _boasts(self, borne: bool, counted: bool) -> Iterator[Remark | Match]:
        text = self.sentence.text
        what = "stands beside no number that a fact has: give the number, or name M and pin the fact"
        if not borne:
            yield from (self._remark(match.start(), match.group(), what) for match in boasts.EXTREME.finditer(text))
        absolute = [] if counted else [one for one in boasts.ABSOLUTE.finditer(text) if not boasts.listed(text, one)]
        checked = any(
            name.startswith(("correctness.", "sanitizer.")) for name, _ in self.sentence.pins if name in self.known
        )
        for match in absolute:
            if checked and boasts.OF_RESULTS.search(match.group()):
                continue
            yield self._remark(
                match.start(), match.group(), "is said of all: say of which, and pin the fact that shows it"
            )
        for match in [] if absolute or not boasts.stated(text) else boasts.COMPARED.finditer(text):
            (start, end), reach = self.reading.clause(match.start()), self.reading.reach(match.start())
            if not any(
                start <= number.start < (reach if number.unit in ("ratio", "percent") else end)
                for number in self.reading.numbers
            ):
                yield self._verdicts(match)

    def _verdicts(self, match: re.Match[str]) -> Remark | Match:
        """A comparison without a number, against the verdicts of all the problems that it is said of."""
        number = Number(*match.span(), match.group(), "", 0.0, 0.0)
        text, clause, reach = self.sentence.text, self.reading.clause(match.start()), self.reading.reach(match.start())
        scope, told = self.reading.scope(number), compare(text, clause, reach)
        hosts = {self.reading.devices.host(name) for name in scope.devices}
        if name := rival(text, match.start()) or self._beside(match.start()):
            return self._remark(match.start(), match.group(), f"is over {name}, of which this draft has no fact")
        equal = bool(boasts.EQUAL.search(match.group())) and not told.direction and of_another(text)
        if not scope.named or not (told.direction or equal):
            what = "is a comparison without a number: give it, or say at which M and K x N"
            return self._remark(match.start(), match.group(), what)
        found = [
            one
            for one in stating.verdicts(self.facts, scope, told)
            if (not hosts or one.host in hosts) and not one.stale
        ]
        wanted = "SAME" if equal else "FASTER" if told.direction > 0 else "SLOWER"
        if wrong := [one for one in found if one.value != wanted]:
            shown = f"{wrong[0].id} = {wrong[0].value}"
            return self._remark(match.start(), match.group(), "is not so of all that it is said of", shown)
        if not found:
            return self._remark(match.start(), match.group(), "is said of problems of which there is no verdict")
        told_by = tuple(f"{one.id} = {one.value}" for one in found)
        return Match(self.sentence.line_of(match.start()), match.group(), told_by)

    def _devices(self) -> Iterator[Remark]:
        """Devices without a fact that a sentence without a number for them names as if they had been run."""
        devices, text = self.reading.devices, self.sentence.text
        numbered = {name for number in self.reading.numbers for name in self.reading.scope(number).devices}
        for one in self.reading.mentions:
            if one.kind != "device" or not isinstance(one.said, tuple):
                continue
            name = one.said[0]
            if (
                name in numbered
                or devices.broad(name)
                or devices.host(name) in devices.known
                or boasts.unseen(text, self._behind(one.end))
            ):
                continue
            yield self._remark(one.start, name, "is a device of which this draft has no fact: say so, or leave it out")

    def _behind(self, place: int) -> list[str]:
        """The clauses after the one at ``place``, up to the next device."""
        then = [one.start for one in self.reading.mentions if one.kind == "device" and one.start >= place]
        ends = min(then, default=len(self.sentence.text))
        return [self.sentence.text[start:end] for start, end in self.reading.clauses if place <= start and end <= ends]

    def _remark(self, place: int, words: str, what: str, nearest: str = "", stale: bool = False) -> Remark:
        return Remark(self.sentence.line_of(place), words, what, nearest, stale)


def _units(number: Number) -> tuple[str, ...]:
    """Of the facts that it may be pinned to: one without a unit may count, or be an error."""
    return (number.unit,) if number.unit else ("count", *_UNITLESS)


def _within(number: Number, value: float) -> bool:
    slack = 1e-9 * max(abs(number.low), abs(number.high))
    return number.low - slack <= value <= number.high + slack


def _nearest(number: Number, readings: Sequence[Known]) -> str:
    middle = (number.low + number.high) / 2
    return _show(min(readings, key=lambda one: abs(one.value - middle))) if readings else ""


def _show(one: Known) -> str:
    return f"{one.fact.id} = {one.value:.6g} {one.unit}"
