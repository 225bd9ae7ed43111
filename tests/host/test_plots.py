"""The plots show what the facts say, and the committed ones what the committed records say."""

from __future__ import annotations

import math
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from upstream_patch.errors import MissingTool, StaleFact, UserError
from upstream_patch.measure import graphs
from upstream_patch.plots import draw, files
from upstream_patch.plots.figures import Figure
from upstream_patch.plots.gathered import benchmarked, plots
from upstream_patch.records import store
from upstream_patch.records.facts import Fact, derive
from upstream_patch.records.form import GRAPH_LIMITS

SVG = "{http://www.w3.org/2000/svg}"
TODAY = "ab" * 32
PROBE = 4000.0
"""GB/s: rows of more bytes than the usual synthetic one need a faster memory."""


def facts_of(synthetic: Any, today: str = TODAY) -> list[Fact]:
    return derive(synthetic.load(), lambda kernel: today)


def figure_of(synthetic: Any, name: str = "time") -> Figure:
    figure = plots(facts_of(synthetic), "test")[0][name]
    assert isinstance(figure, Figure)
    return figure


def lines(svg: str) -> dict[str, list[list[tuple[float, float]]]]:
    """gid -> paths and markers in it, as points of the page."""
    found = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        if re.match(r"(?!matplotlib)\S+\.", group.get("id", "")):
            drawn = [
                [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.get("d", ""))]
                for path in group.findall(f"{SVG}path")
            ]
            uses = [(float(use.get("x", "")), float(use.get("y", ""))) for use in group.iter(f"{SVG}use")]
            found[group.get("id", "")] = [*drawn, uses] if uses else drawn
    return found


@pytest.fixture
def committed(root: Path) -> list[Fact]:
    return derive(store.load_all(root / "evidence"))


def test_committed_plots_show_the_committed_records(root: Path, committed: list[Fact]) -> None:
    assert files.differences(root / "evidence", committed) == []


@pytest.mark.needs_plots
def test_committed_plots_are_drawn_as_today(root: Path, committed: list[Fact]) -> None:
    """To half a point: a file that somebody drew over is not what its facts say."""
    for path in sorted((root / "evidence" / files.FOLDER).glob("*.svg")):
        host, _, name = path.stem.partition("_")
        plot = plots(committed, host)[0][name]
        there, today = lines(path.read_text(encoding="utf-8")), lines(draw.svg(plot))
        assert today
        assert there.keys() == today.keys()
        for gid, drawn in today.items():
            for now, then in zip(drawn, there[gid], strict=True):
                assert [point for xy in then for point in xy] == pytest.approx(
                    [point for xy in now for point in xy], abs=0.5
                )


def test_readme_shows_plots_that_are_there(root: Path) -> None:
    named = re.findall(r"\((evidence/[^)]+)\)", (root / "README.md").read_text(encoding="utf-8"))
    assert "evidence/routing.md" in named
    assert [path for path in named if not (root / path).is_file()] == []


def test_points_are_the_facts_in_the_order_of_m(synthetic: Any) -> None:
    rows = [synthetic.bench_row(m, n=n) for n in (8192, 4096) for m in (16, 1, 7)]
    synthetic.write(synthetic.bench(rows, PROBE))
    time, share = (figure_of(synthetic, name) for name in ("time", "read_fraction"))
    assert [panel.name for panel in time.panels] == ["4096x4096", "4096x8192"]
    assert [(point.m, point.value) for point in time.panels[0].curves["stock"]] == [(1, 10), (7, 70), (16, 160)]
    assert [(point.m, point.value) for point in time.panels[0].curves["ours"]] == [(1, 10), (7, 10), (16, 10)]
    values = {fact.id: fact.value for fact in facts_of(synthetic)}
    stem = "small_m.test.4096x8192.b4.g64.bf16.M7"
    assert share.panels[1].curves["ours"][1].value == values[f"{stem}.read_fraction"]
    assert share.panels[1].curves["stock"][1].value == values[f"{stem}.stock_read_fraction"]
    assert {f"{stem}.stock_us", f"{stem}.ours_us", f"{stem}.route"} <= {fact.id for fact in time.sources}


def test_other_protocols_layouts_and_formats_are_left_out(synthetic: Any) -> None:
    row = synthetic.bench_row(7)
    others = [
        row.model_copy(update={"protocol": row.protocol.model_copy(update=how)})
        for how in ({"cache": "hot"}, {"order": "chain"})
    ]
    others.append(synthetic.bench_row(7, layout="b1k"))
    others += [
        row.model_copy(update={"problem": row.problem.model_copy(update=what)})
        for what in ({"bits": 8}, {"group_size": 32}, {"dtype": "f16"})
    ]
    synthetic.write(synthetic.bench(others, PROBE))
    assert benchmarked(facts_of(synthetic), "test") == ()


@pytest.mark.parametrize(("bits", "mapped"), [((4, 3), False), ((4, 3, 8), True)])
def test_a_map_of_formats_has_at_least_three(synthetic: Any, bits: tuple[int, ...], mapped: bool) -> None:
    row = synthetic.bench_row(7)
    rows = [row.model_copy(update={"problem": row.problem.model_copy(update={"bits": each})}) for each in bits]
    synthetic.write(synthetic.bench(rows, PROBE))
    assert ("speedup" in plots(facts_of(synthetic), "test")[0]) is mapped


def test_the_notes_come_from_the_record(synthetic: Any) -> None:
    body = synthetic.bench([synthetic.bench_row(7)])
    path = synthetic.write(body.model_copy(update={"notes": [f"{GRAPH_LIMITS}{graphs.RAISED}"]}))
    machine, protocol, origin = figure_of(synthetic).notes
    assert machine.startswith("Synthetic GPU, MLX 0.32.4; ")
    assert "one CUDA graph a sample" in protocol
    assert protocol.endswith("; read probe 1,000 GB/s; empty kernel 2.10 us")
    assert origin == f"Kernel {TODAY[:12]}; {path.stem}"


def test_a_probe_of_another_run_is_not_said(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    synthetic.write(synthetic.bench([synthetic.bench_row(8)], probe=990.0), age_hours=1, versions={"mlx": "0.33.0"})
    machine, protocol, origin = figure_of(synthetic).notes
    assert "MLX 0.32.4 and 0.33.0" in machine
    assert "probe" not in protocol and "one CUDA graph" not in protocol
    assert origin.count("-bench-") == 2


@pytest.mark.needs_plots
@pytest.mark.parametrize("quantity", ["time", "read_fraction"])
def test_what_is_drawn_lies_where_its_values_are(synthetic: Any, quantity: str) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(m) for m in (1, 2, 4, 8)]))
    figure = figure_of(synthetic, quantity)
    drawn = lines(draw.svg(figure))
    curves = {line.get_gid(): np.asarray(line.get_xydata()).tolist() for line in draw.canvas(figure).axes[0].lines}
    pairs = []
    for arm in figure.panels[0].curves:
        points = figure.panels[0].curves[arm]
        assert curves[f"4096x4096.{arm}.0"] == [[point.m, point.value] for point in points]
        line, markers = drawn[f"4096x4096.{arm}.0"]
        assert line == markers
        pairs += [(math.log2(point.m), x) for point, (x, _) in zip(points, line, strict=True)]
        heights = [math.log(point.value) if quantity == "time" else point.value for point in points]
        ys = [y for _, y in line]
        pairs += [(1000 - height, y) for height, y in zip(heights, ys, strict=True)]
    for axis in (pairs[:4] + pairs[8:12], pairs[4:8] + pairs[12:]):
        (low, at_low), (high, at_high) = min(axis), max(axis)
        for value, at in axis:
            assert at == pytest.approx(at_low + (value - low) / (high - low) * (at_high - at_low), abs=0.05)
        assert at_high > at_low


@pytest.mark.needs_plots
def test_a_line_breaks_where_another_panel_has_a_point(synthetic: Any) -> None:
    rows = [synthetic.bench_row(m) for m in (1, 7, 8)] + [synthetic.bench_row(m, n=8192) for m in (1, 8)]
    synthetic.write(synthetic.bench(rows, PROBE))
    drawn = lines(draw.svg(figure_of(synthetic)))
    assert [gid for gid in drawn if gid.startswith("4096x4096.stock")] == ["4096x4096.stock.0"]
    assert {"4096x8192.stock.0", "4096x8192.stock.1"} <= drawn.keys()


@pytest.mark.needs_plots
def test_a_call_handed_on_to_stock_is_a_hollow_point(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    assert [gid for gid in lines(draw.svg(figure_of(synthetic))) if gid.endswith(".handed_on")] == []
    synthetic.write(synthetic.bench([synthetic.bench_row(8, route="stock", ours_kernels=[])]), age_hours=1)
    figure = figure_of(synthetic)
    assert [point.by_stock for point in figure.panels[0].curves["ours"]] == [False, True]
    drawn = lines(draw.svg(figure))
    assert drawn["4096x4096.ours.0.handed_on"][-1] == drawn["4096x4096.ours.0"][-1][1:]
    assert [gid for gid in drawn if gid.endswith(".handed_on")] == ["4096x4096.ours.0.handed_on"]


@pytest.mark.needs_plots
def test_an_svg_is_the_same_anywhere(synthetic: Any) -> None:
    import matplotlib

    synthetic.write(synthetic.bench([synthetic.bench_row(m) for m in (1, 8)]))
    figure = figure_of(synthetic)
    text = draw.svg(figure)
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "none", "axes.facecolor": "black"}):
        assert draw.svg(figure) == text
        assert matplotlib.rcParams["font.size"] == 30
    assert f"{SVG}text" not in {element.tag for element in ET.fromstring(text).iter()}
    assert "<dc:date>" not in text
    background = next(ET.fromstring(text).iter(f"{SVG}path"))
    assert background.get("style") == "fill: #ffffff"
    assert files.embedded(text) == figure.embedded()


@pytest.mark.needs_plots
def test_files_are_written_and_compared(synthetic: Any) -> None:
    evidence = synthetic.root.path
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    facts = facts_of(synthetic)
    names = ["test_time.svg", "test_read_fraction.svg"]
    assert files.differences(evidence, facts) == [f"{evidence / 'plots' / name} is missing" for name in names]
    (evidence / "plots").mkdir()
    (evidence / "plots" / "former_time.svg").write_text("<svg/>")
    assert [path.name for path in files.write(evidence, facts)] == names
    assert sorted(path.name for path in (evidence / "plots").iterdir()) == sorted(names)
    assert files.differences(evidence, facts) == []
    # a newer record, and then one number in a file
    slower = synthetic.bench_row(7, ours_us=[10.001] * 12)
    synthetic.write(synthetic.bench([slower]), age_hours=1)
    assert len(files.differences(evidence, facts_of(synthetic))) == 2
    files.write(evidence, facts_of(synthetic))
    path = evidence / "plots" / "test_time.svg"
    path.write_text(path.read_text().replace('M7.ours_us": 10.001', 'M7.ours_us": 9.9'))
    assert files.differences(evidence, facts_of(synthetic)) == [f"{path} shows other facts than the records give"]
    files.write(evidence, facts_of(synthetic))
    path.write_text(path.read_text().replace("stroke-width: 1.", "stroke-width: 2.", 1))
    assert files.differences(evidence, facts_of(synthetic)) == [f"{path} was changed after it was drawn"]
    path.write_text("damaged")
    assert len(files.differences(evidence, facts_of(synthetic))) == 1


@pytest.mark.needs_plots
def test_stale_facts_are_not_drawn_and_their_plots_go(synthetic: Any) -> None:
    evidence = synthetic.root.path
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    files.write(evidence, facts_of(synthetic))
    stale = facts_of(synthetic, "cd" * 32)
    assert all("is stale" in said for said in files.differences(evidence, stale))
    assert len(files.differences(evidence, stale)) == 2
    other = [replace(fact, host="other", id=fact.id.replace(".test.", ".other.")) for fact in facts_of(synthetic)]
    with pytest.raises(StaleFact, match="renew it on test with `python -m upstream_patch bench`"):
        files.write(evidence, stale + other)
    left = [path.name for path in (evidence / "plots").iterdir()]
    assert sorted(left) == ["other_read_fraction.svg", "other_time.svg"]
    with pytest.raises(StaleFact):
        files.write(evidence, stale)
    assert files.differences(evidence, stale) == []


def test_without_a_benchmark_or_matplotlib_it_says_so(synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = synthetic.root.path
    with pytest.raises(UserError, match="no benchmark in"):
        files.write(evidence, [])
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    (evidence / "plots").mkdir()
    (evidence / "plots" / "former.svg").touch()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingTool, match="matplotlib is not installed"):
        files.write(evidence, facts_of(synthetic))
    assert [path.name for path in (evidence / "plots").iterdir()] == ["former.svg"]
