"""The table of measured results in README.md, filled from facts between two markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.records.facts import Fact

BEGIN = "<!-- facts:begin small_m -->"
END = "<!-- facts:end -->"
HOST = "h200"
WEIGHTS = ("4096x1024", "4096x4096", "4096x14336", "14336x4096", "4096x28672", "4096x128256")
ROWS = (1, 2, 4, 7, 8, 16)


def table(facts: Iterable[Fact]) -> str:
    """The Markdown table; one sentence where there is no fact yet. Raises UserError when a fact in it is stale."""
    by_id = {fact.id: fact for fact in facts}
    lines = [_row("K x N", [f"M = {m}" for m in ROWS]), _row("---", ["---:"] * len(ROWS))]
    empty = True
    for weights in WEIGHTS:
        cells = [_cell(by_id, f"small_m.{HOST}.{weights}.b4.g64.bf16.M{m}") for m in ROWS]
        empty = empty and not any(cells)
        lines.append(_row(weights.replace("x", " x "), [cell or "not run" for cell in cells]))
    return "No benchmark has been recorded yet." if empty else "\n".join(lines)


def fill(text: str, facts: Iterable[Fact]) -> str:
    """README's text with the managed block filled. Raises UserError when the markers are not there once, in order."""
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end or BEGIN in old + after or END in before + after:
        raise UserError(f"README.md needs one {BEGIN} and, after it, one {END}")
    return f"{before}{BEGIN}\n{table(facts)}\n{END}{after}"


def update(path: Path, facts: Iterable[Fact]) -> bool:
    """Fill the block in the file; True when that changed it."""
    text = path.read_text(encoding="utf-8")
    filled = fill(text, facts)
    if filled != text:
        write_text(path, filled)
    return filled != text


def _row(head: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([head, *cells])} |"


def _cell(facts: dict[str, Fact], stem: str) -> str:
    found = [facts.get(f"{stem}.{what}") for what in ("stock_us", "ours_us", "speedup")]
    stock, ours, speedup = found
    if stock is None or ours is None or speedup is None:
        return ""
    if any(fact is not None and fact.stale for fact in found):
        raise UserError(f"{stem} is stale (the kernel changed since it was measured): nox -s bench on {HOST} renews it")
    return f"{float(stock.value):,.1f} -> {float(ours.value):,.1f} ({float(speedup.value):.1f}x)"
