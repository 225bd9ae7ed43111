"""Which devices a sentence names: found by the pattern of their names, whether there are facts of them or not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from upstream_patch.draft.numbers import WORDS
from upstream_patch.records.facts import Fact
from upstream_patch.records.provenance import HOSTS

_ALIASES = {"DGX Spark": "gb10", "Blackwell GB10": "gb10"}
_CLASSES = {"sm90": "h200", "hopper": "h200", "sm121": "gb10", "blackwell": "gb10"}
"""Classes of a machine of ours: true of it only where the machine itself is named beside."""
_VENDOR = re.compile(r"^(?:NVIDIA|Apple|AMD|Intel)\s+", re.IGNORECASE)
_NAME = "|".join(
    (
        r"(?i:GB\d{2,3}|GH\d{2,3}|[ABH]\d{3}(?:NVL|SXM\d?|PCIe)?|H20|MI\d{2,3}[a-z]?|TPU(?:\s?v\d\w*)?|Gaudi\s?\d)",
        r"A(?:2|10G?|16|30|40)|A[2-6]000|L(?:4|20|40S?)|[VP]100|[TP]4|P40|K80",
        r"(?i:(?:GeForce\s)?(?:RTX|GTX)\s?(?:PRO\s|A)?\d{3,4}\w*(?:\s(?:Ti|Super|Ada))*)",
        r"(?i:Radeon|Instinct|Quadro|Tesla|Titan|Jetson|Arc|Adreno|Mali)\s(?:[A-Z]*\d\w*|[A-Z][a-z]+)",
        r"RX\s?\d{4}\w*|(?:Ryzen|EPYC|Xeon)(?:\s[\w+]*\d\w*)*|Orin|Thor|Xavier|Trainium\d?|Snapdragon",
        r"(?i:M[1-9](?:\s(?:Pro|Max|Ultra)))|[Mm][1-9](?!\s*[=x\u00d7])|A1[0-9]\s(?:Pro|Bionic)",
        r"(?i:DGX|HGX)(?:\s(?:Spark|Station|\w*\d\w*))?|Spark(?=[\s:,;.)]|$)|Strix\sHalo|MacBook(?:\s(?:Pro|Air))?|Mac\s(?:Studio|mini"
        r"|Pro)",
        r"(?:NVIDIA|AMD|Intel)\s(?!CUDA|MLX)[A-Z]+\s?\d\w*|i(?:Phone|Pad)(?:\s\d+)?|Raspberry Pi(?:\s\d)?",
        r"(?i:sm_?\d{2,3}[af]?)|(?i:compute capability)\s\d+\.\d|Hopper|Blackwell|Ampere|Ada(?:\sLovelace)?|Volta"
        r"|Turing|RDNA\s?\d?|CDNA\s?\d?",
        r"gfx\d{3,4}\w?|[pg]\d[a-z]*\.\d*x?large",
    )
)
_BROAD = (
    r"(?<![Tt]his\s)(?<![Tt]he\s)(?<![Mm]y\s)"  # of a machine that the text has named
    r"(?:(?:NVIDIA|Apple|AMD|Intel)\s(?:GPUs|cards)|Apple\s[Ss]ilicon|Macs?(?!\w))"
    r"|(?i:all|every|any|each|most|many|other|both|several|various|different|older|newer|smaller|bigger|cheaper|recent|modern|current|newest|latest"
    r"|supported|consumer|laptop|desktop|workstation|gaming|data[- ]?cent(?:er|re)|server|mobile)"
    r"\s(?:(?:of\s)?\w+\s){0,2}?(?:cards?|GPUs?|devices?|machines?|accelerators?|chips?)(?!\w)"
    r"|(?:GPUs|cards|(?<!thread\s)(?<!block\s)clusters?)(?!\w)"
)
"""Of many machines, or of one that is not named: a number that is said of them is of none that was run."""
_COUNT = (
    r"(?:\d+\s?[x\u00d7]\s?|(?<![=<>\u2264\u2265]\s)(?<![=<>\u2264\u2265])(?:[2-9]|[1-9]\d+)\s"
    rf"|(?i:{'|'.join(word for word, value in WORDS.items() if 1 < value < 100)})[\s-]"
    r"|(?i:dual|twin|quad|several|multiple|many)[\s-]"
    r"|(?i:pairs?|couples?|nodes?|clusters?|hosts?|racks?|pods?)\sof\s(?:\w+\s)?)"
)
"""Machines of a kind: a fact of one is none of theirs."""
_COUNTED = r"(?:\s?[x\u00d7]\s?\d+(?!\s?[x\u00d7\d.])|[\s-](?:pairs?|clusters?|nodes?|pods?|racks?)(?!\w))"
_MADE = (
    r"\s(?:runs?|records?|numbers?|profiles?|hours?|sessions?|measurements?|results?|facts?|rows?|columns?|tables?)\b"
)
"""Behind a count and a name, what is counted: two H200 runs are of one H200."""
_TAIL = r"(?:[\s-](?:NVL\d*|SXM\d?|PCIe|MIG|Ti|Super|\d+\s?GB))*"
_KIND = r"(?:\s(?:GPU|card|machine|device|chip|board)s?(?!\w))?"
_LIKE = r"(?:[\s-](?:class|like|level|type|series|family|generation)\b)?"


class Devices:
    """The names that facts know, and every other that has the form of a device's."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        named = {product: host for host, product in HOSTS.items()} | {host: host for host in HOSTS} | _ALIASES
        named |= {fact.host: fact.host for fact in facts} | {
            str(fact.value): fact.host for fact in facts if fact.id.startswith("record.") and fact.id.endswith(".gpu")
        }
        named |= {_VENDOR.sub("", name): host for name, host in named.items()}
        self._hosts = {_plain(name): host for name, host in named.items()}
        self.known = frozenset(fact.host for fact in facts)
        """Hosts that facts are of."""
        whole = "|".join(re.escape(name) for name in sorted(named, key=len, reverse=True))
        vendor = r"(?:NVIDIA\s|Apple\s|AMD\s|Intel\s)?"
        name = rf"(?:(?:{_BROAD})(?!\s(?:Studio|mini|Pro))|{vendor}(?:{_NAME})|(?i:{whole})){_TAIL}{_LIKE}s?{_KIND}"
        many = rf"{_COUNT}{name}(?![\w%])(?!{_MADE})|{name}{_COUNTED}"
        self._pattern = re.compile(rf"(?<![\w.])(?:{many}|{name})(?![\w%])")

    def find(self, words: str) -> list[re.Match[str]]:
        return list(self._pattern.finditer(words))

    def host(self, name: str) -> str | None:
        """The host whose facts are about it; None for every other device, and for a class of them."""
        return self._hosts.get(_plain(re.sub(rf"^1\s?[x\u00d7]\s?|{_KIND}$", "", name)))

    @staticmethod
    def broad(name: str) -> bool:
        """Whether it is of many machines, which a text may name without having run them."""
        return bool(re.fullmatch(_BROAD, name))

    @staticmethod
    def member(name: str) -> str | None:
        """The host of ours that is of a class, such as ``sm_90``."""
        return _CLASSES.get(re.sub(r"[_\s]|[af]$", "", name.lower()))


def _plain(name: str) -> str:
    """Without the vendor, an ending of the plural, and in small letters."""
    return re.sub(r"s$", "", _VENDOR.sub("", " ".join(name.split())).lower())
