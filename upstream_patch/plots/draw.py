"""A figure as SVG, the same bytes on every machine with the same matplotlib: no date, no font but matplotlib's own.

Glyphs are paths and the background is white, so it looks the same in any viewer and theme.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from upstream_patch.errors import MissingTool
from upstream_patch.plots.figures import ARMS, Figure, Panel, Point
from upstream_patch.records.schema import Arm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INSTALL = "pip install -e '.[plots]' in the clone"
COLUMNS = 4
"""At most."""
_PANEL = 2.55, 2.05
"""Inches, without margins."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.75, 0.2, 1.25, 0.85
_GAP = 0.5, 0.55
_INK, _QUIET, _LINES = "#1f2328", "#59636e", "#d1d9e0"
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "upstream-patch",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.edgecolor": _QUIET,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "axes.grid": True,
    "grid.color": _LINES,
    "grid.linewidth": 0.6,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "text.color": _INK,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}
_LOOK: dict[Arm, tuple[str, str, str]] = {  # colour (told apart by the colour-blind, too), marker, words
    "stock": ("#d55e00", "s", "stock MLX"),
    "ours": ("#0072b2", "o", "ours"),
}


def svg(figure: Figure) -> str:
    """The SVG text; it carries ``figure.embedded()`` as its description. Raises MissingTool without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingTool(f"matplotlib is not installed ({error})", INSTALL) from None
    file = io.StringIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever a person's matplotlibrc says
        matplotlib.rcParams.update(_STYLE)
        about = {"Title": figure.title, "Description": figure.embedded(), "Creator": None, "Date": None}
        canvas(figure).savefig(file, format="svg", metadata=about)
    text = "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
    return f"{text}<!-- drawing {drawing_hash(text)} -->\n"


def drawing_hash(svg: str) -> str:
    """Of a drawing without its last line, which says it: another one is drawn by hand."""
    return sha256(svg.encode()).hexdigest()


def canvas(figure: Figure) -> Canvas:
    """The drawing, in the style that matplotlib has at the moment."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

    rows = math.ceil(len(figure.panels) / COLUMNS)
    columns = math.ceil(len(figure.panels) / rows)
    width = max(_LEFT + columns * _PANEL[0] + (columns - 1) * _GAP[0] + _RIGHT, 9.5)
    height = _TOP + rows * _PANEL[1] + (rows - 1) * _GAP[1] + _BOTTOM
    drawing = Canvas(figsize=(width, height))
    for number, panel in enumerate(figure.panels):
        row, column = divmod(number, columns)
        left = _LEFT + column * (_PANEL[0] + _GAP[0])
        bottom = height - _TOP - (row + 1) * _PANEL[1] - row * _GAP[1]
        place = (left / width, bottom / height, _PANEL[0] / width, _PANEL[1] / height)
        _panel(drawing.add_axes(place), figure, panel)
    left_edge = 0.2 / width
    drawing.text(left_edge, 1 - 0.33 / height, figure.title, size=13, weight="bold")
    for number, note in enumerate(figure.notes[:-1]):
        drawing.text(left_edge, 1 - (0.58 + 0.19 * number) / height, note, size=8.5, color=_QUIET)
    drawing.text(left_edge, 0.13 / height, figure.notes[-1], size=6.5, color=_QUIET)
    drawing.text(0.5, 0.38 / height, "M, rows of x (log scale)", ha="center", size=9.5)
    middle = (height - _TOP + _BOTTOM) / 2 / height
    drawing.text(0.2 / width, middle, figure.unit, rotation=90, va="center", size=9.5)
    keys = [Line2D([], [], color=colour, marker=marker, label=words) for colour, marker, words in _LOOK.values()]
    if any(point.by_stock for panel in figure.panels for point in panel.curves["ours"]):
        colour, marker, _ = _LOOK["ours"]
        hollow = Line2D([], [], color=colour, marker=marker, markerfacecolor="white", linestyle="none")
        hollow.set_label("ours, handed on to stock")
        keys.append(hollow)
    corner = (1 - 0.1 / width, 1 - 0.1 / height)
    drawing.legend(handles=keys, loc="upper right", bbox_to_anchor=corner, ncols=3, frameon=False, fontsize=9.5)
    return drawing


def _panel(axes: Axes, figure: Figure, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set_title(f"{panel.k} x {panel.n}", loc="left", weight="bold")
    for arm in ARMS:
        colour, marker, _ = _LOOK[arm]
        points = panel.curves[arm]
        for number, run in enumerate(_runs(points, figure.ms)):
            gid = f"{panel.k}x{panel.n}.{arm}.{number}"
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4.7}
            axes.plot([p.m for p in run], [p.value for p in run], gid=gid, linewidth=1.6, **look)
            handed_on = [point for point in run if arm == "ours" and point.by_stock]
            hollow = [p.m for p in handed_on], [p.value for p in handed_on]
            if handed_on:
                axes.plot(*hollow, gid=f"{gid}.handed_on", linestyle="none", markerfacecolor="white", **look)
    axes.set_xscale("log", base=2)
    first, last = figure.ms[0], figure.ms[-1]
    axes.set_xlim(first / 1.2, last * 1.2)
    powers = [2**power for power in range(last.bit_length()) if 2**power >= first]
    axes.set_xticks(powers, [str(m) for m in powers])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(length=2.5)
    if figure.quantity == "read_fraction":
        highest = max(point.value for each in figure.panels for arm in ARMS for point in each.curves[arm])
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
    values = [point.value for arm in ARMS for point in panel.curves[arm]]
    return min(values), max(values)
