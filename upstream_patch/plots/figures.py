"""What a plot is, and what each says of where it comes from; the builders beside this module fill them from facts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from upstream_patch.measure import graphs
from upstream_patch.records.facts import Fact

Curve = Literal["stock", "folded", "ours"]
CURVES: tuple[Curve, ...] = ("stock", "folded", "ours")
"""In the order they are drawn in: folded is stock MLX with the batch folded into rows, and nothing else of ours."""
Scale = Literal["log", "share"]
"""``share`` begins at 0 and shows 1."""


@dataclass(frozen=True)
class Point:
    m: int
    """Where it stands on the axis: rows of x, or sequences of a decode batch."""
    value: float
    by_stock: bool
    """The call took a stock route: always in the stock arm, and where our dispatch hands the problem on."""


@dataclass(frozen=True)
class Panel:
    name: str
    """Of the curves' groups in the SVG, e.g. ``4096x14336``."""
    curves: Mapping[Curve, tuple[Point, ...]]
    """Points in the order of the axis."""

    @property
    def title(self) -> str:
        return self.name.replace("x", " x ") if self.name[0].isdigit() else self.name


@dataclass(frozen=True)
class Grid:
    """A panel of a heat map: one value for each (row, M) that was measured."""

    name: str
    title: str
    rows: tuple[str, ...]
    """From the top."""
    ms: tuple[int, ...]
    values: Mapping[tuple[str, int], float]


@dataclass(frozen=True)
class Drawing:
    """What all plots have."""

    name: str
    """``<host>_<what>``."""
    title: str
    notes: tuple[str, ...]
    """Lines under the title: machine, versions, protocol; the last one names kernel and records."""
    unit: str
    sources: tuple[Fact, ...]
    """Every fact that is drawn or said."""

    @property
    def file_name(self) -> str:
        return f"{self.name}.svg"

    def embedded(self) -> str:
        """JSON that an SVG carries: its words, and the facts by their record. Equal means the same plot."""
        records: dict[str, dict[str, float | str]] = {}
        for fact in self.sources:
            records.setdefault(f"{fact.record_path} sha256 {fact.sha256}", {})[fact.id] = fact.value
        said = {"figure": self.name, "title": self.title, "notes": self.notes, "unit": self.unit, "facts": records}
        return json.dumps(said, indent=0, ensure_ascii=False)


@dataclass(frozen=True)
class Figure(Drawing):
    """Curves over M or B, both axes logarithmic unless ``scale`` says otherwise."""

    panels: tuple[Panel, ...]
    scale: Scale = "log"
    across: str = "M, rows of x (log scale)"

    @property
    def ms(self) -> tuple[int, ...]:
        """Every M of any panel."""
        return tuple(sorted({p.m for panel in self.panels for points in panel.curves.values() for p in points}))


@dataclass(frozen=True)
class HeatMap(Drawing):
    """Ratios, coloured about 1."""

    panels: tuple[Grid, ...]


def about(
    facts: Mapping[str, Fact], used: Iterable[Fact], weights: str, protocol: str
) -> tuple[tuple[str, ...], tuple[Fact, ...]]:
    """The notes of a plot: what its records say of the machine, after it ``weights``, then ``protocol`` with what is
    known of MLX's graphs and of the run; and the facts that this was taken from."""
    records = list(dict.fromkeys(fact.record_path for fact in used))
    sources: list[Fact] = []

    def said(what: str) -> list[str]:
        ids = [f"record.{Path(record).stem}.{what}" for record in records]
        known = [facts[one] for one in ids if one in facts]
        sources.extend(known)
        values = [str(fact.value) for fact in known]
        return list(dict.fromkeys(values)) if len(values) == len(records) else [*dict.fromkeys(values), "unknown"]

    machine = f"{' and '.join(said('gpu'))}, MLX {' and '.join(said('mlx'))}"
    one_graph = ", one CUDA graph a sample" if said("graph_limits") == [graphs.RAISED] else ""
    protocol = protocol.format(one_graph=one_graph)
    # one run's probe says nothing of another's points
    for what, words in (("read_gbps", "read probe {:,.0f} GB/s"), ("launch_floor_us", "empty kernel {:.2f} us")):
        told = [facts.get(f"record.{Path(record).stem}.{what}") for record in records]
        if len(told) == 1 and (fact := told[0]) is not None:
            sources.append(fact)
            protocol += f"; {words.format(float(fact.value))}"
    kernels = " and ".join(one[:12] for one in said("kernel_hash"))
    origin = f"Kernel {kernels}; {', '.join(Path(record).stem for record in records)}"
    return (f"{machine}; {weights}", protocol, origin), tuple(sources)
