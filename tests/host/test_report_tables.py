"""Tables of the series in MLX and of a step's kernels: what stands in them, and that each number has its record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from upstream_patch.records.facts import Fact, derive
from upstream_patch.report import page
from upstream_patch.report.cells import Book, Cell, Table
from upstream_patch.report.tables import tables


def like(synthetic: Any, values: dict[str, float | str]) -> Book:
    """Facts of one record by their ids without the host."""
    synthetic.write(synthetic.bench([]))
    one = derive(synthetic.load())[0]
    facts: list[Fact] = []
    for name, value in values.items():
        family, _, rest = name.partition(".")
        facts.append(replace(one, id=f"{family}.test.{rest}", value=value, stale=False))
    return Book(facts, "test")


def shown(table: Table) -> list[list[str]]:
    return [[group.title, row.head, *map(said, row.cells)] for group in table.groups for row in group.rows]


def said(cell: Cell) -> str:
    assert cell.href.startswith("../records/") or cell.text in ("-", "not run")
    return cell.text + (f" ({cell.below.text})" if cell.below else "")


def test_a_step_s_time_by_kernel_the_longest_first(synthetic: Any) -> None:
    stem = "decode.llama-3.1-8b.B8"
    long = "CV2I" * 20
    us = {"stock_trace.qmm.us": 38_000.4, "stock_trace.rope.us": 350.0, "ours_trace.rope.us": 386.0}
    us |= {"ours_trace.small_m_x.us": 1502.0, f"ours_trace.{long}.us": 12.0}
    launches = {name.replace(".us", ".launches"): 64.0 for name in us}
    sums = {"stock_trace.kernels_us": 39_000.0, "ours_trace.span_us": 9000.0, "stock_trace.launches": 128.0}
    book = like(synthetic, {f"{stem}.{name}": value for name, value in (us | launches | sums).items()})
    (table,) = [one for one in tables(book) if one.anchor.endswith("-trace")]
    assert table.title == "Where a step of llama-3.1-8b spends its time on the device"
    assert shown(table) == [
        ["B = 8", "qmm", "38,000 (64 x)", "-", "-"],
        ["B = 8", "small_m_x", "-", "-", "1,502 (64 x)"],
        ["B = 8", "rope", "350 (64 x)", "-", "386 (64 x)"],
        ["B = 8", f"{long[:44]}...", "-", "-", "12 (64 x)"],
        ["B = 8", "all kernels", "39,000", "-", "-"],
        ["B = 8", "first start to last end", "-", "-", "9,000"],
    ]


def test_decode_has_its_verdicts(synthetic: Any) -> None:
    stem = "decode.tiny.B8"
    values: dict[str, float | str] = {f"{stem}.ours_tok_s": 100.0, f"{stem}.ours_ms_step": 80.0, f"{stem}.speedup": 2.0}
    values |= {f"{stem}.speedup_low": 1.9, f"{stem}.speedup_high": 2.1, f"{stem}.speedup_verdict": "UNCLEAR"}
    book = like(synthetic, values | {f"{stem}.speedup_verdict_reason": "1 other program on the GPU"})
    (table,) = tables(book)
    assert table.columns == ("B", "ours, tok/s", "ours / stock", "verdict")
    assert shown(table) == [["", "8", "100 (80.00 ms)", "2.00x (1.90 to 2.10)", "UNCLEAR"]]
    assert table.groups[0].rows[0].cells[2].title.endswith("speedup_verdict: 1 other program on the GPU")


def test_the_series_in_a_wheel_and_built_from_source(synthetic: Any) -> None:
    stem = "wheel.4096x14336.b4.g64.bf16.M8"
    values: dict[str, float | str] = {"wheel.cases": 344, "wheel.planned": 1374, "wheel.passed": 343}
    for row, factor in ((stem, 1.0), (f"{stem}.b1k", 2.0)):
        values |= {f"{row}.{arm}_us": factor * us for arm, us in (("stock", 25.0), ("runtime", 10.0), ("wheel", 10.1))}
        for name, value in (("speedup", 2.5), ("wheel_to_runtime", 1.01)):
            values |= {f"{row}.{name}": value, f"{row}.{name}_low": value - 0.001, f"{row}.{name}_high": value + 0.001}
        values |= {f"{row}.verdict": "FASTER"}
    values |= {f"wheel.decode.b4.{arm}_step_us": 5000.0 for arm in ("stock", "wheel", "runtime")}
    values |= {"wheel.decode.b4.same_as_runtime": 0}
    counts = ("new_tests", "proven", "known", "broken", "matrix_wrong")
    values |= {f"build.cuda.{name}": at for at, name in enumerate(counts)}
    cases, times, decoded, built = map(shown, tables(like(synthetic, values)))
    assert cases == [["", "matrix", "344", "1,374", "343"]]
    ratios = ["2.50x (2.50 to 2.50)", "FASTER", "1.010x (1.009 to 1.011)"]
    assert times == [
        ["4096 x 14336, b4.g64.bf16", "8", "25.00", "10.00", "10.10", *ratios],
        ["4096 x 14336, b4.g64.bf16", "8, x is [M, 1, K]", "50.00", "20.00", "20.20", *ratios],
    ]
    assert decoded == [["", "4", "5.00", "5.00", "5.00", "NO"]]
    assert built == [["", "cuda", "0", "1", "2", "3", "4"]]


def test_a_host_without_them_says_so(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([]))
    text = page.render(derive(synthetic.load()), synthetic.load(), {})
    assert "the series&#39; host code in a released MLX, MLX built from source with the series." in text
