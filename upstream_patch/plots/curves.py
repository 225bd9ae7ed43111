"""Curves over M or B, drawn with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from upstream_patch.plots.figures import Figure, Panel, Point
from upstream_patch.plots.style import (
    BOTTOM,
    COLUMNS,
    GAP,
    HANDED_ON,
    LEFT,
    LOOK,
    PANEL,
    QUIET,
    RIGHT,
    TOP,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def sheet(figure: Figure) -> Canvas:
    """All panels, with title, notes and legend."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    rows = math.ceil(len(figure.panels) / COLUMNS)
    columns = math.ceil(len(figure.panels) / rows)
    width = max(LEFT + columns * PANEL[0] + (columns - 1) * GAP[0] + RIGHT, 9.5)
    height = TOP + rows * PANEL[1] + (rows - 1) * GAP[1] + BOTTOM
    drawing = Canvas(figsize=(width, height))
    for number, panel in enumerate(figure.panels):
        row, column = divmod(number, columns)
        left = LEFT + column * (PANEL[0] + GAP[0])
        bottom = height - TOP - (row + 1) * PANEL[1] - row * GAP[1]
        axes = drawing.add_axes((left / width, bottom / height, PANEL[0] / width, PANEL[1] / height))
        axes.set_title(panel.title, loc="left", weight="bold")
        draw(axes, figure, panel)
    left_edge = 0.2 / width
    drawing.text(left_edge, 1 - 0.33 / height, figure.title, size=13, weight="bold")
    for number, note in enumerate(figure.notes[:-1]):
        drawing.text(left_edge, 1 - (0.58 + 0.19 * number) / height, note, size=8.5, color=QUIET)
    drawing.text(left_edge, 0.13 / height, figure.notes[-1], size=6.5, color=QUIET)
    drawing.text(0.5, 0.38 / height, figure.across, ha="center", size=9.5)
    middle = (height - TOP + BOTTOM) / 2 / height
    drawing.text(0.2 / width, middle, figure.unit, rotation=90, va="center", size=9.5)
    keys = [
        Line2D([], [], color=colour, marker=marker, label=words)
        for arm, (colour, marker, words) in LOOK.items()
        if any(arm in panel.curves for panel in figure.panels)
    ]
    if handed_on(figure):
        colour, marker, _ = LOOK["ours"]
        hollow = Line2D([], [], color=colour, marker=marker, markerfacecolor="white", linestyle="none")
        hollow.set_label(HANDED_ON)
        keys.append(hollow)
    corner = (1 - 0.1 / width, 1 - 0.1 / height)
    drawing.legend(handles=keys, loc="upper right", bbox_to_anchor=corner, ncols=3, frameon=False, fontsize=9.5)
    return drawing


def handed_on(figure: Figure) -> bool:
    """Whether our dispatch gave a call of these to stock: a hollow point."""
    return any(point.by_stock for panel in figure.panels for point in panel.curves.get("ours", ()))


def draw(axes: Axes, figure: Figure, panel: Panel) -> None:
    """One panel, on the scales that it has in the figure."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    for arm, points in panel.curves.items():
        colour, marker, _ = LOOK[arm]
        for number, run in enumerate(_runs(points, figure.ms)):
            gid = f"{panel.name}.{arm}.{number}"
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4.7}
            axes.plot([p.m for p in run], [p.value for p in run], gid=gid, linewidth=1.6, **look)
            hollow = [point for point in run if arm == "ours" and point.by_stock]
            if hollow:
                at = [p.m for p in hollow], [p.value for p in hollow]
                axes.plot(*at, gid=f"{gid}.handed_on", linestyle="none", markerfacecolor="white", **look)
    axes.set_xscale("log", base=2)
    first, last = figure.ms[0], figure.ms[-1]
    axes.set_xlim(first / 1.2, last * 1.2)
    powers = [2**power for power in range(last.bit_length()) if 2**power >= first]
    axes.set_xticks(powers, [str(m) for m in powers])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(length=2.5)
    if figure.scale == "share":
        highest = max(point.value for each in figure.panels for points in each.curves.values() for point in points)
        axes.set_ylim(0, max(1.0, 1.05 * highest))
        return
    axes.set_yscale("log")
    low, high = _range(panel)
    factor = max(other_high / other_low for other_low, other_high in map(_range, figure.panels)) * 1.6
    middle = math.sqrt(low * high)
    axes.set_ylim(middle / math.sqrt(factor), middle * math.sqrt(factor))  # one slope everywhere
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _runs(points: Sequence[Point], ms: Sequence[int]) -> list[list[Point]]:
    """Points between which no M is missing that another panel has: a line does not run over what was not measured."""
    runs: list[list[Point]] = []
    for point in points:
        if runs and not any(runs[-1][-1].m < m < point.m for m in ms):
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _range(panel: Panel) -> tuple[float, float]:
    values = [point.value for points in panel.curves.values() for point in points]
    return min(values), max(values)
