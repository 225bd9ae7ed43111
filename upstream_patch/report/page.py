"""The page itself: rendered from facts and plots, written, and compared with what it would be today."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from upstream_patch.files import write_text
from upstream_patch.plots import curves, draw
from upstream_patch.plots.figures import Figure
from upstream_patch.plots.gathered import Plot, plots
from upstream_patch.plots.style import HANDED_ON, LOOK
from upstream_patch.records.facts import Fact
from upstream_patch.records.provenance import HOSTS
from upstream_patch.records.store import LoadedRecord
from upstream_patch.report.cells import Book, Table, link
from upstream_patch.report.glance import Tile, tiles
from upstream_patch.report.tables import tables

FILE = "report/index.html"
"""In the evidence folder."""
NEEDED = {
    "small_m": "benchmark",
    "decode": "end-to-end decode",
    "ncu": "Nsight Compute profile",
    "peer": "comparison with PyTorch",
    "correctness": "correctness matrix",
    "sanitizer": "compute-sanitizer",
    "wheel": "the series' host code in a released MLX",
    "build": "MLX built from source with the series",
}
"""Family of facts -> what a host without one has not run."""
_PLOT = re.compile(r"(<!-- plot (\S+) -->\n).*?\n(<!-- end of \2 -->)", re.DOTALL)
_LAST = "<!-- page "

Drawn = Mapping[str, Mapping[str, str]]
"""Plot's name -> panel's name -> SVG."""


@dataclass(frozen=True)
class Shown:
    """A plot in the page."""

    plot: Plot
    key: Sequence[tuple[str, str, str]]
    """(shape of the swatch, curve, words)"""
    wide: bool
    """Its panels take the whole width, and scroll in their own place where that is too narrow."""
    records: Sequence[tuple[str, str]]
    """(link, id) of those that it is drawn from."""
    facts_hash: str
    """Of what is drawn: a plot of other facts makes another page."""


@dataclass(frozen=True)
class Section:
    """One host."""

    host: str
    name: str
    about: Sequence[tuple[str, str]]
    """(what, value) of the newest record."""
    tiles: Sequence[Tile]
    plots: Sequence[Shown]
    tables: Sequence[Table]
    stale: Sequence[str]
    """What is not shown, with the commands that renew it."""
    missing: Sequence[str]
    """Kinds of measurement that have no record here."""
    records: Sequence[tuple[str, LoadedRecord]]
    """(link, record), newest first."""


def write(evidence: Path, facts: Sequence[Fact], records: Sequence[LoadedRecord], path: Path | None = None) -> Path:
    """Write the page, to its place in the evidence or to ``path``. Raises MissingTool without matplotlib, before
    anything is changed."""
    drawn = {plot.name: draw.panels(plot) for host in _hosts(records) for plot in plots(facts, host)[0].values()}
    text, path = render(facts, records, drawn), path or evidence / FILE
    if path != evidence / FILE:
        folder = quote(Path(os.path.relpath(evidence.resolve(), path.parent.resolve())).as_posix())
        text = _closed(text.rpartition(_LAST)[0].replace('href="../', f'href="{folder}/'))
    write_text(path, text)
    return path


def differences(evidence: Path, facts: Sequence[Fact], records: Sequence[LoadedRecord]) -> str:
    """How the page differs from what ``write`` would leave, but for the drawings' lines; empty when it does not.

    Needs no matplotlib: a plot's facts and the whole page's hash stand in the page.
    """
    path = evidence / FILE
    if not path.is_file():
        return f"{path} is missing"
    page = path.read_text(encoding="utf-8")
    if _closed(page.rpartition(_LAST)[0]) != page:
        return f"{path} was changed after it was written"
    if without_drawings(page) != without_drawings(render(facts, records, {})):
        return f"{path} shows other facts than the records give"
    return ""


def render(facts: Sequence[Fact], records: Sequence[LoadedRecord], drawn: Drawn) -> str:
    """The HTML; a plot that is not in ``drawn`` has an empty place."""
    sections = [_section(host, facts, records) for host in _hosts(records)]
    not_run = [f"{name} ({host})" for host, name in HOSTS.items() if host not in {one.host for one in sections}]
    environment = Environment(
        loader=PackageLoader("upstream_patch.report"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template("report.html.j2")
    return _closed(template.render(sections=sections, not_run=not_run, drawn=drawn))


def without_drawings(page: str) -> str:
    return _PLOT.sub(r"\1\3", page).rpartition(_LAST)[0]


def _closed(page: str) -> str:
    return f"{page}{_LAST}{sha256(page.encode()).hexdigest()} -->\n"


def _hosts(records: Sequence[LoadedRecord]) -> list[str]:
    """Those that the contributions are about come first."""
    found = {loaded.record.host for loaded in records}
    return [*(host for host in HOSTS if host in found), *sorted(found - HOSTS.keys())]


def _section(host: str, facts: Sequence[Fact], records: Sequence[LoadedRecord]) -> Section:
    book = Book(facts, host)
    of_host = [loaded for loaded in records if loaded.record.host == host]
    newest = of_host[-1].record
    gpu = newest.machine.gpu
    about = {
        "GPU driver": gpu and gpu.driver,
        "compute capability": gpu and gpu.compute_capability,
        "multiprocessors": gpu and gpu.multiprocessors,
        "CPU": newest.machine.cpu,
        "system": newest.machine.os,
        "MLX": newest.versions.get("mlx"),
        "CUDA runtime": newest.versions.get("nvidia-cuda-runtime"),
    }
    return Section(
        host=host,
        name=gpu.name if gpu else host,
        about=[(what, str(value)) for what, value in about.items() if value],
        tiles=tiles(book),
        plots=[_shown(plot) for plot in plots(facts, host)[0].values()],
        tables=list(tables(book)),
        stale=list(dict.fromkeys(fact.command for fact in book.facts.values() if fact.stale)),
        missing=[
            words
            for family, words in NEEDED.items()
            if not any(one.startswith(f"{family}.{host}.") for one in book.facts)
        ],
        records=[(link(loaded.path), loaded) for loaded in reversed(of_host)],
    )


def _shown(plot: Plot) -> Shown:
    digest = sha256(plot.embedded().encode()).hexdigest()
    records = [(link(path), Path(path).stem) for path in dict.fromkeys(fact.record_path for fact in plot.sources)]
    if not isinstance(plot, Figure):
        return Shown(plot, (), True, records, digest)
    arms = [arm for arm in LOOK if any(arm in panel.curves for panel in plot.panels)]
    key = [("line", arm, LOOK[arm][2]) for arm in arms]
    if curves.handed_on(plot):
        key.append(("ring", "ours", HANDED_ON))
    return Shown(plot, key, False, records, digest)
