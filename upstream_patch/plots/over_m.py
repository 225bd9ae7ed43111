"""Time, share of the read probe, and bytes read, over M: affine 4-bit weights of group size 64, bf16, x is [M, K]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from upstream_patch.plots.figures import Curve, Figure, Panel, Point, Scale, about
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records.facts import Fact, current

_LIKE = Problem(m=1, n=1, k=1)
"""Its width, group size, mode, type and layout are those of the plots."""
_WEIGHTS = "affine 4-bit weights, group size 64, bf16, x is [M, K]; a panel is one K x N"
_TIMED = "Cold weights; independent calls in a queue, which the GPU may overlap{one_graph}; medians"
_COUNTED = "Nsight Compute, one call on flushed caches, summed over its kernels; profiled, so no times"


def time(facts: Mapping[str, Fact], host: str) -> Figure | None:
    """Device time. ``facts`` are those of the host, by id. Raises StaleFact when one to be drawn is stale."""
    names: dict[Curve, str] = {"stock": "stock_us", "ours": "ours_us"}
    unit = "device time, microseconds (log scale)"
    return _benchmarked(facts, host, "time", "Device time of a quantized matmul over M", unit, names, "log")


def read_fraction(facts: Mapping[str, Fact], host: str) -> Figure | None:
    """How fast the packed bytes were in that time, as a share of the read probe of the run."""
    names: dict[Curve, str] = {"stock": "stock_read_fraction", "ours": "read_fraction"}
    unit = "packed bytes / time / read probe of the run"
    return _benchmarked(facts, host, "read_fraction", "Share of the read probe over M", unit, names, "share")


def dram(facts: Mapping[str, Fact], host: str) -> Figure | None:
    """Bytes that one call reads from device memory, as the profiler counted them."""
    curves: dict[tuple[int, int], dict[Curve, list[Point]]] = {}
    sources: list[Fact] = []
    for problem, stem in _problems(facts, f"ncu.{host}.", ".packed_bytes"):
        for arm in ("stock", "ours"):
            if fact := facts.get(f"{stem}.{arm}.dram_bytes_read"):
                sources.append(current(fact))
                points = curves.setdefault((problem.k, problem.n), {"stock": [], "ours": []})[arm]
                points.append(Point(problem.m, float(fact.value) / 1e6, arm == "stock"))
    if not sources:
        return None
    notes, said = about(facts, sources, _WEIGHTS, _COUNTED)
    return Figure(
        name=f"{host}_dram",
        title="Bytes that one call reads from device memory over M",
        notes=notes,
        unit="read, MB of 1e6 bytes (log scale)",
        sources=(*sources, *said),
        panels=_panels(curves),
    )


def _benchmarked(
    facts: Mapping[str, Fact], host: str, what: str, title: str, unit: str, names: Mapping[Curve, str], scale: Scale
) -> Figure | None:
    sources: list[Fact] = []
    found: dict[tuple[int, int], dict[Curve, list[Point]]] = {}
    for problem, stem in _problems(facts, f"small_m.{host}.", ".ours_us"):
        pair = [facts.get(f"{stem}.{name}") for name in names.values()]
        route = facts.get(f"{stem}.route")
        if None in pair or route is None:
            continue
        curves = found.setdefault((problem.k, problem.n), {arm: [] for arm in names})
        sources.append(current(route))
        for arm, fact in zip(names, pair, strict=True):
            assert fact is not None
            sources.append(current(fact))
            by_stock = arm == "stock" or route.value != "small_m"
            curves[arm].append(Point(problem.m, float(fact.value), by_stock))
    if not sources:
        return None
    notes, said = about(facts, sources, _WEIGHTS, _TIMED)
    return Figure(f"{host}_{what}", title, notes, unit, (*sources, *said), _panels(found), scale)


def _panels(found: Mapping[tuple[int, int], Mapping[Curve, Iterable[Point]]]) -> tuple[Panel, ...]:
    return tuple(
        Panel(f"{k}x{n}", {arm: tuple(points) for arm, points in curves.items()}) for (k, n), curves in found.items()
    )


def _problems(facts: Iterable[str], prefix: str, suffix: str) -> list[tuple[Problem, str]]:
    """Problems with cold weights and queued calls, which an id says by saying nothing, and the stems of their facts; by
    bytes of the weights, then M."""
    found = []
    for one in facts:
        if not (one.startswith(prefix) and one.endswith(suffix)):
            continue
        stem = one.removesuffix(suffix)
        try:
            problem = parse_problem(stem.removeprefix(prefix))
        except ValueError:
            continue
        if problem == _LIKE.model_copy(update={"m": problem.m, "n": problem.n, "k": problem.k}):
            found.append((problem, stem))
    return sorted(found, key=lambda item: (item[0].weight_bytes, item[0].k, item[0].m))
