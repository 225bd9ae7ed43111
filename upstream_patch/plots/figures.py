"""What the plots show, from facts alone: affine 4-bit weights of group size 64, bf16, cold, queued, x is [M, K]."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from upstream_patch.measure import graphs
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records.facts import Fact, current
from upstream_patch.records.schema import Arm

Quantity = Literal["time", "read_fraction"]
ARMS: tuple[Arm, ...] = ("stock", "ours")
_NAMES: Mapping[Quantity, Mapping[Arm, str]] = {
    "time": {"stock": "stock_us", "ours": "ours_us"},
    "read_fraction": {"stock": "stock_read_fraction", "ours": "read_fraction"},
}
_TITLES: Mapping[Quantity, str] = {
    "time": "Device time of a quantized matmul over M",
    "read_fraction": "Share of the read probe over M",
}
_UNITS: Mapping[Quantity, str] = {
    "time": "device time, microseconds (log scale)",
    "read_fraction": "packed bytes / time / read probe of the run",
}
_LIKE = Problem(m=1, n=1, k=1)
"""Its width, group size, mode, type and layout are those of the plots."""


@dataclass(frozen=True)
class Point:
    m: int
    value: float
    """us, or a share."""
    by_stock: bool
    """The call took a stock route: always in the stock arm, and where our dispatch hands the problem on."""


@dataclass(frozen=True)
class Panel:
    """One K x N: points of both arms in the order of M."""

    k: int
    n: int
    curves: Mapping[Arm, tuple[Point, ...]]


@dataclass(frozen=True)
class Figure:
    name: str
    """``<host>_time`` or ``<host>_read_fraction``."""
    quantity: Quantity
    title: str
    notes: tuple[str, ...]
    """Lines under the title: machine, versions, protocol, records."""
    unit: str
    panels: tuple[Panel, ...]
    sources: tuple[Fact, ...]
    """Every fact that is drawn or said."""

    @property
    def file_name(self) -> str:
        return f"{self.name}.svg"

    @property
    def ms(self) -> tuple[int, ...]:
        """Every M of any panel."""
        return tuple(sorted({p.m for panel in self.panels for points in panel.curves.values() for p in points}))

    def embedded(self) -> str:
        """JSON that an SVG carries: its words, and the facts by their record. Equal means the same plot."""
        records: dict[str, dict[str, float | str]] = {}
        for fact in self.sources:
            records.setdefault(f"{fact.record_path} sha256 {fact.sha256}", {})[fact.id] = fact.value
        said = {"figure": self.name, "title": self.title, "notes": self.notes, "unit": self.unit, "facts": records}
        return json.dumps(said, indent=0, ensure_ascii=False)


def hosts(facts: Iterable[Fact]) -> tuple[str, ...]:
    """Hosts that have a benchmark."""
    return tuple(sorted({fact.host for fact in facts if fact.id.startswith("small_m.")}))


def figures(facts: Iterable[Fact], host: str) -> tuple[Figure, ...]:
    """The plots of one host; a quantity without facts has none. Raises StaleFact when one to be drawn is stale."""
    by_id = {fact.id: fact for fact in facts if fact.host == host}
    drawn = (_figure(by_id, host, quantity) for quantity in _NAMES)
    return tuple(figure for figure in drawn if figure.panels)


def _figure(facts: Mapping[str, Fact], host: str, quantity: Quantity) -> Figure:
    sources: list[Fact] = []
    found: dict[tuple[int, int], dict[Arm, list[Point]]] = {}
    for problem, stem in sorted(_problems(facts, host), key=lambda item: (item[0].weight_bytes, item[0].k, item[0].m)):
        pair = [facts.get(f"{stem}.{_NAMES[quantity][arm]}") for arm in ARMS]
        route = facts.get(f"{stem}.route")
        if None in pair or route is None:
            continue
        curves = found.setdefault((problem.k, problem.n), {arm: [] for arm in ARMS})
        sources.append(current(route))
        for arm, fact in zip(ARMS, pair, strict=True):
            assert fact is not None
            sources.append(current(fact))
            by_stock = arm == "stock" or route.value != "small_m"
            curves[arm].append(Point(problem.m, float(fact.value), by_stock))
    panels = tuple(Panel(*shape, {arm: tuple(p) for arm, p in curves.items()}) for shape, curves in found.items())
    notes, about = _notes(facts, host, sources)
    name = f"{host}_{quantity}"
    return Figure(name, quantity, _TITLES[quantity], notes, _UNITS[quantity], panels, (*sources, *about))


def _problems(facts: Iterable[str], host: str) -> Iterable[tuple[Problem, str]]:
    """Problems with cold weights and queued calls, which an id says by saying nothing, and the stems of their facts."""
    prefix, suffix = f"small_m.{host}.", ".ours_us"
    for one in facts:
        if not (one.startswith(prefix) and one.endswith(suffix)):
            continue
        stem = one.removesuffix(suffix)
        try:
            problem = parse_problem(stem.removeprefix(prefix))
        except ValueError:
            continue
        if problem == _LIKE.model_copy(update={"m": problem.m, "n": problem.n, "k": problem.k}):
            yield problem, stem


def _notes(facts: Mapping[str, Fact], host: str, used: Iterable[Fact]) -> tuple[tuple[str, ...], list[Fact]]:
    """What the records say of machine and protocol, and the facts it was taken from."""
    records = list(dict.fromkeys(fact.record_path for fact in used))
    sources: list[Fact] = []

    def said(what: str) -> list[str]:
        ids = [f"record.{Path(record).stem}.{what}" for record in records]
        known = [facts[one] for one in ids if one in facts]
        sources.extend(known)
        values = [str(fact.value) for fact in known]
        return list(dict.fromkeys(values)) if len(values) == len(records) else [*dict.fromkeys(values), "unknown"]

    machine = f"{' and '.join(said('gpu'))}, MLX {' and '.join(said('mlx'))}"
    weights = "affine 4-bit weights, group size 64, bf16, x is [M, K]; a panel is one K x N"
    one_graph = ", one CUDA graph a sample" if said("graph_limits") == [graphs.RAISED] else ""
    protocol = f"Cold weights; independent calls in a queue, which the GPU may overlap{one_graph}; medians"
    # one run's probe says nothing of another's points
    for what, words in (("read_gbps", "read probe {:,.0f} GB/s"), ("launch_floor_us", "empty kernel {:.2f} us")):
        told = [facts.get(f"record.{Path(record).stem}.{what}") for record in records]
        if len(told) == 1 and (fact := told[0]) is not None:
            sources.append(fact)
            protocol += f"; {words.format(float(fact.value))}"
    kernels = " and ".join(one[:12] for one in said("kernel_hash"))
    origin = f"Kernel {kernels}; {', '.join(Path(record).stem for record in records)}"
    return (f"{machine}; {weights}", protocol, origin), sources
