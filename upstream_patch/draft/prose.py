"""What a person's sentences say in numbers: values with their units and rounding, devices, problems, superlatives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from markdown_it import MarkdownIt

from upstream_patch.draft import managed

Span = tuple[int, int]
UNITS: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(("us", "µs", "μs", "usec", "microsecond", "microseconds"), ("us", 1.0)),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), ("us", 1e-3)),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), ("us", 1e3)),
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("us", 1e6)),
    **{name: ("GB/s", factor) for name, factor in (("MB/s", 1e-3), ("GB/s", 1.0), ("TB/s", 1e3))},
    **{name: ("GB/s", factor / 1e9) for name, factor in (("MiB/s", 2**20), ("GiB/s", 2**30), ("TiB/s", 2**40))},
    **{name: ("byte", factor) for name, factor in (("bytes", 1), ("KB", 1e3), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9))},
    **{name: ("byte", factor) for name, factor in (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30))},
    **dict.fromkeys(("tok/s", "tokens/s", "tokens per second", "tokens a second"), ("tokens/s", 1.0)),
    **{name: ("TFLOP/s", factor) for name, factor in (("GFLOP/s", 1e-3), ("TFLOP/s", 1.0), ("TFLOPS", 1.0))},
    **dict.fromkeys(("x", "\u00d7", "times", "-fold", "fold"), ("ratio", 1.0)),
    **dict.fromkeys(("%", "percent", "per cent"), ("percent", 1.0)),
    **dict.fromkeys(("ulp", "ulps"), ("ulp", 1.0)),
    **dict.fromkeys(
        ("case", "cases", "launches", "errors", "warnings", "registers", "hazards", "faults", "formats"), ("count", 1.0)
    ),
}
"""As written -> the unit of a fact, and what one is in it."""
SUPERLATIVE = re.compile(
    r"\b(?:fastest|best|optimal|always|never|everywhere|all (?:shapes|sizes|devices|GPUs|cases)"
    r"|every (?:shape|size|device|GPU|case)|no (?:regressions?|overhead|slowdown|cost)|zero[- ](?:cost|overhead)"
    r"|free of charge|state[- ]of[- ]the[- ]art|saturat\w+|speed of light|peak|roofline|lossless|significant(?:ly)?"
    r"|dramatic(?:ally)?|huge|massive(?:ly)?|twice|double[sd]?|triple[sd]?|half|halve[sd]?|tenfold"
    r"|orders? of magnitude|much (?:faster|slower))\b",
    re.IGNORECASE,
)
PIN = re.compile(r"<!-- fact (?P<id>[\w.|-]+)(?: / (?P<over>[\w.|-]+))? -->")
"""A person's own pointer: the numbers of this sentence are that fact, or the quotient of two."""

_UNIT = "|".join(re.escape(name) for name in sorted(UNITS, key=len, reverse=True))
_AMOUNT = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_NUMBER = re.compile(
    rf"(?<![\w.,#/$])(?P<amount>{_AMOUNT})(?![.,]?\d)(?:\s*(?:to|and|or|-|\u2013)\s*(?P<other>{_AMOUNT}))?"
    rf"(?:[\s-]?(?P<unit>{_UNIT})(?![\w/]))?"
)
_ABOUT = re.compile(r"(?:about|around|roughly|nearly|almost|some|approximately|~|≈)\s*$", re.IGNORECASE)
_OVER = re.compile(r"(?:over|above|more than|at least|>|>=|≥)\s*$", re.IGNORECASE)
_LIST = r"\d+(?:\s*(?:to|\.\.\.?|-|\u2013|,|and|or)\s*\d+)*"
_IS = r"\s*(?:=|in|of|from|<=?|>=?|\u2264|\u2265)\s*"
_ROWS = re.compile(rf"(?<!\w)M{_IS}(?P<sizes>{_LIST})(?![.\d]*\s*(?:{_UNIT})\b)")
_BATCHES = re.compile(rf"(?<!\w)B{_IS}(?P<sizes>{_LIST})|(?<![\w.,])(?P<more>{_LIST}) clients\b")
_TOKENS = re.compile(rf"(?<![\w.,])(?P<sizes>{_LIST}) tokens\b(?!/| per | a second)")
_SHAPE = re.compile(r"(?<![\w.])(?P<k>\d[\d,]*)\s*[x\u00d7]\s*(?P<n>\d[\d,]*)(?![\w.]*\d)")
_MODEL = re.compile(r"\b(?:llama|gemma|qwen|lfm)[\w.-]*(?:\s\d+(?:\.\d+)*)?(?:[\s-]\d+[bB]\b)?", re.IGNORECASE)
_SETTLED = (
    re.compile(
        r"(?<!\w)[NKBLH]\s*(?:=|in|of|from|<=?|>=?|≤|≥)\s*\d[\d,]*(?:\s*(?:to|\.\.\.?|-|\u2013|,|and|or)\s*\d[\d,]*)*"
    ),
    re.compile(r"\[[\s\w,*]*\](?!\()"),  # a shape
    re.compile(r"https?://\S+"),
    re.compile(r"\]\([^)]*\)"),
    re.compile(r"(?<!\w)(?:[\w./-]+)?#\d+"),
    re.compile(r"\b\d{4}-\d\d-\d\d\b"),
    re.compile(r"(?<!\w)v?\d+\.\d+\.\d+(?:\.\d+)*"),
    re.compile(
        r"\b(?:CUDA|MLX|mlx-lm|Python|macOS|driver|Xcode|Metal|PyTorch|version|Compute)\s+v?\d+(?:\.\d+)*",
        re.IGNORECASE,
    ),
    _MODEL,
    re.compile(r"\b\d+(?:\s*(?:to|and|or|-|\u2013)\s*\d+)?[\s-](?:bits?|rows?|columns?|clients?|requests?|vectors?)\b"),
    re.compile(r"\bgroup(?:s| size)?(?: of)? \d+(?:(?:,| and| or) \d+)*"),
    re.compile(r"^\s*(?:>\s*)*(?:\d+[.)]\s|#+.*$)", re.MULTILINE),
)
"""No claims: shapes, versions, references, names, list markers, headings."""
_DEVICE = (
    r"GB\d{2,3}|[ABHLV]\d{2,3}S?|T4|L4|(?:RTX|GTX)\s?(?:PRO\s)?\w*\d{4}\w*|M[1-9](?:\s(?:Pro|Max|Ultra))?(?!\w)"
    r"|DGX Spark"
)
_END = re.compile(r"(?<=[.!?])\s+(?=[^\sa-z])|\n\s*\n|\n(?=\s*(?:>\s*)*(?:[-*+]|\d+[.)]|\|)\s)")


@dataclass(frozen=True)
class Claim:
    words: str
    line: int
    unit: str
    """Of the facts; empty where the person gave none."""
    low: float
    """What the written number may have been before it was rounded, in the fact's unit."""
    high: float


@dataclass(frozen=True)
class Sentence:
    line: int
    words: str
    claims: tuple[Claim, ...]
    devices: tuple[str, ...]
    """That it is about, as they are written."""
    rows: frozenset[int]
    """M, where the sentence names it."""
    shapes: frozenset[tuple[int, int]]
    """(K, N)"""
    batches: frozenset[int]
    """B of decode, or clients."""
    pins: tuple[tuple[str, str], ...]
    """(fact, the one it is divided by or empty)"""
    superlatives: tuple[tuple[int, str], ...]
    """(line, word)"""
    tokens: frozenset[int] = frozenset()
    """Of a forward pass."""
    models: frozenset[str] = frozenset()
    """That it names, as ``plain`` has them."""


def sentences(text: str, known: Mapping[str, str]) -> Iterator[Sentence]:
    """A person's sentences in a draft: no managed block, comment or code. ``known`` has devices by their names.

    A sentence that names no device is about those of the sentence before it in the paragraph.
    """
    pins = [(match.start(), (match["id"], match["over"] or "")) for match in PIN.finditer(text)]
    text = _masked(text, [*_blocks(text), *_code(text), *_spans(re.compile(r"<!--.*?-->", re.DOTALL), text)])
    names = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
    device = re.compile(rf"(?<!\w)(?:{_DEVICE}{'|' + names if names else ''})(?![\w-]*\w)")
    start, devices = 0, tuple[str, ...]()
    ends = [match.span() for match in _END.finditer(text)]
    for first, last in [*ends, (len(text), len(text))]:
        words = text[start:first]
        if words.strip():
            mine = tuple(pin for place, pin in pins if start <= place < last or place == last == len(text))
            sentence = _sentence(text, start, first, device, mine)
            devices = sentence.devices or devices
            yield replace(sentence, devices=devices)
        if text.count("\n", first, last) > 1:
            devices = ()
        start = last


def plain(model: str) -> str:
    """A model's name without case and signs: ``Llama 3.2 1B`` begins ``Llama-3.2-1B-Instruct-4bit``."""
    return re.sub(r"[^a-z0-9]", "", model.lower())


def without_code(text: str) -> str:
    """The same text with code blank, every line where it was."""
    return _masked(text, _code(text))


def _sentence(text: str, start: int, end: int, device: re.Pattern[str], pins: tuple[tuple[str, str], ...]) -> Sentence:
    words = text[start:end]

    def line(offset: int) -> int:
        return text.count("\n", 0, start + offset) + 1

    rows = frozenset(size for match in _ROWS.finditer(words) for size in _sizes(match["sizes"]))
    batches = frozenset(size for match in _BATCHES.finditer(words) for size in _sizes(match["sizes"] or match["more"]))
    tokens = frozenset(size for match in _TOKENS.finditer(words) for size in _sizes(match["sizes"]))
    models = frozenset(plain(match.group()) for match in _MODEL.finditer(words))
    shapes = frozenset((_integer(match["k"]), _integer(match["n"])) for match in _SHAPE.finditer(words))
    devices = tuple(dict.fromkeys(match.group() for match in device.finditer(words)))
    for pattern in (_ROWS, _BATCHES, _TOKENS, _SHAPE, device, *_SETTLED):
        words = _masked(words, _spans(pattern, words))
    claims = tuple(
        claim
        for match in _NUMBER.finditer(words)
        for claim in _claims(match, words[: match.start()], line(match.start()))
    )
    worst = tuple((line(match.start()), match.group()) for match in SUPERLATIVE.finditer(words))
    begins = len(words) - len(words.lstrip())
    return Sentence(
        line(begins),
        " ".join(text[start:end].split()),
        claims,
        devices,
        rows,
        shapes,
        batches,
        pins,
        worst,
        tokens,
        models,
    )


def _claims(match: re.Match[str], before: str, line: int) -> Iterator[Claim]:
    unit, factor = UNITS.get(match["unit"] or "", ("", 1.0))
    for amount in (match["amount"], match["other"]):
        if amount is None:
            continue
        digits = amount.replace(",", "")
        value = float(digits)
        step = 10.0 ** -len(digits.partition(".")[2])
        coarse = 10.0 ** (len(digits) - len(digits.rstrip("0"))) if "." not in digits and value else step
        low, high = value - step / 2, value + step / 2
        if _ABOUT.search(before):
            loose = min(coarse / 2, max(value / 20, step / 2))
            low, high = value - loose, value + loose
        elif _OVER.search(before):
            low, high = value, value + coarse
        words = " ".join(part for part in (amount, match["unit"]) if part)
        yield Claim(words, line, unit, low * factor, high * factor)


def _sizes(words: str) -> set[int]:
    """2 to 7 are 2, 3, ... 7; 2, 4 and 7 are three."""
    sizes: set[int] = set()
    for part in re.split(r",|\band\b|\bor\b", words):
        ends = [int(number) for number in re.findall(r"\d+", part)]
        if len(ends) == 2:
            sizes.update(range(ends[0], min(ends[1], ends[0] + 4096) + 1))
        sizes.update(ends)
    return sizes


def _integer(words: str) -> int:
    return int(words.replace(",", "") or 0)


def _blocks(text: str) -> list[Span]:
    return [(first, last) for _, first, last in managed.spans(text)]


def _code(text: str) -> list[Span]:
    """Fenced and indented code, and what stands between backticks: quoted output and names, no claim of the person."""
    starts = [0]
    for part in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(part))
    tokens = MarkdownIt("commonmark").parse("\n".join(text.splitlines()))
    fences = [
        (starts[token.map[0]], starts[min(token.map[1], len(starts) - 1)])
        for token in tokens
        if token.type in ("fence", "code_block") and token.map
    ]
    return [*fences, *_spans(re.compile(r"(?<!`)(`+)(?!`)[^\n]+?(?<!`)\1(?!`)"), text)]


def _spans(pattern: re.Pattern[str], text: str) -> list[Span]:
    return [match.span() for match in pattern.finditer(text)]


def _masked(text: str, spans: list[Span]) -> str:
    """The same text with those places blank, every line where it was."""
    for first, last in spans:
        text = text[:first] + re.sub(r"[^\n]", " ", text[first:last]) + text[last:]
    return text
