"""End-to-end decode: tokens a second of the whole batch over B, the sequences in it; a panel for each model."""

from __future__ import annotations

import re
from collections.abc import Mapping

from upstream_patch.plots.figures import CURVES, Curve, Figure, Panel, Point, about
from upstream_patch.records.decode_facts import conditions
from upstream_patch.records.facts import Fact, current

_ID = re.compile(r"decode\.\w+\.(?P<model>.+)\.B(?P<b>\d+)\.(?P<arm>stock|folded|ours)_tok_s")
_WEIGHTS = "one forward pass a token for all sequences; a panel is one model"
_PROTOCOL = "Medians of steps of the same run; folded: stock MLX with the batch folded into rows, and nothing else"


def decode(facts: Mapping[str, Fact], host: str) -> Figure | None:
    """``facts`` are those of the host, by id. Raises StaleFact when one to be drawn is stale."""
    found: dict[str, dict[Curve, list[Point]]] = {}
    sources: list[Fact] = []
    for match, fact in sorted(
        ((match, fact) for one, fact in facts.items() if (match := _ID.fullmatch(one))),
        key=lambda item: (item[0]["model"], int(item[0]["b"])),
    ):
        sources.append(current(fact))
        curves = found.setdefault(match["model"], {arm: [] for arm in CURVES})
        (arm,) = (arm for arm in CURVES if arm == match["arm"])
        curves[arm].append(Point(int(match["b"]), float(fact.value), arm != "ours"))
    if not sources:
        return None
    rows = {
        model: {point.m: f"decode.{host}.{model}.B{point.m}" for points in curves.values() for point in points}
        for model, curves in found.items()
    }
    what = {
        model: conditions(stems, lambda one: facts[one].value if one in facts else None) or "conditions not recorded"
        for model, stems in rows.items()
    }
    (machine, *notes), said = about(facts, sources, _WEIGHTS, _PROTOCOL)
    panels = (
        Panel(model, {arm: tuple(points) for arm, points in curves.items() if points})
        for model, curves in found.items()
    )
    return Figure(
        name=f"{host}_decode",
        title="Decode: tokens a second of the whole batch over B",
        notes=(machine, "; ".join(f"{model}: {words}" for model, words in what.items()), *notes),
        unit="tokens a second (log scale)",
        sources=(*sources, *said),
        panels=tuple(panels),
        across="B, sequences decoded at once (log scale)",
    )
