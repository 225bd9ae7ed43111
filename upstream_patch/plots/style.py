"""How the plots look, on paper and in the page: colours, sizes, and matplotlib's settings, whatever a person's are."""

from __future__ import annotations

from typing import Any

from upstream_patch.plots.figures import Curve

INK, QUIET, LINES, PAPER = "#1f2328", "#59636e", "#d1d9e0", "#ffffff"
LOOK: dict[Curve, tuple[str, str, str]] = {  # colour (told apart by the colour-blind, too), marker, words
    "stock": ("#d55e00", "s", "stock MLX"),
    "folded": ("#7a5195", "^", "stock MLX, batch folded"),
    "ours": ("#0072b2", "o", "ours"),
}
HANDED_ON = "ours, handed on to stock"
COLUMNS = 4
"""Panels beside each other, at most."""
PANEL = 2.55, 2.05
"""Inches, without margins."""
LEFT, RIGHT, TOP, BOTTOM = 0.75, 0.2, 1.25, 0.85
GAP = 0.5, 0.55

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "upstream-patch",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "axes.grid": True,
    "grid.color": LINES,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "text.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}
