"""Numbers that are nothing that was measured: of another quantity, version or statistic, a difference, or a part."""

from __future__ import annotations

import re
from collections.abc import Sequence

from upstream_patch.draft.numbers import Number
from upstream_patch.records.facts import Fact

SPEED = ("us", "ratio", "percent", "tokens/s", "GB/s", "TFLOP/s")
"""Units in which somebody is fast."""
_SAVED = re.compile(
    r"\b(?:sav(?:es?|ed|ing)|shav(?:es?|ed|ing)|(?:cuts?|drops?|falls?|fell|reduc\w+|grow\w*|faster|slower|longer|shorter)\sby)"
    r"\s(?:about\s|over\s|some\s|nearly\s|~)?$",
    re.IGNORECASE,
)
_LESS = re.compile(
    r"\s(?:less|more(?!\sthan\s\d)|faster|slower|longer|shorter|extra|saved|per\srow|a\srow|each\srow)\b", re.IGNORECASE
)
_UNMEASURED = re.compile(
    r"\b(?:TTFT|time to first token|(?P<forward>prefill\w*|prompt processing)|energy|power|watts?|perplexity"
    r"|(?:peak )?memory use|compile time|build time|load time|training|first token"
    r"|gather_qmm|MoE|experts?|on\s(?:an?\s|the\s)?CPUs?)\b",
    re.IGNORECASE,
)
_VERSION = re.compile(r"\b(?P<name>MLX|CUDA)\s(?:version\s)?v?(?P<version>\d+(?:\.\d+)+)", re.IGNORECASE)
_STATISTIC = re.compile(
    r"\bpercentile|\bp9\d\b|\bworst[- ]case|\b(?:an?|the|on|in)\s(?:mean|average|minimum|maximum)\b", re.IGNORECASE
)
_ONE_OF_THEM = re.compile(
    r"\b(?:per|each|every|any)\s(?:single\s|one\s)?(?:of\s(?:the|our|its|these|those)\s)?(?:\d+\s)?"
    r"(?:clients?|users?|sequences?|requests?|streams?|agents?|sessions?|persons?|people|conversations?)\b",
    re.IGNORECASE,
)


def why(text: str, clause: str, number: Number, facts: Sequence[Fact]) -> str:
    """Why a number of a sentence, in that clause of it, is none of theirs; empty where it may be."""
    other = _UNMEASURED.search(clause) if number.unit in SPEED else None
    if other and not (other["forward"] and any(one.id.startswith("forward.") for one in facts)):
        return f"is said of {other.group()}, of which this draft has no fact"
    if number.unit in SPEED and (said := _VERSION.search(clause) or _VERSION.search(text)):
        kind, parts = f".{said['name'].lower()}", said["version"].split(".")
        ours = {str(one.value) for one in facts if one.id.startswith("record.") and one.id.endswith(kind)}
        if ours and all(one.split(".")[: len(parts)] != parts for one in ours):
            return f"is said of {said.group()}, and the facts are of {' and '.join(sorted(ours))}"
    if number.unit == "tokens/s" and (said := _ONE_OF_THEM.search(text)):
        return f"is said {said.group()}, and the facts are of all sequences together"
    if number.unit != "us":
        return ""
    if _SAVED.search(text[: number.start]) or _LESS.match(text, number.end):
        return "is a difference, or of a part: give both times, or pin the fact that it is"
    if _STATISTIC.search(clause):
        return "is no median, as the facts are: say it of the median, or pin the fact"
    return ""
