"""Who is compared with whom in a sentence, and which way: stock, folded, ours or another library; faster or slower."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from upstream_patch.draft import rivals
from upstream_patch.draft.numbers import UNIT

_PR = r"(?:change|patch|PR|pull request|series|branch)"
_THE = rf"(?:the|this|our|my)\s(?:\w+\s)?(?:{_PR}|kernel)"
_VALUE = rf"(?=\s*[:=]?\s*(?:~|about\s)?\d[\d.,]*\s?(?:{UNIT})(?![\w/]))"
_TAKES = (
    rf"(?:{_VALUE}|(?=\s(?:now\s|only\s|alone\s)?(?:takes?|took|needs?|decodes?|reaches|gets|runs|costs|is|was)\b"
    r"(?!\s(?:for|about|that|because|where|to|not)\b)))"
)
"""What is said of a number follows: the words before it may mean much else."""
_NEXT_TO = r"(?:(?<=than\s)|(?<=over\s)|(?<=against\s)|(?<=versus\s)|(?<=vs\s))"
_CODE = r"\s(?:kernel|version|build|code|path|route|dispatch)"
_ARMS: Mapping[str, str] = {
    "ours": rf"ours|our\s(?:\w+\s)?(?:kernel|version|route|arm)|(?:the\s)?(?:new|patched|proposed)\s(?:kernel"
    rf"|version|build)"
    rf"|patched|staged|(?:with|after)\s{_THE}|small_m|(?<!of\s)(?:the|this|our|my)\s{_PR}{_TAKES}"
    rf"|{_NEXT_TO}(?:the|this|our|my)\s{_PR}|(?:after|new|patch|PR|(?:the\s)?proposed\sone){_VALUE}|new{_CODE}",
    "stock": r"stock(?:'s)?|baseline|unpatched|vanilla|MLX's\sown(?:\s\w+)?|(?:today's|released|current|upstream"
    r"|stock)\sMLX"
    rf"|on\smain|main\sbranch|(?:before|without)\s{_THE}|qmv|(?:main|upstream){_TAKES}"
    rf"|{_NEXT_TO}(?:main|upstream)(?!\s(?:memory|loop))|(?:before|old|previously|formerly|used\sto\s(?:take|need|cost|be|run\sin)){_VALUE}|(?:old|existing){_CODE}",
    "folded": r"folded|folding(?:\salone)?",
    "peer": r"PyTorch(?:'s)?|torch(?!\.compile)|tinygemm|prepacked",
}
_TRAILING = re.compile(
    rf"\d\s?(?:{UNIT})\s?(?:\(|\s)(?:(?P<ours>after|new|patched)|(?P<stock>before|old|unpatched))"
    r"(?=\s*(?:[,;.:)|]|$|and\b|but\b|vs\b|versus\b|against\b|->|\u2192))",
    re.IGNORECASE,
)
"""An arm said behind its number."""
_ARM = re.compile(
    "|".join(rf"(?P<{name}>(?<![\w-])(?:{words})(?![\w-]))" for name, words in _ARMS.items()), re.IGNORECASE
)
_AGAINST = r"than|over|against|versus|vs\.?|(?:relative|compared)\s(?:to|with)|beats?|outperforms?"
"""What is measured against stands behind it."""
_OBJECT = re.compile(
    rf"\b(?:{_AGAINST}|outpaces?"
    r"|surpass(?:es)?|of|as)"
    r"(?:\s(?:that\sof|of|the|with|on|as))*\s+$",
    re.IGNORECASE,
)
_CONTRAST = re.compile(r"\s*(?:than|against|versus|vs\.?|compared|instead|rather)\b", re.IGNORECASE)
_BEHIND = re.compile(rf"\b(?:{_AGAINST})\s(?:that\sof\s)?(?:an?\s|the\s)?$", re.IGNORECASE)
_TIME = r"(?:time|latency|cost|duration)"
_WORSE = re.compile(
    r"\b(?:slower|slow-?downs?|longer|worse|regress\w*|los(?:es|ing)|as\s(?:long|slow)"
    rf"|(?:more|higher|larger|increased?)\s{_TIME}|(?:less|lower|fewer)\s(?:throughput|bandwidth|tokens|tok/s)"
    r"|(?:throughput|bandwidth|tokens?|speed)\s(?:\w+\s)?(?:drops?|falls?|shrinks?|decreas\w*)"
    rf"|(?<=x\s)the\s(?:\w+\s)?{_TIME}|(?<=times\s)the\s(?:\w+\s)?{_TIME})\b",
    re.IGNORECASE,
)
_BETTER = re.compile(
    r"\b(?:faster|quicker|sooner|speed-?ups?|speeds?\sup|sped\sup|gain(?:s|ed)?|improv\w+|outperform\w*|outpac\w+"
    r"|surpass\w*"
    r"|beats?|better|cheaper|shorter|as\sfast|fewer|less|lower|reduc\w+|saves?|saved|cuts?|drops?|falls?|shrinks?|decreas\w*|more|higher)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(r"\b(?:not|never|no|isn't|aren't|without)\s(?:any\s|a\s|much\s|been\s|getting\s)*$", re.IGNORECASE)
_LOSS = re.compile(
    r"\b(?:less|lower|shorter|reduc\w*|saves?|saved|fewer|cuts?|drops?|falls?|shrinks?|decreas\w*)\b", re.IGNORECASE
)
_GAIN = re.compile(r"\b(?:faster|quicker|more|higher|gains?|improv\w*|speed-?ups?)\b", re.IGNORECASE)
_OF_TIME = re.compile(rf"\b(?:{_TIME}s?|as\slong|as\smuch)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Comparison:
    """What the words around a number say of it."""

    arm: str
    """The one whose time or rate it is; empty where the clause names none, or several."""
    other: str
    """What ours is compared with: ``stock``, ``folded`` or ``peer``; empty where that is not said."""
    direction: int
    """1: ours is the better one, -1: the worse, 0: not said."""
    gain: bool
    """A percentage is of what it was before (faster) ..."""
    loss: bool
    """... or of what it is saved from (less)."""
    of_time: bool
    """It may be the quotient of times, ours over the other's ..."""
    share: bool
    """... and, where nothing is called more or less, so may a percentage."""


@lru_cache(maxsize=256)
def compare(text: str, clause: tuple[int, int], reach: int = 0) -> Comparison:
    """Of a clause of a sentence; what it leaves out is looked for in the whole of it.

    ``reach``: where what it is compared with ends, in a clause of its own: ``faster | than stock``.
    """
    here = text[slice(*clause)]
    signs = _signs(here) or _signs(text)
    contrast = _CONTRAST.match(here) and ":" not in here
    mine = {name for name, is_object in _arms(here) if not is_object or contrast}
    others = _objects(text[clause[0] : max(reach, clause[1])]) or _objects(text)
    subject = next(iter(mine)) if len(mine) == 1 else ""
    flipped = "ours" in others or (subject not in ("", "ours") and not _CONTRAST.match(here))
    direction = sum(signs) if len(signs) == 1 else 0
    known = (others | ({subject} if flipped else set())) - {"ours", ""}
    return Comparison(
        arm=subject,
        other=next(iter(known)) if len(known) == 1 else "",
        direction=-direction if flipped else direction,
        gain=bool(_GAIN.search(here)),
        loss=bool(_LOSS.search(here)),
        of_time=bool(_OF_TIME.search(here)),
        share=bool(_OF_TIME.search(here)) and not _signs(here),
    )


def contrasts(text: str, start: int) -> bool:
    """Whether what stands there says what the clause before it is compared with."""
    return bool(_CONTRAST.match(re.sub(r"^[,\s]+", "", text[start:])))


def rival(text: str, start: int) -> str:
    """The library without a fact that what stands at ``start`` is compared with; empty where it is none."""
    for match in rivals.LIBRARY.finditer(text, start):
        if against(text, match.start()):
            return "" if _objects(text[start : match.start()]) else match.group()
    return ""


def against(text: str, start: int) -> bool:
    """Whether what stands there is what another is compared with."""
    return bool(_BEHIND.search(text[:start]))


def of_another(text: str) -> bool:
    """Whether a sentence names an arm that is not ours."""
    return any(name != "ours" for name, _ in _arms(text))


def pairs(text: str) -> list[tuple[int, int]]:
    """Where two arms are named in one breath: ``stock and ours``."""
    found = list(_ARM.finditer(text))
    return [
        (one.start(), then.end())
        for one, then in pairwise(found)
        if re.fullmatch(r"\s*(?:,|and|or|/)\s*(?:with\s)?", text[one.end() : then.start()])
    ]


def _arms(words: str) -> list[tuple[str, bool]]:
    """(arm, whether it is what another is compared with), in order."""
    return [(name, bool(_OBJECT.search(words[max(0, place - 60) : place]))) for place, _, name in spans(words)]


@lru_cache(maxsize=256)
def spans(words: str) -> tuple[tuple[int, int, str], ...]:
    """Where arms are named, and which, in order."""
    found = [(*match.span(), str(match.lastgroup)) for match in _ARM.finditer(words)]
    trailing = [(*match.span(str(match.lastgroup)), str(match.lastgroup)) for match in _TRAILING.finditer(words)]
    known = {place for place, _, _ in found}
    return tuple(sorted([*found, *(one for one in trailing if one[0] not in known)]))


def _objects(words: str) -> set[str]:
    return {name for name, is_object in _arms(words) if is_object}


def _signs(words: str) -> set[int]:
    found = set()
    for pattern, sign in ((_WORSE, -1), (_BETTER, 1)):
        for match in pattern.finditer(words):
            if not _DENIED.search(words[max(0, match.start() - 60) : match.start()]):
                found.add(sign)
        words = pattern.sub(lambda match: " " * len(match.group()), words)
    return found
