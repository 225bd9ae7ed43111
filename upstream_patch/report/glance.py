"""What a host's records say at a glance: a few numbers, the worst beside the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from upstream_patch.records.decode_facts import conditions
from upstream_patch.records.facts import Fact
from upstream_patch.records.schema import Tool
from upstream_patch.report.cells import Book, Cell, link
from upstream_patch.report.tables import spoken

_WORDS = ("FASTER", "SAME", "SLOWER", "UNCLEAR")


@dataclass(frozen=True)
class Tile:
    title: str
    value: Cell
    about: str


def tiles(book: Book) -> list[Tile]:
    """None of them from a stale fact."""
    return [*_verdicts(book), *_ends(book), *_decode(book), *_right(book), *_tools(book), *_probe(book)]


def _verdicts(book: Book) -> Iterator[Tile]:
    facts = _today(book, "small_m", ".verdict")
    if facts:
        counts = Counter(str(fact.value) for fact in facts)
        said = ", ".join(f"{counts[word]} {word}" for word in _WORDS if counts[word])
        yield Tile("Rows timed", _counted(book, f"{len(facts)}", facts), f"ours against stock: {said}")


def _ends(book: Book) -> Iterator[Tile]:
    """The largest and the smallest ratio of all rows."""
    facts = _today(book, "small_m", ".speedup")
    if not facts:
        return
    for title, pick in (("Largest speedup", max), ("Smallest", min)):
        fact = pick(facts, key=lambda one: float(one.value))
        row = fact.id.removeprefix(f"small_m.{book.host}.").removesuffix(".speedup")
        yield Tile(title, book.cell(fact.id, ",.2f", unit="x"), spoken(row))


def _decode(book: Book) -> Iterator[Tile]:
    for fact in _today(book, "decode", ".B8.ours_tok_s"):
        stem = fact.id.removesuffix(".ours_tok_s")
        stock = book.cell(f"{stem}.stock_tok_s", ",.0f")
        model = stem.removeprefix(f"decode.{book.host}.").removesuffix(".B8")
        beside = f"stock MLX: {stock.text}" if not stock.tone else "stock MLX: not run"
        what = conditions({8: stem}, book.value) or "conditions not recorded"
        words = f"{model}, {what}, all sequences; {beside}"
        yield Tile("Decode, B = 8", book.cell(fact.id, ",.0f", unit=" tok/s"), words)


def _right(book: Book) -> Iterator[Tile]:
    """Cases of the correctness matrix, all dtypes."""
    cases, passed = (
        [fact for fact in _today(book, "correctness", f".{name}") if fact.id.count(".") == 3]
        for name in ("cases", "passed")
    )
    if cases and len(cases) == len(passed):
        total, right = (sum(float(fact.value) for fact in facts) for facts in (cases, passed))
        yield Tile("Correct results", _counted(book, f"{right:,.0f}", passed), f"of {total:,.0f} cases of our kernel")


def _tools(book: Book) -> Iterator[Tile]:
    errors = [fact for tool in get_args(Tool) for fact in _today(book, "sanitizer", f".{tool}.errors")]
    if errors:
        total = sum(float(fact.value) for fact in errors)
        names = ", ".join(fact.id.split(".")[2] for fact in errors)
        yield Tile("Sanitizer errors", _counted(book, f"{total:,.0f}", errors), names)


def _probe(book: Book) -> Iterator[Tile]:
    cell = book.cell(f"probe.{book.host}.read_gbps", ",.0f", unit=" GB/s")
    if not cell.tone:
        yield Tile("Read probe", cell, "memory bandwidth that the newest benchmark reached")


def _today(book: Book, family: str, suffix: str) -> list[Fact]:
    facts = (book.facts[f"{stem}{suffix}"] for stem in book.stems(family, suffix))
    return [fact for fact in facts if not fact.stale]


def _counted(book: Book, text: str, facts: Sequence[Fact]) -> Cell:
    """A number over many facts links to their record, or where they have several, to the list of records."""
    paths = {fact.record_path for fact in facts}
    return Cell(text, link(paths.pop()) if len(paths) == 1 else f"#{book.host}-records", f"from {len(facts)} facts")
