"""What a sentence says in numbers: digits, powers, fractions and words, each with its unit and its rounding."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

UNITS: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(("us", "µs", "μs", "usec", "microsecond", "microseconds"), ("us", 1.0)),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), ("us", 1e-3)),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), ("us", 1e3)),
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("us", 1e6)),
    **{name: ("GB/s", factor) for name, factor in (("MB/s", 1e-3), ("GB/s", 1.0), ("TB/s", 1e3))},
    **{name: ("GB/s", factor / 1e9) for name, factor in (("MiB/s", 2**20), ("GiB/s", 2**30), ("TiB/s", 2**40))},
    **{name: ("byte", factor) for name, factor in (("bytes", 1), ("KB", 1e3), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9))},
    **{name: ("byte", factor) for name, factor in (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30))},
    **dict.fromkeys(
        ("tok/s", "tokens/s", *(f"tokens {each} second" for each in ("per", "a", "each", "every", "in a"))),
        ("tokens/s", 1.0),
    ),
    **{name: ("TFLOP/s", factor) for name, factor in (("GFLOP/s", 1e-3), ("TFLOP/s", 1.0), ("TFLOPS", 1.0))},
    **dict.fromkeys(("x", "\u00d7", "times", "-fold", "fold"), ("ratio", 1.0)),
    **dict.fromkeys(("%", "percent", "per cent"), ("percent", 1.0)),
    **dict.fromkeys(("ulp", "ulps"), ("ulp", 1.0)),
}
"""As written -> the unit of a fact, and what one is in it."""
COUNTED: Mapping[str, tuple[str, ...]] = {
    "launch": ("launches",),
    "error": ("errors",),
    "hazard": ("errors",),
    "warning": ("warnings",),
    "fault": ("plants_found",),
    "format": ("formats",),
    "register": ("registers",),
    "case": ("cases", "passed", "written", "rows_equal_alone"),
}
"""What is counted -> the last part of the ids of the facts that count it."""
_NOUN = "|".join(COUNTED)
UNIT = "|".join(re.escape(name) for name in sorted(UNITS, key=len, reverse=True))
_PLAIN: Mapping[str, int] = {
    **{"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10},
    **{"eleven": 11, "twelve": 12, "dozen": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16},
    **{"seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50},
    **{"sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90, "hundred": 100, "thousand": 1000, "million": 1_000_000},
}
_DIGIT_WORDS = [(word, value) for word, value in _PLAIN.items() if value < 10]
_TEN_WORDS = [(word, value) for word, value in _PLAIN.items() if value in range(20, 100, 10)]
WORDS: Mapping[str, int] = {
    **_PLAIN,
    **{f"{ten}-{one}": tens + ones for ten, tens in _TEN_WORDS for one, ones in _DIGIT_WORDS},
}
SPELLED = "|".join(sorted(WORDS, key=len, reverse=True))
_PARTS = {
    "half": 2,
    "halve": 2,
    "third": 3,
    "quarter": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "tenth": 10,
}
_TIMES = {"twice": 2, "doubl": 2, "tripl": 3, "quadrupl": 4, "quintupl": 5, "sextupl": 6}
_LOTS = {"dozens": (24.0, 100.0), "hundreds": (200.0, 1000.0), "thousands": (2000.0, 1e4)}
_GROUPED = "[,'\u00a0\u2009\u202f]"
_AMOUNT = (
    rf"(?:\d{{1,3}}(?:{_GROUPED}\d{{3}})+(?!\d)(?:\.\d+)?|\d+,\d{{1,2}}(?=[\s-]?(?:{UNIT})(?![\w/]))|\d+\.\d+|\.\d+|\d+)"
    r"(?:[eE][+-]?\d+|\^-?\d+|[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+)?(?:[kKMG](?![\w/]))?"
)
_DIGITS = re.compile(
    r"(?<![\w#])(?<!\d[.,'])(?:"
    rf"(?P<prefix>[x\u00d7])(?P<by>{_AMOUNT})(?!\s*[x\u00d7])"
    r"|(?P<over>\d+\s?[/\u2044]\s?\d+)(?![\d./])(?!\s?(?:" + UNIT + r")(?![\w/]))"
    r"|(?P<vulgar>\d*[\u00bc-\u00be\u2150-\u215e])(?:[\s-]?(?P<vulgar_unit>" + UNIT + r")(?![\w/]))?"
    rf"|(?P<amount>{_AMOUNT})(?:(?:-|\s{{0,2}})(?P<unit>{UNIT})(?![\w/])|(?:\s[a-z][\w-]*){{0,2}}[\s-](?P<noun>{_NOUN})(?:e?s)?\b)?)"
)
_SPELLED = re.compile(
    rf"(?<![\w-])(?:(?:a|an)\s)?(?P<word>{SPELLED})[\s-]?(?P<unit>times|fold|percent|per cent|x)\b"
    rf"|(?<![\w-])(?P<worth>{SPELLED})\s(?P<of>{UNIT})(?![\w/])"
    rf"|\b(?:factors?\sof|a\sfactor)\s(?:about\s|over\s|nearly\s)?(?P<plain>{SPELLED})\b(?!\s(?:{UNIT}))"
    r"|\b(?:speed-?ups?|gains?|ratios?)\b[^.;,:]{0,60}\b(?:is|was|are|of|reach\w*)\s(?:about\s|over\s|nearly\s)?"
    rf"(?P<gain>{SPELLED})(?=\W*$|[.,;:)]|\s(?:at|on|in|for|with|over)\b)",
    re.IGNORECASE,
)
_COMPARED = r"(?:as|the|that|what|its|their|faster|slower|more|less|longer|shorter|higher|lower|better|stock|ours|of)\b"
_RATIOS = re.compile(
    rf"\b(?P<twice>twice)(?=\s+{_COMPARED})|\b(?:is|was|be|by|nearly|about|almost|over|than)\s(?P<twice2>twice)\b"
    r"|\b(?P<multiple>doubl|tripl|quadrupl|quintupl|sextupl)(?:es?|ed|ing)\b"
    r"(?![- ]?(?:precision|buffer|check|quant|quot|click|colon))"
    r"|\b(?:in|by)\s(?:a\s)?(?P<half2>half)\b(?![\s-]precision)|\b(?P<halve>halv)(?:es?|ed|ing)\b"
    r"|\b(?P<half>half)\s(?:as\s|that\b|of\s(?:stock|ours|what|that)\b|(?:of\s)?(?:the|its|their|stock's)?\s?(?:\w+\s)?"
    r"(?:time|speed|bandwidth|throughput|bytes|traffic|memory|energy|power|size|latency|cost|probe|peak|rate|reads?|tokens)\b)"
    rf"|\b(?P<top>an?|{SPELLED})[\s-](?P<part>third|quarter|fifth|sixth|seventh|eighth|tenth)s?\s(?:of|the|as|that)\b"
    rf"|\b(?:(?P<by>by)\s)?(?P<top2>an?|{SPELLED})[\s-](?P<off>third|quarter|fifth|sixth|seventh|eighth|tenth)s?\b"
    r"(?(by)(?=\W*$|[,.;:)]|\s(?:at|on|in|with|for|to|of|and|than|over|when)\b)"
    r"|(?=\s(?:less(?!\sknown)|more\s(?:time|tokens|throughput|bandwidth)|fewer|faster|slower|shorter|longer|lower|higher)\b))"
    rf"|\b(?P<lots>dozens|hundreds|thousands)\sof\stimes(?=\s+{_COMPARED})"
    rf"|\b(?:(?P<tens>{SPELLED}|an?|\d)\s)?(?P<order>orders?[- ]of[- ]magnitude)\b",
    re.IGNORECASE,
)
_FACTOR = re.compile(
    r"\b(?:factors?|ratios?|speed-?ups?|gains?)(?:\s(?:of|is|was|by|from|between|up to|over))*[\s:=]*$", re.I
)
_ABOUT = re.compile(r"(?:about|around|roughly|nearly|almost|some|approximately|circa|~|\u2248)\s*(?:an?\s)?$", re.I)
_OVER = re.compile(r"(?:over|above|more than|beyond|exceed(?:s|ing)?|(?<!-)>|>=|\u2265)\s*(?:an?\s)?$", re.I)
_UNDER = re.compile(r"(?:under|below|less than|fewer than|within|<|<=|\u2264)\s*(?:an?\s)?$", re.I)
_MOST = re.compile(r"(?:up to|as much as|at most|no more than|max(?:imum)?(?: of)?)\s*(?:about\s|~)?$", re.I)
_LEAST = re.compile(r"(?:at least|no less than|min(?:imum)?(?: of)?)\s*(?:about\s|~)?$", re.I)
_LOOK = 60
"""Characters before a number in which words are about it."""
_NEXT = re.compile(
    r"\s*(?:,\s*(?:and|or|to)?|and|or|to|through|of|out of|vs\.?|versus|against|[-\u2013\u2014/|]|\u2192|->|\.{2,3})"
    r"\s*(?:about|around|nearly|over|some|~|\u2248)?\s*"
)
_BETWEEN = re.compile(r"\bbetween\s(?:about\s|~)?$", re.I)
_RANGES = re.compile(r"\b(?:rang\w+|span\w*|var(?:y|ies)|lies|lie)\b(?:\s(?:from|of|in))?\s(?:about\s|~)?$", re.I)
_GOES = re.compile(
    r"\b(?:go(?:es)?|went|grow\w*|grew|ris\w+|rose|drop\w*|f[ae]ll\w*|moves?|changes?)\b[^.;,]{0,40}$", re.I
)
_REPEATED = re.compile(
    r"\b(?:r[au]n|runs|repeat\w*|call\w*|tried|timed|tested|sampled|launched|it|them|once or)\b[^.,;]{0,20}$", re.I
)
_POWERS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "0123456789")


@dataclass(frozen=True)
class Number:
    start: int
    end: int
    words: str
    unit: str
    """Of the facts; ``count`` with a noun of ``COUNTED``; empty where the person gave none."""
    low: float
    """What the written number may have been before it was rounded, in the fact's unit."""
    high: float
    noun: str = ""
    bound: str = ""
    """``most`` or ``least`` where it is said to be the largest or smallest of its kind."""
    factor: float = 0.0
    """What one of the unit as it is written is in ``unit``; 0 where none is written: nothing to share."""
    run: int = 0
    """Numbers that share a unit (``7.9, 12.8 and 26.8x``) have the start of the first."""


def numbers(words: str) -> list[Number]:
    """All of a sentence, from left to right. What is no claim (versions, sizes, references) is blank in it already."""
    found = sorted([*_spelled(words), *_written(words)], key=lambda one: one.start)
    apart = [one for at, one in enumerate(found) if not at or one.start >= found[at - 1].end]
    for at in range(len(apart) - 2, -1, -1):
        one, then = apart[at], apart[at + 1]
        if then.factor and not one.unit and _NEXT.fullmatch(words[one.end : then.start]):
            low, high = one.low * then.factor, one.high * then.factor
            apart[at] = replace(one, unit=then.unit, noun=then.noun, low=low, high=high, factor=then.factor)
            was = then.run
            apart[at + 1 :] = [replace(it, run=one.run) if it.run == was else it for it in apart[at + 1 :]]
    return list(_ranged(words, apart))


def _ranged(words: str, found: list[Number]) -> Iterator[Number]:
    """``between 2x and 14x``, ``2x to 14x faster``: the first is the smallest of its kind, the second the largest."""
    ends: dict[int, str] = {}
    for one, then in pairwise(found):
        if not one.unit or one.unit != then.unit or one.bound or then.bound or one.low > then.high:
            continue
        before, between = words[: one.start], words[one.end : then.start]
        between = re.sub(rf"^\s?(?:{UNIT})(?![\w/])", "", between)
        relative = one.unit in ("ratio", "percent") and not _GOES.search(before)
        if (_BETWEEN.search(before) and between.strip() == "and") or (
            (relative or _RANGES.search(before)) and re.fullmatch(r"\s*(?:to|through|-|\u2013)\s*", between)
        ):
            ends |= {one.start: "least", then.start: "most"}
    for one in found:
        yield replace(one, bound=ends[one.start]) if one.start in ends else one


def _written(words: str) -> Iterator[Number]:
    for match in _DIGITS.finditer(words):
        before = words[max(0, match.start() - _LOOK) : match.start()]
        name, noun, bound = match["unit"] or match["vulgar_unit"] or "", match["noun"] or "", ""
        unit, factor = UNITS.get(name, ("count", 1.0) if noun else ("", 1.0))
        if match["prefix"]:
            unit = "ratio"
        if match["over"] or match["vulgar"]:
            value = _fraction(match["over"] or match["vulgar"])
            low, high, unit = 0.9 * value, 1.1 * value, unit or "ratio"
        else:
            low, high, bound = _rounded(match["amount"] or match["by"], before)
            if name == "times" and match["amount"].isdigit() and _repeats(words, *match.span()):
                continue
        if not unit and not noun and _FACTOR.search(_bare(before)):
            unit = "ratio"
        said = " ".join(part for part in (match.group().removesuffix(name).strip(), name) if part)
        written = factor if name or noun else 0.0
        yield Number(*match.span(), said, unit, low * factor, high * factor, noun, bound, written, match.start())


def _spelled(words: str) -> Iterator[Number]:
    for match in _SPELLED.finditer(words):
        name = match["of"] or (match["unit"] or "times").lower()
        before = words[max(0, match.start() - _LOOK) : match.start()]
        if match["unit"] and name == "times" and _repeats(words, *match.span()):
            continue
        low, high, bound = _rounded(
            str(WORDS[(match["word"] or match["worth"] or match["plain"] or match["gain"]).lower()]), before
        )
        unit, factor = UNITS[name]
        yield Number(*match.span(), match.group(), unit, low * factor, high * factor, "", bound, factor, match.start())
    for match in _RATIOS.finditer(words):
        unit = "ratio"
        before, part = (
            words[max(0, match.start() - _LOOK) : match.start()],
            next(name for name in match.groupdict() if match[name] and name not in ("top", "top2", "by", "tens")),
        )
        if part in ("half", "half2", "halve", "part"):
            name = match[part].lower()
            value = (_count(match["top"]) if part == "part" else 1) / _PARTS.get(name, 2)
            low, high, bound = 0.9 * value, 1.1 * value, ""
        elif part == "off":
            value = 100 * _count(match["top2"]) / _PARTS[match["off"].lower()]
            low, high, bound, unit = 0.9 * value, 1.1 * value, "", "percent"
        elif part == "lots":
            (low, high), bound = _LOTS[match["lots"].lower()], ""
        elif part == "order":
            power = 10.0 ** (_count(match["tens"]) - 1)
            low, high, bound = 8 * power, 15 * power, ""
            if _OVER.search(before):
                low, high = 10 * power, 100 * power
        else:
            low, high, bound = _rounded(str(_TIMES[match[part].lower().removesuffix("2")]), before)
        yield Number(*match.span(), match.group(), unit, low, high, "", bound, 0.0, match.start())


def _repeats(words: str, start: int, end: int) -> bool:
    """Whether ``three times`` says how often something was done."""
    return bool(_REPEATED.search(words[max(0, start - _LOOK) : start])) and not re.match(
        rf"\s+{_COMPARED}", words[end:]
    )


def _count(word: str | None) -> int:
    """``two`` and ``2`` are 2, ``a`` is 1, and so is nothing."""
    return int(word) if word and word.isdigit() else WORDS.get((word or "").lower(), 1)


def _fraction(words: str) -> float:
    if words[-1].isdigit() and (parts := re.split(r"\s?[/\u2044]\s?", words))[1:]:
        return float(parts[0]) / max(float(parts[1]), 1.0)
    return float(words[:-1] or 0) + unicodedata.numeric(words[-1])


def _rounded(amount: str, before: str) -> tuple[float, float, str]:
    """What it may have been, and whether it is a bound, by the words before it."""
    digits, scale = amount, 1.0
    if digits[-1] in "kKMG":
        digits, scale = digits[:-1], {"k": 1e3, "M": 1e6, "G": 1e9}[digits[-1].replace("K", "k")]
    digits, _, power = digits.partition("^")
    head = re.match(r"[\d.,'\u00a0\u2009\u202f]+", digits)
    tail = digits[head.end() :] if head else ""
    digits = re.sub(_GROUPED + r"(?=\d{3})", "", head.group() if head else digits).replace(",", ".")
    if tail[:1] in ("e", "E"):
        scale *= 10.0 ** min(max(int(tail[1:]), -300), 290)
    if power or (tail and tail[0] not in "eE"):
        exponent = int(power or tail.translate(_POWERS))
        if not 0 < float(digits) < 1e5 or abs(exponent) > 50:
            return math.inf, math.inf, ""
        value = float(digits) ** exponent
        return 0.9 * value * scale, 1.1 * value * scale, ""
    if len(digits) > 200:
        return math.inf, math.inf, ""
    value, step = float(digits), 10.0 ** -len(digits.partition(".")[2])
    coarse = 10.0 ** (len(digits) - len(digits.rstrip("0"))) if "." not in digits and value else step
    low, high, bound = value - step / 2, value + step / 2, ""
    if _MOST.search(before):
        bound = "most"
    elif _LEAST.search(before):
        bound, low, high = "least", value - min(step / 2, value / 50), max(value + step, min(value + coarse, 2 * value))
    elif _ABOUT.search(before):
        loose = min(coarse / 2, max(value / 20, step / 2))
        low, high = value - loose, value + loose
    elif _OVER.search(before):
        low, high = value, max(value + step, min(value + coarse, 2 * value))
    elif _UNDER.search(before):
        low, high = max(value - coarse, value / 2), value
    return low * scale, high * scale, bound


def _bare(before: str) -> str:
    """Without the words that only say how exact it is."""
    for pattern in (_ABOUT, _OVER, _UNDER, _MOST, _LEAST):
        before = pattern.sub("", before)
    return before
