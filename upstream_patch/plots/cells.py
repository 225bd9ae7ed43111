"""A heat map drawn with matplotlib: a cell's colour is its ratio, grey at 1, blue above, orange below, and says it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from upstream_patch.plots.figures import Grid, HeatMap
from upstream_patch.plots.style import LINES, LOOK, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

CELL = 0.52, 0.25
"""Inches."""
LABELS = 1.35
"""Inches left of the cells, for the names of the rows."""
_TOP, _BOTTOM, _GAP = 1.25, 0.85, 0.55
_ONE, _DARK, _LIGHT = "#e8ebee", "#101214", "#fdfdfd"
_MOST = 4.0
"""Powers of two: a ratio of 16 or more has the fullest colour, as has one of half or less on the other side."""
_LEAST = 1.0


def sheet(plot: HeatMap) -> Canvas:
    """All maps below each other, with title and notes."""
    from matplotlib.figure import Figure as Canvas

    width = max(LABELS + max(len(grid.ms) for grid in plot.panels) * CELL[0] + 0.3, 11.0)
    height = _TOP + _BOTTOM + sum(len(grid.rows) * CELL[1] + _GAP for grid in plot.panels) - _GAP
    drawing = Canvas(figsize=(width, height))
    top = height - _TOP
    for grid in plot.panels:
        high = len(grid.rows) * CELL[1]
        place = (LABELS / width, (top - high) / height, len(grid.ms) * CELL[0] / width, high / height)
        axes = drawing.add_axes(place)
        axes.set_title(grid.title, loc="left", weight="bold")
        draw(axes, grid)
        top -= high + _GAP
    left_edge = 0.2 / width
    drawing.text(left_edge, 1 - 0.33 / height, plot.title, size=13, weight="bold")
    for number, note in enumerate(plot.notes[:-1]):
        drawing.text(left_edge, 1 - (0.58 + 0.19 * number) / height, note, size=8.5, color=QUIET)
    drawing.text(left_edge, 0.13 / height, plot.notes[-1], size=6.5, color=QUIET)
    drawing.text(LABELS / width, 0.38 / height, "M, rows of x", size=9.5)
    return drawing


def draw(axes: Axes, grid: Grid) -> None:
    """One map; a cell that was not measured stays empty."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb
    from matplotlib.patches import Rectangle

    colours = LinearSegmentedColormap.from_list("about one", [LOOK["stock"][0], _ONE, LOOK["ours"][0]])
    for y, row in enumerate(grid.rows):
        for x, m in enumerate(grid.ms):
            value = grid.values.get((row, m))
            if value is None:
                empty = Rectangle((x + 0.04, y + 0.06), 0.92, 0.88, fill=False, edgecolor=LINES, linewidth=0.6)
                axes.add_patch(empty)
                continue
            fill = colours(0.5 + 0.5 * _strength(value))
            gid = f"{grid.name}.{row.replace(' ', '_').replace(',', '')}.M{m}"
            axes.add_patch(Rectangle((x + 0.04, y + 0.06), 0.92, 0.88, facecolor=fill, linewidth=0, gid=gid))
            red, green, blue = to_rgb(fill)
            dark = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
            said = f"{value:.1f}" if value < 99.5 else f"{value:.0f}"
            axes.text(x + 0.5, y + 0.5, said, ha="center", va="center", size=8, color=_DARK if dark else _LIGHT)
    axes.set_xlim(0, len(grid.ms))
    axes.set_ylim(len(grid.rows), 0)
    axes.set_xticks([x + 0.5 for x in range(len(grid.ms))], [str(m) for m in grid.ms])
    axes.set_yticks([y + 0.5 for y in range(len(grid.rows))], grid.rows)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _strength(value: float) -> float:
    """-1 to 1, 0 at a ratio of 1."""
    power = math.log2(value)
    return max(-1.0, power / _LEAST) if power < 0 else min(1.0, power / _MOST)
