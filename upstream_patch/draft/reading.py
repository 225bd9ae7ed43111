"""What a sentence is about: which device, rows, shape and format each of its numbers is said of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from upstream_patch.draft import comparing
from upstream_patch.draft.devices import Devices
from upstream_patch.draft.numbers import COUNTED, SPELLED, UNIT, WORDS, Number, numbers
from upstream_patch.problem import BITS, GROUPS

_NO_CLAIM = (
    rf"(?![.,]?\d|[a-zA-Z])(?!(?:\.\d+)?[\s-]?(?:{UNIT})(?![\w/]))(?!(?:\s[a-z-]+)?\s(?:{'|'.join(COUNTED)})(?:e?s)?\b)"
)
"""What follows a size: a number with a unit is none."""
_NO_RATE = r"(?!/|\sper|\s(?:in\s)?(?:a|each|every)\ssecond)"
_ONE = r"\d+(?:,\d{3}(?!\d))*"
_THEN = r"(?:to|through|\.{2,3}|-|\u2013|,|/|,?\s*and|,?\s*or)(?:\s+[BKMN]\s*=)?"
_LIST = rf"(?P<sizes>{_ONE}(?:\s*{_THEN}\s*{_ONE}{_NO_CLAIM})*){_NO_CLAIM}"
_IS = r"\s*(?P<sign>=+|in|of|from|is|up to|at|<=?|>=?|\u2264|\u2265)\s*[\[{(]?"
_MANY = rf"(?:{_LIST}|(?<![\w-])(?P<word>a single|{SPELLED}))"
_USERS = r"(?:clients?|sequences?|users?|streams?|requests?|prompts?)\b"
_SIZED: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("m", re.compile(rf"(?<!\w)M{_IS}{_LIST}")),
    ("k", re.compile(rf"(?<!\w)K{_IS}{_LIST}")),
    ("n", re.compile(rf"(?<!\w)N{_IS}{_LIST}")),
    ("batch", re.compile(rf"(?<!\w)B{_IS}{_LIST}")),
    ("", re.compile(rf"(?<!\w)(?:[CDHL]\s*=\s*|[ST]\s*=\s*(?=\d{{3}})){_LIST}")),  # S = 5 may be a speedup
    ("m", re.compile(rf"(?<![\w.,]){_MANY}[\s-]rows?\b", re.IGNORECASE)),
    ("batch", re.compile(rf"(?<![\w.,]){_MANY}[\s-](?:\w+\s)?{_USERS}", re.IGNORECASE)),
    ("batch", re.compile(rf"\bbatch(?:es|[- ]sizes?)?(?:\s(?:of|is))?\s*=?\s*{_LIST}", re.IGNORECASE)),
    (
        "tokens",
        re.compile(rf"(?<![\w.,]){_MANY}[\s-]tokens?\b{_NO_RATE}", re.IGNORECASE),
    ),
    ("for", re.compile(rf"\bfor\s{_MANY}(?!\s\w+\sof)", re.IGNORECASE)),
    ("bits", re.compile(rf"(?<![\w.,]){_MANY}[\s-]bits?\b", re.IGNORECASE)),
    (
        "group_size",
        re.compile(rf"\bgroup(?:s|[- ]sizes?)?(?:\s(?:of|is|other\sthan|up\sto|from))?\s*=?\s*{_LIST}", re.IGNORECASE),
    ),
)
_OF_ROWS = re.compile(r"\brows?\b|(?<!\w)M\s*[=<>\u2264\u2265]")
_SHAPES = re.compile(
    rf"(?<![\w.,])(?P<k>{_ONE})\s*(?:[x\u00d7]|by)\s*(?P<n>{_ONE})(?:\s*[x\u00d7]\s*(?P<more>{_ONE}))?{_NO_CLAIM}(?!\w)"
)
_NAMES: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("dtype", {"bf16": "bf16", "bfloat16": "bf16", "f16": "f16", "fp16": "f16", "float16": "f16"}),
    ("mode", {"mxfp4": "mxfp4", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}),
)
_QUANTITY = rf"(?:\s?(?:to|->|\u2192|/)\s?[\d.,]*\d)?[\s-]?(?:{UNIT})(?![\w/])"
_BARE = rf"\b(?![.,]\d)(?!{_QUANTITY})"
"""What follows a number of a name: with a unit of its own, or of the number it goes to, it is a claim."""
_MODEL = re.compile(
    r"\b(?:llama|gemma|qwen|mistral|phi|mixtral|deepseek|lfm|d1(?=-))[\w.-]*"
    rf"(?:\s\d+(?:\.\d+)*{_BARE})?(?:[\s-]\d+(?:\.\d+)?[bB]\b)?",
    re.IGNORECASE,
)
_SETTLED = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"(?<!interval\s)(?<!interval\sof\s)(?<!interval\sis\s)(?<!range\s)(?<!CI\s)"
        r"\[\s*(?:[\w*/]+\s*,\s*)+[\w*/]+\s*\]|\[\d{1,4}\](?=\s*[,.;]|\s*$)",  # a shape of a tensor, a footnote
        r"\[\^[^\]\n]*\]",
        r"(?<![\w/])(?:[\w.-]+/[\w.-]+)?#\d+|\bGH-\d+",
        r"\b\d{4}-\d\d(?:-\d\d)?\b|\b(?:in|since|of|by|until|from|late|early|mid)[\s-]20\d\d"
        rf"{_BARE}(?!-\d|\s(?:{'|'.join(COUNTED)})(?:e?s)?\b)|\b\d\d?:\d\d\b",
        r"\b(?:\d\d?\s)?(?-i:Jan(?:uary)?|Feb(?:ruary)?|March|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept(?:ember)?"
        r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\s(?:\d\d?,\s)?20\d\d\b",
        r"(?<!\w)v?\d+\.\d+\.\d+(?:[.+-]?\w+)*",
        r"\b(?:CUDA|MLX|mlx-lm|Python|macOS|driver|Xcode|Metal|PyTorch|version|compute|ncu|nvcc|gcc|clang|PTX|Ubuntu"
        r"|Linux|kernel|toolkit|glibc|cuDNN|numpy|CMake|OpenAI|GPT|Claude|Gemini|Sonnet|Opus"
        rf"|Codex)[\s-]v?\d+(?:\.\d+)*{_BARE}",
        r"\bC\+\+\d\d|\bISO \d+",
        _MODEL.pattern,
        r"\b\d+(?:\.\d+)?B(?=[\s-](?:models?|parameters?|params|weights|llama|qwen))",
        rf"\b\d+(?:\s*(?:to|and|or|-|\u2013)\s*\d+)?[\s-](?:columns?|vectors?|tokens?{_NO_RATE}|threads?"
        r"|warps?"
        r"|lanes?|stages?|tiles?|layers?|heads?|lines?|simdgroups?)\b",
        r"\b(?:step|section|figure|fig\.|table|lines?|option|point|part|item|page|chapter|issue|PR|pull request"
        r"|layer|axis"
        rf"|rule|appendix|note|tile|phase)\s#?\d+(?:\.\d+)*{_BARE}",
        r"\b\d+(?:st|nd|rd|th)\b|\b[1-4]-?D\b",
        r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b",
        r"(?<!\w)(?:[A-Z]|\d+)\s*[x\u00d7]\s*[A-Z](?!\w)|(?<!\w)[A-Z]\s*[x\u00d7]\s*\d+(?!\.?\d)",
        r"^\s*(?:>\s*)*(?:[-*+]\s+)?(?:#+\s+)?(?:\d+(?:\.\d+)*[.)](?:\s|$)|\d+\.\d+\s(?!(?:" + UNIT + r")(?![\w/])"
        r"|(?-i:is|was|to|and|or|of|at|on|in|for|with|against|instead)\b))",
    )
)
"""No claims: shapes, versions, references, dates, names, what a kernel is made of, list markers."""
_BREAK = re.compile(
    r"[;\u2014]|,(?!\d)|\s[-\u2013]+\s|\b(?:and|but|or|while|whereas|where|versus|vs\.?|against|compared|than"
    r"|instead|rather"
    r"|yet|although|though|from|to|after|before)\b|[()|]|->|\u2192",
    re.IGNORECASE,
)
_JOINED = re.compile(r"\s*(?:,|/|&|and|or|as well as|,\s*and)\s*(?:(?:on|both|an?|the)\s+)*", re.IGNORECASE)
_FROM = re.compile(r"\bfrom\s(?:about\s|~|some\s)?$", re.IGNORECASE)
_TO = re.compile(rf"\s*(?:{UNIT})?\s*(?:to|down to|up to)\s(?:about\s|~|some\s|only\s|just\s)?", re.IGNORECASE)
_PROTOCOL = re.compile(r"\b(?:hot|cold|warm|chain\w*|runs?|range\w*|spread\w*|lies|between)\b", re.IGNORECASE)
_FAR = 4096
"""Sizes in a range, at most."""
SHAPED = ("shape", "k", "n")
CARRIED = ("device", "m", "batch", *SHAPED)
"""Kinds of mention that hold for the sentences after."""


@dataclass(frozen=True)
class Mention:
    kind: str
    """``device``, ``m``, ``shape``, ``k``, ``n``, ``batch``, ``tokens``, ``model``,
    ``bits``, ``group_size``, ``dtype`` or ``mode``."""
    said: frozenset[object] | tuple[str, ...]
    """Sizes; shapes as (K, N); names of devices in their order."""
    start: int
    end: int


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
    def _settled(self) -> tuple[str, tuple[Mention, ...]]:
        """The text with all that is no claim blank, and what it mentions."""
        words, found = self.text, list[Mention]()
        for match in self.devices.find(words):
            found.append(Mention("device", (match.group(),), *match.span()))
        words = _blank(words, found)
        found += [
            Mention("model", frozenset({plain(match.group())}), *match.span()) for match in _MODEL.finditer(words)
        ]
        hosts = {self.devices.host(str(name)) for one in found for name in one.said if one.kind == "device"}
        found = [
            one for one in found if one.kind != "device" or self.devices.member(str(*one.said)) not in hosts - {None}
        ]
        for pattern in _SETTLED[:8]:
            words = pattern.sub(lambda match: " " * len(match.group()), words)
        for kind, pattern in _SIZED:
            if kind == "for" and not _OF_ROWS.search(self.text):
                continue
            mine = [
                Mention(kind.replace("for", "m"), _sizes(match), *match.span()) for match in pattern.finditer(words)
            ]
            words, found = _blank(words, mine), [*found, *mine]
        mine = [
            Mention("shape" if not match["more"] else "", _shape(match), *match.span())
            for match in _SHAPES.finditer(words)
        ]
        words, found = _blank(words, mine), [*found, *mine]
        for pattern in _SETTLED[8:]:
            words = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), words)
        for kind, names in _NAMES:
            for match in re.finditer(rf"\b(?:{'|'.join(names)})\b", words, re.IGNORECASE):
                found.append(Mention(kind, frozenset({names[match.group().lower()]}), *match.span()))
        return words, tuple(sorted((one for one in found if _limits(one)), key=lambda one: one.start))

    @property
    def mentions(self) -> tuple[Mention, ...]:
        return self._settled[1]

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
        whole += [(group[0].start, group[-1].end) for group in self._groups()]
        cuts = [
            match.start()
            for match in _BREAK.finditer(self.text)
            if not any(start < match.end() and match.start() < end for start, end in whole) and self._cuts(match)
        ]
        return list(zip([0, *cuts], [*cuts, len(self.text)], strict=True))

    def _cuts(self, match: re.Match[str]) -> bool:
        """What is in brackets belongs to what is before them, unless both have a number."""
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
            for one in self._near(number, kinds):
                sizes[one.kind] = sizes.get(one.kind, frozenset()) | frozenset(one.said)
            if not any(kind in sizes for kind in kinds):
                sizes |= {kind: frozenset(self.before[kind]) for kind in kinds if kind in self.before}
        if rows := self._paired(number):
            sizes["m"] = frozenset({rows})
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
        """The arm of a number in ``from X to Y`` at one M or B, where nothing else is said to change: else none."""
        sizes = self.whole(number).sizes
        counts = [len(sizes[kind]) for kind in ("m", "batch", *SHAPED) if kind in sizes]
        if not sizes.keys() & {"m", "batch"} or max(counts) > 1:
            return ""
        if comparing.of_another(self.text) or _PROTOCOL.search(self.text):
            return ""
        for one, then in pairwise(self.numbers):
            moves = _FROM.search(self.text[: one.start]) and _TO.fullmatch(self.text[one.end : then.start])
            if moves and one.unit == then.unit and number in (one, then):
                return "stock" if number == one else "ours"
        return ""

    def _paired(self, number: Number) -> int:
        """Of numbers that stand in a row beside as many M, the one that is this number's; 0 where they do not."""
        alike = [one for one in self.numbers if one.run == number.run]
        near = self._near(number, ("m",))
        named = [_integer(one) for one in re.findall(_ONE, self.text[near[0].start : near[0].end])] if near else []
        return named[alike.index(number)] if len(near) == 1 and len(named) == len(alike) > 1 else 0

    def _device(self, number: Number) -> tuple[str, ...]:
        near = self._near(number, ("device",))
        if not near:
            return tuple(str(name) for name in self.before.get("device", ()))
        nearest = min(near, key=lambda one: max(number.start - one.end, one.start - number.end))
        group = next(group for group in self._groups() if nearest in group)
        names = [str(name) for one in group for name in one.said]
        alike = [one for one in self.numbers if one.run == number.run]
        if len(names) > 1 and len(alike) == len(names):
            return (names[alike.index(number)],)
        return tuple(dict.fromkeys(names))

    def _groups(self) -> list[list[Mention]]:
        """Devices that are named together: ``an H200 and a GB10``."""
        groups: list[list[Mention]] = []
        for one in self.mentions:
            if one.kind != "device":
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
        for start, end in (*self.clauses[at::-1], *self.clauses[at + 1 :]):
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


def plain(model: str) -> str:
    """A model's name without case and signs: ``Llama 3.2 1B`` begins ``Llama-3.2-1B-Instruct-4bit``."""
    return re.sub(r"[^a-z0-9]", "", model.lower())


def _limits(one: Mention) -> bool:
    """Whether it says which facts are meant: a size that no fact could have does not."""
    known = {"bits": frozenset(BITS), "group_size": frozenset((*GROUPS, 16))}.get(one.kind)
    return bool(one.kind) and bool(one.said) and (known is None or bool(known & frozenset(one.said)))


def _shape(match: re.Match[str]) -> frozenset[object]:
    return frozenset({(_integer(match["k"]), _integer(match["n"]))})


def _sizes(match: re.Match[str]) -> frozenset[object]:
    """2 to 7 are 2, 3, ... 7; 2, 4 and 7 are three; <= 8 are 1 to 8."""
    parts = match.groupdict()
    if word := parts.get("word"):
        return frozenset({WORDS.get(word.lower(), 1)})
    sizes: set[object] = set()
    for part in re.split(r",(?!\d{3}(?!\d))|/|\band\b|\bor\b", parts["sizes"]):
        ends = [_integer(number) for number in re.findall(_ONE, part)]
        if len(ends) == 2:
            sizes.update(range(ends[0], min(ends[1], ends[0] + _FAR) + 1))
        sizes.update(ends)
    first = _integer(re.findall(_ONE, parts["sizes"])[0])
    sign = parts.get("sign") or "="
    if sign in ("<", "<=", "\u2264", "up to"):
        sizes.update(range(1, min(first, _FAR) + (sign != "<")))
        sizes -= {first} if sign == "<" else set()
    elif sign in (">", ">=", "\u2265"):
        sizes.update(range(first + (sign == ">"), min(4 * first, first + _FAR) + 1))
        sizes -= {first} if sign == ">" else set()
    return frozenset(sizes)


def _integer(words: str) -> int:
    return int(words.replace(",", "") or 0)


def _blank(words: str, found: Iterable[Mention]) -> str:
    for one in found:
        words = words[: one.start] + re.sub(r"[^\n]", " ", words[one.start : one.end]) + words[one.end :]
    return words
