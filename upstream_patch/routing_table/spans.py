"""Putting neighbours with one answer together, and the Markdown of what comes out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
Box = tuple[tuple[str, ...], ...]
"""For each place of a key, the parts that it stands for."""


def ranges(values: Sequence[int], answer: Callable[[int], T]) -> Iterator[tuple[str, T]]:
    """Spans of neighbours with one answer; the last one is open."""
    for found, group in groupby(values, answer):
        inside = list(group)
        if inside[-1] == values[-1]:
            yield ("any" if inside[0] == values[0] else f"from {inside[0]:,}"), found
        else:
            yield (f"{inside[0]:,}" if len(inside) == 1 else f"{inside[0]:,} to {inside[-1]:,}"), found


def collapse(answers: Mapping[tuple[str, ...], T]) -> list[tuple[Box, T]]:
    """Boxes of keys with one answer: keys that differ in one place only are put together, the last place first."""
    rows: list[tuple[Box, T]] = [(tuple((part,) for part in key), answer) for key, answer in answers.items()]
    for axis in reversed(range(len(rows[0][0]))):
        merged: dict[tuple[Box, T], tuple[str, ...]] = {}
        for key, answer in rows:
            rest = ((*key[:axis], (), *key[axis + 1 :]), answer)
            merged[rest] = merged.get(rest, ()) + key[axis]
        rows = [((*key[:axis], parts, *key[axis + 1 :]), answer) for (key, answer), parts in merged.items()]
    return rows


def names(some: Sequence[str], every: Sequence[str], word: str = "any") -> str:
    """Parts of a key in words; ``word`` stands for all of them."""
    if set(every) - set(some):
        return ", ".join(some)
    return ", ".join([word, *(one for one in some if one not in every)])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
