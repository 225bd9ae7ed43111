"""Every plot of a host, in the order a reader wants them in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from upstream_patch.errors import StaleFact
from upstream_patch.plots import heat, over_b, over_m
from upstream_patch.plots.figures import Figure, HeatMap
from upstream_patch.records.facts import Fact

Plot = Figure | HeatMap
BUILDERS: Mapping[str, Callable[[Mapping[str, Fact], str], Plot | None]] = {
    "time": over_m.time,
    "read_fraction": over_m.read_fraction,
    "speedup": heat.speedup,
    "dram": over_m.dram,
    "decode": over_b.decode,
}
"""The part of a plot's name after its host -> what makes it."""
FAMILIES = ("small_m.", "ncu.", "decode.")


def hosts(facts: Iterable[Fact]) -> tuple[str, ...]:
    """Hosts that something may be drawn of."""
    return tuple(sorted({fact.host for fact in facts if fact.id.startswith(FAMILIES)}))


def benchmarked(facts: Iterable[Fact], host: str) -> tuple[Plot, ...]:
    """Time and share of the read probe. Raises StaleFact when a fact to be drawn is stale."""
    by_id = {fact.id: fact for fact in facts if fact.host == host}
    return tuple(plot for name in ("time", "read_fraction") if (plot := BUILDERS[name](by_id, host)))


def plots(facts: Iterable[Fact], host: str) -> tuple[dict[str, Plot], dict[str, StaleFact]]:
    """The host's plots by the last part of their name, and why others are not drawn: a fact they need is stale."""
    by_id = {fact.id: fact for fact in facts if fact.host == host}
    drawn: dict[str, Plot] = {}
    stale: dict[str, StaleFact] = {}
    for name, build in BUILDERS.items():
        try:
            if plot := build(by_id, host):
                drawn[name] = plot
        except StaleFact as error:
            stale[name] = error
    return drawn, stale
