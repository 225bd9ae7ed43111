"""Words that claim without a number: the best, always, faster, and devices that are merely named."""

from __future__ import annotations

import re
from collections.abc import Sequence

EXTREME = re.compile(
    r"\b(?:fastest|quickest|best(?:-in-class)?|optimal(?:ly)?|ideal(?:ly)?|perfect(?:ly)?|superior|unmatched|unbeat\w+"
    r"|blazing(?:ly)?|state[- ]of[- ]the[- ]art|saturat\w+|speed of light|peak(?!\smemory)|roofline|significant(?:ly)?"
    r"|substantial(?:ly)?"
    r"|considerabl[ey]|dramatic(?:ally)?|vast(?:ly)?|huge(?:ly)?|massive(?:ly)?|tremendous(?:ly)?|enormous(?:ly)?"
    r"|negligible|fully utili[sz]ed|strictly better"
    r"|unrivall?ed|unparallel\w+|second to none|no other (?:\w+ ){0,2}comes? (?:close|near)"
    r"|(?:memory|bandwidth|DRAM|HBM|full|line|peak) (?:speed|limits?|ceiling)|bandwidth[- ]limited"
    r"|(?:stay\w*|remain\w*|keep\w*|nearly|almost|is|are) (?:flat|constant)"
    r"|(?:not|n't) depend on (?:M|B|the (?:batch|number))|(?:grow\w*|scal\w+|ris\w+) linearly"
    r"|(?:of|under|within|below|in) (?:an?|one) (?:milli|micro)?second|sub-?(?:milli|micro)second"
    r"|(?:much|far|way|a lot) (?:faster|slower|better))\b",
    re.IGNORECASE,
)
"""Borne out by a number beside it."""
ABSOLUTE = re.compile(
    r"\b(?:always|never(?!\s(?:\w+\s)?(?:run|ran|measured|tested|tried|timed|seen)\b)"
    r"|everywhere|across the board|(?:in|for|on|at) (?:all|any|every) (?:cases?|shapes?|sizes?"
    r"|devices?|GPUs?)"
    r"|all (?:shapes|sizes|devices|GPUs|cases|models|layers|formats)"
    r"|(?:accuracy|perplexity|outputs?|results?|tokens?|quality|memory use|(?:compile|build) time)\b[^.;,]{0,30}"
    r"\b(?:identical|unchanged|the same|equal)"
    r"|(?:any|every) (?:shape|size|device|GPU|case|card|batch size|M\b|model|layer|format|problem)"
    r"|bit[- ](?:identical|exact|for[- ]bit)|bitwise|errors? (?:is|are|of) (?:zero|0(?![.\d])|nil)|error[- ]free"
    r"|no (?:\w+ )?(?:tests?|cases?|rows?|shapes?) (?:fails?|regress\w*|differs?)|(?:spills? nothing|no spills?)"
    r"|(?:is|are|comes?|nearly|almost|practically) free(?= (?:on|at|in|with|for)\b|\W*$)"
    r"|(?:no|zero|any|without(?: any)?)[- ](?:regressions?|overhead|slow-?downs?|cost|loss(?:es)?)"
    r"|regression[- ]free|no slower"
    r"|(?:than|of) (?:any|all|every)(?:thing)?(?: other)?|free of charge|(?:for|comes) free|lossless|guarantee\w*)\b",
    re.IGNORECASE,
)
"""Said of everything: only a pinned fact, or a count of all, bears it out."""
OF_RESULTS = re.compile(r"bit|error|identical|same|equal|unchanged|fail", re.IGNORECASE)
"""Of ``ABSOLUTE``, what a pinned count of checked results shows."""
COMPARED = re.compile(
    r"\b(?:faster|slower|quicker|outperform\w*|outpac\w*|surpass\w*|beats?|speeds? up|sped up|speed-?ups?|slow-?downs?"
    r"|regress(?:es|ed|ions?)?|wins?|won|competitive|rivals(?= \w)"
    r"|match(?:es|ing)(?= (?:the )?(?:[\w-]+ )?(?:kernels?|performance|speed|stock|PyTorch)\b)|keeps? up with"
    r"|costs? (?:the same|no more|nothing)|(?:no|not) (?:more|longer|slower) than|as fast as|as much as"
    r"|(?:at|for) the (?:latency|cost|price|time|speed) of (?:an?|one|two|three|four|stock)\b|on par with|level with"
    r"|(?:takes?|needs?|has|have|at|in) the same (?:time|speed|cost|latency|throughput))\b",
    re.IGNORECASE,
)
"""A comparison, which needs a number, or a verdict of the problems that it is said of."""
EQUAL = re.compile(r"\b(?:same|no|not|nothing|as fast as|as much as|of|on par|level)\b", re.IGNORECASE)
"""In such a comparison: neither is the faster one."""
_NOT_SAID = re.compile(
    r"\b(?:would|could|should|may|might|can|expect\w*|predict\w*|forecast\w*|hope\w*|want\w*|plan\w*|intend\w*"
    r"|aim\w*|goal"
    r"|if|whether|please|will|ask\w*|offer\w*|suggest\w*|propos\w*|to (?:be|make|get|become|run|see))\b|\?",
    re.IGNORECASE,
)
_INVENTORY = re.compile(
    r"(?:(?:in|for|on|at) )?(?:all|any|every) (?:M|(?:shape|size|model|layer|format|problem|case|batch size)s?)",
    re.IGNORECASE,
)
_POINTS = re.compile(r"\b(?:tables?|below|above|columns?|lists?|listed|see|records?|script|verdicts?)\b", re.IGNORECASE)
_LOOKED = (
    r"(?:run|ran|running|measur\w+|tim(?:ed|ings?)|test\w*|tr(?:y|ied)|benchmark\w*|have|has|had|own\w*|access"
    r"|records?|numbers?"
    r"|facts?|results?|evidence|hardware|data|seen|checked|claims?|figures?)"
)
_UNSEEN = re.compile(
    rf"(?:\b(?:not|no|nothing|nobody|none|never|without|lack\w*|cannot|missing|unable|nor)\b|n't\b).*\b{_LOOKED}\b"
    rf"|\b{_LOOKED}\b.*\b(?:not|nobody|none|never|pending|nor|no\s(?:GB10|M5|machine|device|card|GPU|such|other))\b"
    r"|\b(?:records?|numbers?|results?|evidence|data|facts?|figures?|hardware|access)\b.{0,40}\bmissing\b"
    r"|\b(?:un(?:tested|measured|tried|known|available)|pending|yet to|remains? to|still (?:to|need\w*)|not run)\b",
    re.IGNORECASE | re.DOTALL,
)
_BUILT = re.compile(
    r"\b(?:compil\w+|assembl\w+|builds?|built|target\w*|nvcc|ptxas|PTX|SASS|instructions?|dispatch\w*|architectures?)\b"
    r"|\b(?:has|have|with|shares?|gives|offers)\s(?:about\s|only\s|just\s)?"
    r"(?:[\d,.]+|an?|its|one|two|half|twice|more|fewer|less|unified|shared)\s.*\b(?:memory|SMs?|bandwidth|cache|registers|cores?"
    r"|multiprocessors?|units)\b"
    r"|\b(?:uses?|takes?|has)\s(?:\w+\s){0,3}(?:kernels?|routes?|paths?)\b"
    r"|\b(?:report(?:s|ed)?(?:(?=,)|\s(?:by|in|of|from|that|it)\b)|downstream|upstream|request\w*|asked?|asks"
    r"|(?:needs?|requires?)\s(?:an?|the|this|that|its|sm_\w+|CUDA|macOS|MLX))\b",
    re.IGNORECASE | re.DOTALL,
)
_BEHAVES = re.compile(
    r"\b(?:now|also|still|then)\s\w+s\b|\b(?:scal(?:es|ed|ing)|linear(?:ly)?|improv\w+|gains?|speeds\sup)\b",
    re.IGNORECASE,
)
"""How something runs, which a device's name in the clause before says where."""


def stated(text: str) -> bool:
    """Whether a sentence says that something is so: no wish, forecast, question, or pointer to a table."""
    return not (_NOT_SAID.search(text) or _POINTS.search(text))


def listed(text: str, match: re.Match[str]) -> bool:
    """Whether what is said of all is only that a table, or a test, has it."""
    return bool(_POINTS.search(text) and _INVENTORY.fullmatch(match.group()) and not COMPARED.search(text))


def unseen(text: str, after: Sequence[str] = ()) -> bool:
    """Whether a sentence says of a device that it was not run, or only what it is built for or reported of.

    ``after``: the clauses behind the device's own. What one says of how it runs there is not built or reported.
    """
    if _UNSEEN.search(text) or _NOT_SAID.search(text):
        return True
    return bool(_BUILT.search(text)) and not any(_BEHAVES.search(one) and not _BUILT.search(one) for one in after)
