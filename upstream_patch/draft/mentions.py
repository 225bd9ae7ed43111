"""What a sentence mentions: devices, rows, shapes, formats and models; and its words without all that is no claim."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from upstream_patch.draft.devices import Devices
from upstream_patch.draft.numbers import COUNTED, SPELLED, UNIT, WORDS
from upstream_patch.problem import BITS, GROUPS

_NO_CLAIM = (
    rf"(?![.,]?\d|[a-zA-Z])(?!(?:\.\d+)?[\s-]?(?:{UNIT})(?![\w/]))(?!(?:\s[a-z-]+)?\s(?:{'|'.join(COUNTED)})(?:e?s)?\b)"
)
"""What follows a size: a number with a unit is none."""
_NO_RATE = r"(?!/|\sper|\s(?:in\s)?(?:a|each|every)\ssecond)"
ONE = r"\d+(?:,\d{3}(?!\d))*"
_THEN = r"(?:to|through|\.{2,3}|-|\u2013|,|/|,?\s*and|,?\s*or)"
_LIST = rf"(?P<sizes>{ONE}(?:\s*{_THEN}\s*{ONE}{_NO_CLAIM}(?!\s*[x\u00d7]\s*\d))*){_NO_CLAIM}"
_IS = r"\s*(?P<sign>=+|in|of|from|is|up to|at|<=?|>=?|\u2264|\u2265)\s*[\[{(]?"
_AXIS = {  # the list goes on behind its own letter: M = 1 and M = 7
    letter: rf"(?<!\w){letter}{_IS}" + _LIST.replace(_THEN, rf"{_THEN}(?:\s+{letter}\s*=)?") for letter in "MKNB"
}
_MANY = rf"(?:{_LIST}|(?<![\w-])(?P<word>a single|{SPELLED}))"
_USERS = r"(?:clients?|sequences?|users?|streams?|requests?|prompts?)\b"
_SIZED: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("m", re.compile(_AXIS["M"])),
    ("k", re.compile(_AXIS["K"])),
    ("n", re.compile(_AXIS["N"])),
    ("batch", re.compile(_AXIS["B"])),
    ("", re.compile(rf"(?<!\w)(?:[CDHL]\s*=\s*|[ST]\s*=\s*(?=\d{{3}})){_LIST}")),  # S = 5 may be a speedup
    ("m", re.compile(rf"(?<![\w.,]){_MANY}[\s-]rows?\b", re.IGNORECASE)),
    ("batch", re.compile(rf"(?<![\w.,]){_MANY}[\s-](?:\w+\s)?{_USERS}", re.IGNORECASE)),
    ("batch", re.compile(rf"\bbatch(?:es|[- ]sizes?)?(?:\s(?:of|is))?\s*=?\s*{_LIST}", re.IGNORECASE)),
    (
        "tokens",
        re.compile(rf"(?<![\w.,]){_MANY}[\s-]tokens?\b{_NO_RATE}", re.IGNORECASE),
    ),
    ("bits", re.compile(rf"(?<![\w.,]){_MANY}[\s-]bits?\b", re.IGNORECASE)),
    (
        "group_size",
        re.compile(rf"\bgroup(?:s|[- ]sizes?)?(?:\s(?:of|is|other\sthan|up\sto|from))?\s*=?\s*{_LIST}", re.IGNORECASE),
    ),
    ("for", re.compile(rf"\bfor\s{_MANY}(?!\s\w+\sof)", re.IGNORECASE)),  # what is not of another kind
)
_OF_ROWS = re.compile(r"\brows?\b|(?<!\w)M\s*[=<>\u2264\u2265]")
_SHAPES = re.compile(
    rf"(?<![\w.,])(?P<k>{ONE})\s*(?:[x\u00d7]|by)\s*(?P<n>{ONE})(?:\s*[x\u00d7]\s*(?P<more>{ONE}))?{_NO_CLAIM}(?!\w)"
)
_NAMES: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("dtype", {"bf16": "bf16", "bfloat16": "bf16", "f16": "f16", "fp16": "f16", "float16": "f16"}),
    ("mode", {"mxfp4": "mxfp4", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}),
)
_PART = r"(?![-\s](?:accumulat\w+|sums?|scales?|registers?|references?|results?|partial\w*))"
_F32 = re.compile(
    rf"(?<!accumulate\sin\s)(?<!accumulated\sin\s)(?<!accumulates\sin\s)\b(?:f|fp|float)32\b{_PART}", re.I
)
_OTHER_MODES = re.compile(rf"\b(?:int8|fp8|fp4|e4m3|e5m2)\b{_PART}", re.I)
"""Formats of which there is no fact."""
_QUANTITY = rf"(?:\s?(?:to|->|\u2192|/)\s?[\d.,]*\d)?[\s-]?(?:{UNIT})(?![\w/])"
_BARE = rf"\b(?![.,]\d)(?!{_QUANTITY})"
"""What follows a number of a name: with a unit of its own, or of the number it goes to, it is a claim."""
_MODEL = re.compile(
    r"\b(?:llama(?!\.cpp)|gemma|qwen|mistral|phi|mixtral|deepseek|lfm|d1(?=-))[\w.-]*"
    rf"(?:\s\d+(?:\.\d+)*{_BARE})?(?:[\s-]\d+(?:\.\d+)?[bB]\b)?",
    re.IGNORECASE,
)


def _patterns(*texts: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text, re.IGNORECASE | re.MULTILINE) for text in texts)


_REFERENCES = _patterns(
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
)
"""No size of a problem, and hidden before those are read."""
_COUNTS = _patterns(
    _MODEL.pattern,
    r"\b\d+(?:\.\d+)?B(?=[\s-](?:models?|parameters?|params|weights|llama|qwen))",
    rf"\b\d+(?:\s*(?:to|and|or|-|\u2013)\s*\d+)?[\s-](?:columns?|vectors?|tokens?{_NO_RATE}|threads?"
    r"|warps?"
    r"|lanes?|stages?|tiles?|layers?|heads?|lines?|simdgroups?)\b",
    r"\b(?:step|section|figure|fig\.|table|lines?|option|point|part|item|page|chapter|issue|PR|pull request"
    r"|layer|axis"
    rf"|rule|appendix|note|tile|phase)\s#?\d+(?:\.\d+)*{_BARE}",
    r"(?<![.,\d])\d{1,3}[\s-]bytes?\b|\b\d+(?:st|nd|rd|th)\b|\b[1-4]-?D\b",
    r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b",
    r"(?<!\w)(?:[A-Z]|\d+)\s*[x\u00d7]\s*[A-Z](?!\w)|(?<!\w)[A-Z]\s*[x\u00d7]\s*\d+(?!\.?\d)",
    r"^\s*(?:>\s*)*(?:[-*+]\s+)?(?:#+\s+)?(?:\d+(?:\.\d+)*[.)](?:\s|$)|\d+\.\d+\s(?!(?:" + UNIT + r")(?![\w/])"
    r"|(?-i:is|was|to|and|or|of|at|on|in|for|with|against|instead)\b))",
)
"""No claim either, and hidden once the sizes of problems are read."""
"""No claims: shapes, versions, references, dates, names, what a kernel is made of, list markers."""
_FAR = 4096
"""Sizes in a range, at most."""


@dataclass(frozen=True)
class Mention:
    kind: str
    """``device``, ``m``, ``shape``, ``k``, ``n``, ``batch``, ``tokens``, ``model``,
    ``bits``, ``group_size``, ``dtype`` or ``mode``."""
    said: frozenset[object] | tuple[str, ...]
    """Sizes; shapes as (K, N); names of devices in their order."""
    start: int
    end: int


def settled(text: str, devices: Devices) -> tuple[str, str, tuple[Mention, ...]]:
    """The text with all that is no claim blank, the same with the names of devices and models alone blank, and what
    it mentions."""
    words, found = text, list[Mention]()
    for match in devices.find(words):
        found.append(Mention("device", (match.group(),), *match.span()))
    words = _blank(words, found)
    found += [Mention("model", frozenset({plain(match.group())}), *match.span()) for match in _MODEL.finditer(words)]
    named = _blank(words, [one for one in found if one.kind == "model"])
    hosts = {devices.host(str(name)) for one in found for name in one.said if one.kind == "device"}
    found = [one for one in found if one.kind != "device" or devices.member(str(*one.said)) not in hosts - {None}]
    for pattern in _REFERENCES:
        words = pattern.sub(lambda match: " " * len(match.group()), words)
    for kind, pattern in _SIZED:
        if kind == "for" and not _OF_ROWS.search(text):
            continue
        mine = [Mention(kind.replace("for", "m"), _sizes(match), *match.span()) for match in pattern.finditer(words)]
        words, found = _blank(words, mine), [*found, *mine]
    mine = [
        Mention("shape" if not match["more"] else "", _shape(match), *match.span()) for match in _SHAPES.finditer(words)
    ]
    words, found = _blank(words, mine), [*found, *mine]
    for pattern in _COUNTS:
        words = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), words)
    found += [Mention("dtype", frozenset({"f32"}), *match.span()) for match in _F32.finditer(words)]
    found += [Mention("mode", frozenset({match.group()}), *match.span()) for match in _OTHER_MODES.finditer(words)]
    for kind, names in _NAMES:
        for match in re.finditer(rf"\b(?:{'|'.join(names)})\b", words, re.IGNORECASE):
            found.append(Mention(kind, frozenset({names[match.group().lower()]}), *match.span()))
    return words, named, tuple(sorted((one for one in found if _limits(one)), key=lambda one: one.start))


def plain(model: str) -> str:
    """A model's name without case and signs: ``Llama 3.2 1B`` begins ``Llama-3.2-1B-Instruct-4bit``."""
    return re.sub(r"[^a-z0-9]", "", model.lower())


def _limits(one: Mention) -> bool:
    """Whether it says which facts are meant: a size that no fact could have does not."""
    known = {"bits": frozenset(BITS), "group_size": frozenset((*GROUPS, 16))}.get(one.kind)
    return bool(one.kind) and bool(one.said) and (known is None or bool(known & frozenset(one.said)))


def _shape(match: re.Match[str]) -> frozenset[object]:
    return frozenset({(integer(match["k"]), integer(match["n"]))})


def _sizes(match: re.Match[str]) -> frozenset[object]:
    """2 to 7 are 2, 3, ... 7; 2, 4 and 7 are three; <= 8 are 1 to 8."""
    parts = match.groupdict()
    if word := parts.get("word"):
        return frozenset({WORDS.get(word.lower(), 1)})
    sizes: set[object] = set()
    for part in re.split(r",(?!\d{3}(?!\d))|/|\band\b|\bor\b", parts["sizes"]):
        ends = [integer(number) for number in re.findall(ONE, part)]
        if len(ends) == 2:
            sizes.update(range(ends[0], min(ends[1], ends[0] + _FAR) + 1))
        sizes.update(ends)
    first = integer(re.findall(ONE, parts["sizes"])[0])
    sign = parts.get("sign") or "="
    if sign in ("<", "<=", "\u2264", "up to"):
        sizes.update(range(1, min(first, _FAR) + (sign != "<")))
        sizes -= {first} if sign == "<" else set()
    elif sign in (">", ">=", "\u2265"):
        sizes.update(range(first + (sign == ">"), min(4 * first, first + _FAR) + 1))
        sizes -= {first} if sign == ">" else set()
    return frozenset(sizes)


def integer(words: str) -> int:
    return int(words.replace(",", "") or 0)


def _blank(words: str, found: Iterable[Mention]) -> str:
    for one in found:
        words = words[: one.start] + re.sub(r"[^\n]", " ", words[one.start : one.end]) + words[one.end :]
    return words
