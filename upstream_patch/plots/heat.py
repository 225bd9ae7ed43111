"""Speedup over stock by format and M: a map for each K x N and dtype of which three or more formats were measured."""

from __future__ import annotations

from collections.abc import Mapping

from upstream_patch.plots.figures import Grid, HeatMap, about
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records.facts import Fact, current

_WEIGHTS = "x is [M, K]; a map is one K x N and dtype, a row one format; an empty cell was not run"
_PROTOCOL = "Cold weights; independent calls in a queue, which the GPU may overlap{one_graph}; stock time / our time"
_LEAST_FORMATS = 3
"""Of a map: two formats are two rows as wide as their M are many, which the tables show better."""


def speedup(facts: Mapping[str, Fact], host: str) -> HeatMap | None:
    """``facts`` are those of the host, by id. Raises StaleFact when one to be drawn is stale."""
    prefix, suffix = f"small_m.{host}.", ".speedup"
    found: dict[tuple[int, int, str], dict[Problem, Fact]] = {}
    for one, fact in facts.items():
        if one.startswith(prefix) and one.endswith(suffix):
            try:
                problem = parse_problem(one.removeprefix(prefix).removesuffix(suffix))
            except ValueError:  # hot weights, chains
                continue
            if problem.layout == "mk" and problem.batch == 1:
                found.setdefault((problem.k, problem.n, problem.dtype), {})[problem] = fact
    maps = {where: cells for where, cells in sorted(found.items()) if len(_formats(cells)) >= _LEAST_FORMATS}
    sources = [current(fact) for cells in maps.values() for fact in cells.values()]
    if not sources:
        return None
    notes, said = about(facts, sources, _WEIGHTS, _PROTOCOL)
    return HeatMap(
        name=f"{host}_speedup",
        title="Speedup over stock by format and M",
        notes=notes,
        unit="stock time / our time",
        sources=(*sources, *said),
        panels=tuple(_grid(where, cells) for where, cells in maps.items()),
    )


def _grid(where: tuple[int, int, str], cells: Mapping[Problem, Fact]) -> Grid:
    k, n, dtype = where
    return Grid(
        name=f"{k}x{n}.{dtype}",
        title=f"{k} x {n}, {dtype}",
        rows=_formats(cells),
        ms=tuple(sorted({problem.m for problem in cells})),
        values={(_format(problem), problem.m): float(fact.value) for problem, fact in cells.items()},
    )


def _formats(cells: Mapping[Problem, Fact]) -> tuple[str, ...]:
    """Affine ones by width and group size, then the floating ones."""
    ordered = sorted(cells, key=lambda problem: (problem.mode != "affine", problem.bits, problem.group_size))
    return tuple(dict.fromkeys(_format(problem) for problem in ordered))


def _format(problem: Problem) -> str:
    return f"{problem.bits} bits, group {problem.group_size}" if problem.mode == "affine" else problem.mode
