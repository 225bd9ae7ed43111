"""What a sentence is about: which device, rows, shape and format each of its numbers is said of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from upstream_patch.draft import comparing
from upstream_patch.draft.devices import Devices
from upstream_patch.draft.mentions import ONE, Mention, integer, settled
from upstream_patch.draft.numbers import UNIT, Number, numbers

_BREAK = re.compile(
    r"[:;\u2014]|,(?!\d)|\s[-\u2013]+\s|\b(?:and|but|or|while|whereas|where|versus|vs\.?|against|compared|than"
    r"|instead|rather"
    r"|yet|although|though|from|(?<!up\s)(?<!used\s)to|after|before)\b|[()|]|->|\u2192",
    re.IGNORECASE,
)
_JOINED = re.compile(r"\s*(?:,|/|&|and|or|as well as|,\s*and)\s*(?:(?:on|both|an?|the)\s+)*", re.IGNORECASE)
_FROM = re.compile(r"\bfrom\s(?:about\s|~|some\s)?$", re.IGNORECASE)
_TO = re.compile(rf"\s*(?:{UNIT})?\s*(?:to|down to|up to)\s(?:about\s|~|some\s|only\s|just\s)?", re.IGNORECASE)
_BECOMES = re.compile(rf"\s*(?:{UNIT})?,?\s*(?:becom\w+|became|turns?\sinto|->|\u2192)\s*", re.IGNORECASE)
_INSTEAD = re.compile(
    rf"\s*(?:{UNIT})?,?\s*(?:instead\sof|rather\sthan|against|down\sfrom|vs\.?|versus)\s*", re.IGNORECASE
)
_PROTOCOL = re.compile(r"\b(?:hot|cold|warm|chain\w*|runs?|range\w*|spread\w*|lies|between)\b", re.IGNORECASE)
SHAPED = ("shape", "k", "n")
CARRIED = ("device", "m", "batch", *SHAPED)
"""Kinds of mention that hold for the sentences after."""


Context = Mapping[str, frozenset[object] | tuple[str, ...]]


@dataclass(frozen=True)
class Scope:
    """What one number is said of."""

    devices: tuple[str, ...]
    """As they are written: it holds on each of them; none is any."""
    sizes: Mapping[str, frozenset[object]]
    each: bool = False
    """It is one number for all of the M that the sentence names."""

    @property
    def named(self) -> bool:
        """Whether it says which problem, or how many at once."""
        return any(kind in self.sizes for kind in ("m", "batch", *SHAPED))


@dataclass(frozen=True)
class Reading:
    """A sentence with its numbers, what they are said of, and its clauses."""

    text: str
    devices: Devices
    before: Context = field(default_factory=dict)
    """What the sentences before it, its section and its document are about."""

    @cached_property
    def _settled(self) -> tuple[str, str, tuple[Mention, ...]]:
        return settled(self.text, self.devices)

    @property
    def named(self) -> str:
        """The text without the names of devices and models."""
        return self._settled[1]

    @property
    def mentions(self) -> tuple[Mention, ...]:
        return self._settled[2]

    @cached_property
    def numbers(self) -> list[Number]:
        return numbers(self._settled[0])

    @cached_property
    def clauses(self) -> list[tuple[int, int]]:
        """Parts of the sentence that stand for themselves."""
        whole = [(one.start, one.end) for one in self.numbers] + [(one.start, one.end) for one in self.mentions]
        for run in {one.run for one in self.numbers}:
            alike = [one for one in self.numbers if one.run == run]
            whole.append((alike[0].start, alike[-1].end))
        whole += comparing.pairs(self.text)
        whole += [(group[0].start, group[-1].end) for kind in ("device", "shape") for group in self._groups(kind)]
        cuts = [
            match.start()
            for match in _BREAK.finditer(self.text)
            if not any(start < match.end() and match.start() < end for start, end in whole) and self._cuts(match)
        ]
        return list(zip([0, *cuts], [*cuts, len(self.text)], strict=True))

    def _cuts(self, match: re.Match[str]) -> bool:
        """What is in brackets belongs to what is before them, unless both have a number; ``before`` and ``after``
        behind a number to that."""
        if match.group() == ":":
            since = max((stop.end() for stop in re.finditer(r"[,;.]\s", self.text[: match.start()])), default=0)
            return any(since <= one.start < match.start() for one in self.numbers)
        if match.group().lower() in ("before", "after"):
            return not any(place == match.start() for place, _, _ in comparing.spans(self.text))
        if match.group() not in "()":
            return True
        opened = match.start() if match.group() == "(" else self.text.rfind("(", 0, match.start())
        closed = self.text.find(")", opened)
        inside = any(opened < one.start < closed for one in self.numbers)
        ahead = (
            self.text[max(map(self.text[:opened].rfind, (",", ";", " and ")), default=0) : opened] if opened > 0 else ""
        )
        begins = opened - len(ahead)
        return inside and any(begins <= one.start < opened for one in self.numbers)

    def clause(self, place: int) -> tuple[int, int]:
        return next(span for span in reversed(self.clauses) if span[0] <= place)

    def reach(self, place: int) -> int:
        """Where the clause at ``place``, with those behind it that say what it is compared with, ends."""
        at = self.clauses.index(self.clause(place))
        end = self.clauses[at][1]
        for start, then in self.clauses[at + 1 :]:
            if not comparing.contrasts(self.text, start):
                break
            end = then
        return end

    def scope(self, number: Number) -> Scope:
        sizes: dict[str, frozenset[object]] = {}
        for kinds in (
            ("m",),
            ("batch",),
            ("tokens",),
            ("model",),
            SHAPED,
            ("bits",),
            ("group_size",),
            ("dtype",),
            ("mode",),
        ):
            near = self._near(number, kinds)
            if near and kinds == SHAPED and near[0].kind != "shape":  # K and N may stand in two clauses
                near = [one for kind in ("k", "n") for one in self._near(number, (kind,))]
            for one in near:
                sizes[one.kind] = sizes.get(one.kind, frozenset()) | frozenset(one.said)
            if not any(kind in sizes for kind in kinds):
                sizes |= {kind: frozenset(self.before[kind]) for kind in kinds if kind in self.before}
        sizes |= self._paired(number)
        alone = sum(one.unit == number.unit for one in self.numbers) == 1
        return Scope(self._device(number), sizes, each=alone and bool(self._near(number, ("m",))))

    def whole(self, number: Number) -> Scope:
        """What the whole sentence is about, whichever of its clauses a number stands in."""
        sizes: dict[str, frozenset[object]] = {}
        for one in self.mentions:
            if one.kind != "device":
                sizes[one.kind] = sizes.get(one.kind, frozenset()) | frozenset(one.said)
        before = {kind: frozenset(said) for kind, said in self.before.items() if kind != "device"}
        return Scope(self._device(number), sizes or before)

    def moved(self, number: Number) -> str:
        """The arm of a number in ``from X to Y`` or ``Y instead of X`` at one M or B, where neither says its own and
        nothing else is said to change: else none."""
        sizes = self.whole(number).sizes
        counts = [len(sizes[kind]) for kind in ("m", "batch", *SHAPED) if kind in sizes]
        if not sizes.keys() & {"m", "batch"} or max(counts) > 1 or _PROTOCOL.search(self.text):
            return ""
        for one, then in pairwise(self.numbers):
            if one.unit != then.unit or number not in (one, then):
                continue
            between = self.text[one.end : then.start]
            moves = (_FROM.search(self.text[: one.start]) and _TO.fullmatch(between)) or _BECOMES.fullmatch(between)
            if moves and not comparing.of_another(self.text):
                return "stock" if number == one else "ours"
            turned = re.search(r"\bto\s$", self.text[: one.start]) and re.fullmatch(rf"\s*(?:{UNIT})?\sfrom\s", between)
            if turned and not comparing.of_another(self.text):
                return "ours" if number == one else "stock"
            if _INSTEAD.fullmatch(between):
                told = [comparing.compare(self.text, self.clause(each.start)) for each in (one, then)]
                if told[0].arm in ("", "ours") and not told[1].arm:
                    return "ours" if number == one else told[0].other or "stock"
        return ""

    def _paired(self, number: Number) -> dict[str, frozenset[object]]:
        """Of numbers that stand in a row beside as many M, bits or shapes, what is this number's; else nothing."""
        alike = [one for one in self.numbers if one.run == number.run]
        found: dict[str, frozenset[object]] = {}
        for kind in ("m", "batch", "bits", "shape"):
            near = self._near(number, (kind,))
            said: list[object] = list(near)
            if kind == "shape":
                said = [shape for one in near for shape in one.said]
            elif near:
                said = [integer(one) for one in re.findall(ONE, self.text[near[0].start : near[0].end])]
            if len(said) == len(alike) > 1 and (kind == "shape" or len(near) == 1):
                found[kind] = frozenset({said[alike.index(number)]})
        return found

    def _device(self, number: Number) -> tuple[str, ...]:
        near = self._near(number, ("device",))
        if not near:
            return tuple(str(name) for name in self.before.get("device", ()))
        nearest = min(near, key=lambda one: max(number.start - one.end, one.start - number.end))
        group = next(group for group in self._groups("device") if nearest in group)
        names = [str(name) for one in group for name in one.said]
        alike = [one for one in self.numbers if one.run == number.run]
        if len(names) > 1 and len(alike) == len(names):
            return (names[alike.index(number)],)
        return tuple(dict.fromkeys(names))

    def _groups(self, kind: str) -> list[list[Mention]]:
        """Those of a kind that are named together: ``an H200 and a GB10``."""
        groups: list[list[Mention]] = []
        for one in self.mentions:
            if one.kind != kind:
                continue
            if groups and _JOINED.fullmatch(self.text[groups[-1][-1].end : one.start]):
                groups[-1].append(one)
            else:
                groups.append([one])
        return groups

    def _near(self, number: Number, kinds: Iterable[str]) -> list[Mention]:
        """Of a number's own clause, or else of the nearest one before it, or else after it."""
        mine = [one for one in self.mentions if one.kind in kinds]
        at = self.clauses.index(self.clause(number.start))
        reached = [span for span in self.clauses[at + 1 :] if span[0] < self.reach(number.start)]
        for start, end in (self.clauses[at], *reached, *self.clauses[:at][::-1], *self.clauses[at + 1 :]):
            if found := [one for one in mine if start <= one.start < end]:
                return found
        return []

    def after(self) -> dict[str, frozenset[object] | tuple[str, ...]]:
        """The context of the sentence that follows."""
        now = dict(self.before)
        if any(one.kind in SHAPED for one in self.mentions):
            now = {kind: said for kind, said in now.items() if kind not in SHAPED}
        for kind in CARRIED:
            said = [one.said for one in self.mentions if one.kind == kind]
            if said and kind == "device":
                now[kind] = tuple(dict.fromkeys(str(name) for names in said for name in names))
            elif said:
                now[kind] = frozenset(size for sizes in said for size in sizes)
        return now
