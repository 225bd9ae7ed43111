"""The SVG files under ``evidence/plots``: written, taken away when their facts no longer hold, and compared."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from upstream_patch.errors import StaleFact, UserError
from upstream_patch.files import write_text
from upstream_patch.plots import draw
from upstream_patch.plots.gathered import Plot, hosts, plots
from upstream_patch.records.facts import Fact

FOLDER = "plots"
"""In the evidence folder."""
_DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"


def write(evidence: Path, facts: Sequence[Fact]) -> list[Path]:
    """Draw every plot and return the paths; files of plots that there are no facts for any more are removed.

    A plot that needs a stale fact is removed, and StaleFact is raised when all others are drawn. UserError where no
    host has anything to draw; MissingTool without matplotlib, before anything is changed.
    """
    wanted, stale = _wanted(facts)
    drawn = {name: draw.svg(figure) for name, figure in wanted.items()}
    for path in _there(evidence):
        if path.name not in drawn:
            path.unlink()
    for name, text in drawn.items():
        write_text(evidence / FOLDER / name, text)
    if stale:
        raise stale[0]
    if not drawn:
        raise UserError(f"no benchmark in {evidence}: `python -m upstream_patch bench` on a CUDA GPU makes one")
    return [evidence / FOLDER / name for name in drawn]


def differences(evidence: Path, facts: Sequence[Fact]) -> list[str]:
    """How the files differ from what ``write`` would leave, by the facts they carry; empty when they do not.

    A plot that needs a stale fact may not be there. Needs no matplotlib.
    """
    wanted, stale = _wanted(facts)
    there = {path.name: path for path in _there(evidence)}
    why = f" ({stale[0]})" if stale else ""
    found = [f"{there[name]} has no facts of today{why}" for name in sorted(there.keys() - wanted.keys())]
    for name, figure in wanted.items():
        if name not in there:
            found.append(f"{evidence / FOLDER / name} is missing")
        elif embedded(there[name].read_text(encoding="utf-8")) != figure.embedded():
            found.append(f"{there[name]} shows other facts than the records give")
        elif not _as_drawn(there[name].read_text(encoding="utf-8")):
            found.append(f"{there[name]} was changed after it was drawn")
    return found


def embedded(svg: str) -> str:
    """The text that ``draw.svg`` put into a file; empty where there is none."""
    try:
        found = ET.fromstring(svg).find(f".//{_DESCRIPTION}")
    except ET.ParseError:
        return ""
    return (found.text or "") if found is not None else ""


def _as_drawn(svg: str) -> bool:
    """Whether the last line has the hash of the others."""
    drawing, mark, last = svg.rpartition("<!-- drawing ")
    return bool(mark) and last == f"{draw.drawing_hash(drawing)} -->\n"


def _wanted(facts: Sequence[Fact]) -> tuple[dict[str, Plot], list[StaleFact]]:
    wanted: dict[str, Plot] = {}
    stale: list[StaleFact] = []
    for host in hosts(facts):
        drawn, outdated = plots(facts, host)
        wanted |= {plot.file_name: plot for plot in drawn.values()}
        stale += outdated.values()
    return wanted, stale


def _there(evidence: Path) -> list[Path]:
    return sorted((evidence / FOLDER).glob("*.svg"))
