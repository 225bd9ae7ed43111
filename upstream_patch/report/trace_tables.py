"""Where the time of a decode step goes on the device, function by function."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from upstream_patch.report.cells import NOT_RUN, Book, Cell, Group, Row, Table

_ARMS = ("stock", "folded", "ours")
_TRACED = re.compile(
    r"(?P<stem>decode\.\w+\.(?P<model>.+)\.B(?P<b>\d+))\.(?P<arm>stock|folded|ours)_trace\.(?P<function>\w+)\.us"
)
_LONGEST = 44
"""Characters of a name: MLX names what it fuses after all that is in it."""


def trace_tables(book: Book) -> Iterator[Table]:
    """One for each model that was traced."""
    found = [match for one in book.facts if (match := _TRACED.fullmatch(one))]
    found.sort(key=lambda match: (match["model"], int(match["b"])))
    for model, of_model in groupby(found, key=lambda match: match["model"]):
        groups = []
        for b, members in groupby(of_model, key=lambda match: int(match["b"])):
            traced = list(members)
            stem = traced[0]["stem"]
            functions = dict.fromkeys(match["function"] for match in traced)
            rows = [Row(_short(one), tuple(_time(book, stem, arm, one) for arm in _ARMS)) for one in functions]
            rows.sort(key=lambda row: -max(map(_us, row.cells)))
            whole = [
                Row(words, tuple(_cell(book, f"{stem}.{arm}_trace.{name}", ",.0f") for arm in _ARMS))
                for name, words in (("kernels_us", "all kernels"), ("span_us", "first start to last end"))
            ]
            groups.append(Group(f"B = {b}", (*rows, *whole)))
        yield Table(
            anchor=f"{book.host}-decode-{model}-trace",
            title=f"Where a step of {model} spends its time on the device",
            about="Microseconds a step by kernel function, and under them its launches, as CUPTI saw them in a process "
            "of its own: tracing costs time, so no speed follows. Kernels may overlap, so their sum may exceed the "
            "span; what the span has beyond them, the device waited. Instances of one template are summed.",
            columns=("", "stock", "stock, folded", "ours"),
            groups=tuple(groups),
        )


def _time(book: Book, stem: str, arm: str, function: str) -> Cell:
    cell = _cell(book, f"{stem}.{arm}_trace.{function}.us", ",.0f")
    if cell.tone:
        return cell
    launches = book.cell(f"{stem}.{arm}_trace.{function}.launches", ",.0f", unit=" x")
    return replace(cell, below=launches)


def _cell(book: Book, fact_id: str, digits: str) -> Cell:
    """A function that an arm does not call was traced all the same."""
    cell = book.cell(fact_id, digits)
    return replace(cell, text="-") if cell.text == NOT_RUN else cell


def _us(cell: Cell) -> float:
    return 0.0 if cell.tone else float(cell.text.replace(",", ""))


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
