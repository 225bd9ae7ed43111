"""A plot as SVG: a sheet that stands alone, or its panels apart, for a page that lays them out and colours them.

A sheet is the same bytes on every machine with the same matplotlib: no date, no font but matplotlib's own. Its glyphs
are paths and its background is white, so it looks the same in any viewer and theme.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from upstream_patch.errors import MissingTool
from upstream_patch.plots import cells, curves
from upstream_patch.plots.figures import Figure, Grid, Panel
from upstream_patch.plots.gathered import Plot
from upstream_patch.plots.style import INK, LINES, LOOK, PAPER, QUIET, SETTINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

INSTALL = "pip install -e '.[plots]' in the clone"
THEMED = {INK: "var(--ink)", QUIET: "var(--quiet)", LINES: "var(--line)", PAPER: "var(--paper)"}
"""Colours of a panel that the page's theme decides; a cell's says its value, and stays."""
THEMED_CURVES = {colour: f"var(--{arm})" for arm, (colour, _, _) in LOOK.items()}
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_PANEL, _LEFT, _RIGHT, _TOP, _BOTTOM = (2.75, 1.85), 0.48, 0.08, 0.08, 0.3
"""Inches."""


def svg(plot: Plot) -> str:
    """The sheet; it carries ``plot.embedded()`` as its description. Raises MissingTool without matplotlib."""
    with _style({}):
        about = {"Title": plot.title, "Description": plot.embedded(), "Creator": None, "Date": None}
        text = _saved(canvas(plot), about)
    return f"{text}<!-- drawing {drawing_hash(text)} -->\n"


def drawing_hash(svg: str) -> str:
    """Of a drawing without its last line, which says it: another one is drawn by hand."""
    return sha256(svg.encode()).hexdigest()


def canvas(plot: Plot) -> Canvas:
    """The sheet, in the style that matplotlib has at the moment."""
    return curves.sheet(plot) if isinstance(plot, Figure) else cells.sheet(plot)


def panels(plot: Plot) -> dict[str, str]:
    """Panel name -> ``<svg>`` to stand in an HTML page: no title, text as text, colours as in ``THEMED``, ids of its
    own, as wide as its place. Raises MissingTool without matplotlib."""
    drawn = {}
    with _style({"svg.fonttype": "none"}):
        for panel in plot.panels:
            text = _saved(_alone(plot, panel), {"Creator": None, "Date": None})
            colours = THEMED | THEMED_CURVES if isinstance(panel, Panel) else THEMED
            drawn[panel.name] = _for_page(text, f"{plot.name}.{panel.name}", f"{plot.title}: {panel.title}", colours)
    return drawn


def _alone(plot: Plot, panel: Panel | Grid) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    if isinstance(panel, Panel):
        left, (wide, high) = _LEFT, _PANEL
    else:
        left, (wide, high) = cells.LABELS, (len(panel.ms) * cells.CELL[0], len(panel.rows) * cells.CELL[1])
    width, height = left + wide + _RIGHT, _TOP + high + _BOTTOM
    drawing = Canvas(figsize=(width, height))
    axes = drawing.add_axes((left / width, _BOTTOM / height, wide / width, high / height))
    if isinstance(panel, Panel):
        assert isinstance(plot, Figure)
        curves.draw(axes, plot, panel)
    else:
        cells.draw(axes, panel)
    return drawing


@contextmanager
def _style(more: dict[Any, Any]) -> Iterator[None]:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingTool(f"matplotlib is not installed ({error})", INSTALL) from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever a person's matplotlibrc says
        matplotlib.rcParams.update(SETTINGS | more)
        yield


def _saved(drawing: Canvas, metadata: dict[str, Any]) -> str:
    file = io.StringIO()
    drawing.savefig(file, format="svg", metadata=metadata)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _for_page(text: str, prefix: str, label: str, colours: Mapping[str, str]) -> str:
    ET.register_namespace("", _SVG)
    tree = ET.fromstring(text)
    own = "url(#", f"url(#{prefix}."  # two panels draw the same clip or marker under one name
    for unwanted in ("metadata", "defs/style"):
        parent = tree if "/" not in unwanted else tree.find(f"{{{_SVG}}}defs")
        child = None if parent is None else parent.find(f"{{{_SVG}}}{unwanted.rpartition('/')[2]}")
        if parent is not None and child is not None:
            parent.remove(child)
    for name in ("width", "height", "version"):
        tree.attrib.pop(name, None)
    tree.set("role", "img")
    tree.set("aria-label", label)
    for element in tree.iter():
        if target := element.attrib.pop(f"{{{_XLINK}}}href", None):
            element.set("href", f"#{prefix}.{target[1:]}")
        if "id" in element.attrib:
            element.set("id", f"{prefix}.{element.attrib['id']}")
        for name, value in element.attrib.items():
            if name in ("style", "clip-path"):
                element.set(name, _COLOUR.sub(lambda found: colours.get(found[0], found[0]), value).replace(*own))
    return ET.tostring(tree, encoding="unicode")
