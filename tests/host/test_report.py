"""The page says what the facts say, each number with its record; the committed one, what the committed records say."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.contribution import STAGES, Context
from upstream_patch.machine import Gpu
from upstream_patch.plots import draw
from upstream_patch.plots.gathered import plots
from upstream_patch.records import store
from upstream_patch.records.facts import Fact, derive
from upstream_patch.records.store import LoadedRecord
from upstream_patch.report import page
from upstream_patch.report.cells import Book
from upstream_patch.report.tables import spoken, tables

TODAY = "ab" * 32


@dataclass
class Page(HTMLParser):
    """What a reader sees: cells of tables and tiles with their links, and everything that a browser would fetch."""

    text: str
    numbers: list[tuple[str, str]] = field(default_factory=list)
    """(text, href) of every cell and tile; href is empty where nothing links it."""
    fetched: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    said: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self._inside, self._href = 0, ""
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.fetched += [given.get(name) or "" for name in ("src", "srcset", "data") if given.get(name)]
        self.fetched += [given.get("href") or ""] if tag in ("link", "image") else []
        self._inside += tag in ("td", "b")
        self._href = (given.get("href") or "") if tag == "a" else self._href

    def handle_endtag(self, tag: str) -> None:
        self._inside -= tag in ("td", "b")
        self._href = "" if tag == "a" else self._href

    def handle_data(self, data: str) -> None:
        self.said += data
        if self._inside and data.strip():
            self.numbers.append((data.strip(), self._href))


def facts_of(synthetic: Any, today: str = TODAY) -> list[Fact]:
    return derive(synthetic.load(), lambda kernel: today)


def decode_facts(like: Fact, speeds: dict[str, float]) -> list[Fact]:
    """``B8.ours`` -> tokens a second, as facts of the record that ``like`` is from."""
    made = []
    for name, speed in speeds.items():
        stem = f"decode.{like.host}.llama-3.1-8b.{name}"
        batch = int(name[1:].partition(".")[0])
        made += [replace(like, id=f"{stem}_tok_s", value=speed, unit="1/s")]
        made += [replace(like, id=f"{stem}_ms_step", value=1e3 * batch / speed, unit="ms")]
        said = (("weights", "random"), ("prompt", 128), ("mlx_lm", "0.32.2"))
        made += [replace(like, id=f"{stem.rpartition('.')[0]}.{what}", value=value) for what, value in said]
    return made


def whole(synthetic: Any) -> list[Fact]:
    """A host with a benchmark, a profile, a matrix and decode."""
    others = [synthetic.bench_row(8, problem=synthetic.bench_row(8).problem.model_copy(update={"bits": 8}))]
    rows = [synthetic.bench_row(m) for m in (1, 7, 8)] + [synthetic.bench_row(7, layout="b1k"), *others]
    synthetic.write(synthetic.bench(rows, 4000.0))
    synthetic.write(synthetic.ncu())
    synthetic.write(synthetic.correctness())
    facts = facts_of(synthetic)
    speeds = {
        f"B{b}.{arm}": 100.0 * b * gain for b in (1, 8) for arm, gain in (("stock", 1), ("folded", 2), ("ours", 3.5))
    }
    return facts + decode_facts(facts[0], speeds)


def rendered(synthetic: Any, facts: list[Fact]) -> str:
    drawn = {plot.name: draw.panels(plot) for plot in plots(facts, "test")[0].values()}
    return page.render(facts, synthetic.load(), drawn)


def test_cases_of_the_matrix_that_no_record_has_are_counted(synthetic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.write(synthetic.correctness())  # two cases
    facts = facts_of(synthetic)
    for whole, said in ((2, ""), (9, "7 cases that the matrix has today are in no record.")):
        monkeypatch.setattr("upstream_patch.report.tables._whole", lambda whole=whole: whole)
        shown = page.render(facts, synthetic.load(), {})
        assert said in shown
        assert ("are in no record" in shown) == bool(said)


@pytest.fixture(scope="module")
def committed(root: Path) -> tuple[list[Fact], list[LoadedRecord]]:
    records = store.load_all(root / "evidence")
    return derive(records), records


def test_the_committed_page_shows_the_committed_records(root: Path, committed: Any) -> None:
    assert page.differences(root / "evidence", *committed) == ""


@pytest.mark.needs_plots
def test_the_committed_drawings_are_those_of_today(root: Path, committed: Any) -> None:
    """Another machine's matplotlib may differ in a last digit; half a point is seen."""
    facts, _ = committed
    there = (root / "evidence" / page.FILE).read_text(encoding="utf-8")
    seen = 0
    for host in {fact.host for fact in facts}:
        for plot in plots(facts, host)[0].values():
            for name, svg in draw.panels(plot).items():
                mark = f"<!-- plot {plot.name}.{name} -->\n"
                old = there.partition(mark)[2].partition("\n<!-- end of")[0]
                numbers = [[float(one) for one in re.findall(r"-?\d+\.\d+", text)] for text in (old, svg)]
                assert numbers[0] == pytest.approx(numbers[1], abs=0.5)
                seen += 1
    assert seen == there.count("<!-- plot ")


@pytest.mark.needs_plots
def test_every_number_links_to_its_record(synthetic: Any) -> None:
    facts = whole(synthetic)
    seen = Page(rendered(synthetic, facts))
    numbers = [(text, href) for text, href in seen.numbers if re.search(r"\d", text) and " x " not in text]
    assert len(numbers) > 60
    folder = synthetic.root.path / "report"
    folder.mkdir()
    for text, href in numbers:
        assert href, f"{text} has no link"
        if href.startswith("#"):
            assert href[1:] in seen.ids  # a count over several records
        else:
            assert (folder / href).is_file(), href
    by_id = {fact.id: fact for fact in facts}
    fact = by_id["small_m.test.4096x4096.b4.g64.bf16.M7.ours_us"]
    assert f'title="{fact.id}">{fact.value:,.2f}</a>' in seen.text


@pytest.mark.needs_plots
def test_the_page_asks_for_nothing_and_runs_nothing(synthetic: Any) -> None:
    seen = Page(rendered(synthetic, whole(synthetic)))
    assert "script" not in seen.tags and "iframe" not in seen.tags and "img" not in seen.tags
    assert seen.fetched == ["data:,"]
    assert not re.search(r"@import|url\((?!#)|\son\w+=", seen.text)
    assert [one for one in re.findall(r"https?://[^\s\"<]+", seen.text) if "w3.org" not in one] == []
    assert len(seen.ids) == len(set(seen.ids))


def test_decode_is_shown_and_its_plot_drawn(synthetic: Any) -> None:
    facts = whole(synthetic)
    like = facts[0]
    stem = "decode.test.llama-3.1-8b.B8"
    more = {"ours_matmul_ms": 1.5, "ours_matmul_share": 0.525, "ours_generator_tok_s": 2000.0, "speedup": 3.5}
    facts += [replace(like, id=f"{stem}.{name}", value=value) for name, value in more.items()]
    speed, step = [table for table in tables(Book(facts, "test")) if "decode" in table.anchor]
    shown = [
        (row.head, [(cell.text, cell.below and cell.below.text) for cell in row.cells]) for row in speed.groups[0].rows
    ]
    assert speed.about.startswith("Random weights, 128-token prompts, mlx-lm 0.32.2. Tokens a second ")
    assert step.about.startswith("Milliseconds; random weights, 128-token prompts, mlx-lm 0.32.2. ")
    arms = ("stock, tok/s", "stock, folded, tok/s", "ours, tok/s")
    assert speed.columns == ("B", *arms, "ours / stock", "verdict", "ours, BatchGenerator, tok/s")
    assert shown == [
        ("1", [("100", "10.00 ms"), ("200", "5.00 ms"), ("350", "2.86 ms"), *[("not run", None)] * 3]),
        (
            "8",
            [
                ("800", "10.00 ms"),
                ("1,600", "5.00 ms"),
                ("2,800", "2.86 ms"),
                ("3.50x", None),
                ("not run", None),
                ("2,000", None),
            ],
        ),
    ]
    assert [[row.head, *(cell.text for cell in row.cells[:3])] for row in step.groups[0].rows] == [
        ["B = 1, ours", "2.86", "not run", "not run"],
        ["B = 8, ours", "2.86", "1.50", "52%"],
    ]
    plot: Any = plots(facts, "test")[0]["decode"]
    curves = {arm: [(point.m, point.value) for point in points] for arm, points in plot.panels[0].curves.items()}
    assert curves == {"stock": [(1, 100), (8, 800)], "folded": [(1, 200), (8, 1600)], "ours": [(1, 350), (8, 2800)]}
    said = Page(page.render(facts, synthetic.load(), {})).said
    assert "2,800 tok/s" in said
    assert "random weights, 128-token prompts, mlx-lm 0.32.2, all sequences; stock MLX: 800" in said
    assert plot.notes[1] == "llama-3.1-8b: random weights, 128-token prompts, mlx-lm 0.32.2"
    assert "end-to-end decode" not in said.partition("not recorded:")[2]


def test_what_nobody_ran_is_said(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    said = Page(page.render(facts_of(synthetic), synthetic.load(), {})).said
    assert "Nobody has run NVIDIA H200 (h200) or NVIDIA GB10 (gb10) or Apple M5 (m5)" in said
    assert "not recorded: end-to-end decode, Nsight Compute profile" in said
    assert "nothing has been measured" in Page(page.render([], [], {})).said


def test_a_stale_number_is_not_shown(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7, ours_us=[12.345] * 12)]))
    fresh, stale = (Page(page.render(facts_of(synthetic, one), synthetic.load(), {})) for one in (TODAY, "cd" * 32))
    assert any(text in {"12.34", "12.35"} for text, _ in fresh.numbers)
    assert not any("12.3" in text for text, _ in stale.numbers)
    assert [text for text, _ in stale.numbers if text == "stale"] == ["stale"] * 3
    assert "python -m upstream_patch bench" in stale.said
    assert "<!-- plot " not in stale.text and "<!-- plot " in fresh.text


def test_no_table_holds_two_machines(synthetic: Any) -> None:
    """NVIDIA's numbers and another vendor's never share a table."""
    facts = whole(synthetic)
    apple = [replace(fact, host="m5", id=fact.id.replace(".test.", ".m5.")) for fact in facts]
    loaded = synthetic.load()
    gpu = Gpu(name="Apple M5", vendor="Apple")
    other = [
        replace(
            one,
            record=one.record.model_copy(
                update={"host": "m5", "machine": one.record.machine.model_copy(update={"gpu": gpu})}
            ),
        )
        for one in loaded
    ]
    text = page.render(facts + apple, loaded + other, {})
    parts = re.findall(r"<(?:table|figure).*?</(?:table|figure)>|<div class=\"tiles\">.*?\n</div>", text, re.DOTALL)
    assert len(parts) > 10
    for part in parts:
        hosts = set(re.findall(r"title=\"\w+\.(test|m5)\.", part)) | set(re.findall(r"id=\"(test|m5)_", part))
        assert len(hosts) == 1


@pytest.mark.needs_plots
def test_the_file_is_written_and_compared(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    evidence, facts, records = synthetic.root.path, facts_of(synthetic), synthetic.load()
    assert page.differences(evidence, facts, records) == f"{evidence / page.FILE} is missing"
    path = page.write(evidence, facts, records)
    assert page.differences(evidence, facts, records) == ""
    text = path.read_text()
    for was, becomes in (("10.00</a>", "9.00</a>"), ("stroke-width: 1.6", "stroke-width: 2.6")):
        assert was in text
        path.write_text(text.replace(was, becomes, 1))
        assert page.differences(evidence, facts, records) == f"{path} was changed after it was written"
    path.write_text(text)
    synthetic.write(synthetic.bench([synthetic.bench_row(7, ours_us=[11.0] * 12)]), age_hours=1)
    assert (
        page.differences(evidence, facts_of(synthetic), synthetic.load())
        == f"{path} shows other facts than the records give"
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("4096x1024.b4.g64.bf16.M8", "4096 x 1024, M = 8"),
        (
            "4096x1024.b4.g64.bf16.M8.b1k.hot.chain",
            "4096 x 1024, 4 bits, g64, bf16, x is [M, 1, K], M = 8, each call waits for the one before, hot weights",
        ),
        ("4096x1024.mxfp4.f16.M8", "4096 x 1024, mxfp4, f16, x is [M, K], M = 8"),
    ],
)
def test_a_row_in_words(row: str, words: str) -> None:
    assert spoken(row) == words


def test_the_main_job_writes_a_page_beside_the_evidence(synthetic: Any, tmp_path: Path) -> None:
    record = synthetic.write(synthetic.bench([]))  # nothing to draw: the page needs no matplotlib
    (stage,) = [stage for stage in STAGES if stage.name == "report"]
    context = Context(evidence=synthetic.root, out=tmp_path / "out put")
    path = context.out / page.FILE
    assert stage.run(context).detail == f"{path} shows what 1 records say; open it in a browser"
    assert not (synthetic.root.path / "report").exists()
    (href,) = re.findall(rf'<a href="([^"]+)">{record.stem}<', path.read_text())
    assert (path.parent / href).resolve() == record.resolve()
    committed = page.write(synthetic.root.path, facts_of(synthetic), synthetic.load())
    assert stage.run(context).detail == f"{committed} shows what 1 records say; open it in a browser"
