"""README's table is what the facts say, and the filler refuses what it cannot stand for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from upstream_patch import readme, targets
from upstream_patch.errors import UserError
from upstream_patch.measure import graphs
from upstream_patch.measure.suites import suite
from upstream_patch.records import store
from upstream_patch.records.facts import Fact, derive

EMPTY = f"# Title\n\n{readme.BEGIN}\nformer contents\n{readme.END}\nafter\n"


def fact(name: str, value: float) -> Fact:
    return Fact(
        id=f"small_m.h200.4096x1024.b4.g64.bf16.M7.{name}",
        value=value,
        unit="us",
        host="h200",
        record_path="evidence/records/h200/x.json",
        sha256="0" * 64,
        stale=False,
        created=datetime(2026, 1, 1, tzinfo=UTC),
        command="x",
    )


FACTS = [fact("stock_us", 1966.64), fact("ours_us", 90.02), fact("speedup", 21.84)]


def test_readme_says_what_the_facts_say(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    assert readme.fill(text, derive(store.load_all(root / "evidence"))) == text


def test_a_cell_has_stock_ours_and_the_speedup() -> None:
    filled = readme.fill(EMPTY, FACTS)
    rows = [line for line in filled.splitlines() if line.startswith("| 4096 x 1024 |")]
    assert rows == [
        "| 4096 x 1024 | not run | not run | not run | 1,966.6 -> 90.0 (21.8x) | not run | not run | not run |"
    ]
    assert filled.startswith("# Title\n\n")
    assert filled.endswith("\nafter\n")
    assert "former contents" not in filled
    assert readme.fill(filled, FACTS) == filled


def test_where_ours_is_slower_is_said() -> None:
    slower = [*FACTS[:1], fact("ours_us", 2500.0), fact("speedup", 0.79)]
    said = "Slower than stock, where calls may overlap: 4096 x 1024 at M = 7."
    assert said in readme.fill(EMPTY, slower)
    assert "Slower" not in readme.fill(EMPTY, FACTS)


def test_the_machine_and_mlx_are_those_of_the_table_s_records() -> None:
    about = [
        ("x", "gpu", "NVIDIA H200"),
        ("x", "mlx", "0.32.4"),
        ("later", "gpu", "NVIDIA H200"),
        ("later", "mlx", "9"),
    ]
    records = [replace(FACTS[0], id=f"record.{stem}.{what}", value=value) for stem, what, value in about]
    assert "One NVIDIA H200, MLX 0.32.4; affine" in readme.fill(EMPTY, [*FACTS, *records])


def test_what_the_sanitizers_and_the_matrix_found_is_said_and_may_be_stale_alone() -> None:
    counts = {"launches": 630, "errors": 1, "plants_found": 2}
    tools = [
        replace(FACTS[0], id=f"sanitizer.h200.{tool}.{what}", value=count)
        for tool in ("memcheck", "racecheck", "initcheck", "synccheck")
        for what, count in counts.items()
    ]
    cases = [
        replace(FACTS[0], id=f"correctness.h200.{dtype}.{what}", value=count)
        for dtype in ("bf16", "f16")
        for what, count in (("cases", 700), ("passed", 699))
    ]
    filled = readme.fill(EMPTY, [*FACTS, *tools, *cases])
    assert "4 errors in 630 launches each, and each of 8 planted faults found." in filled
    assert "Correctness matrix: 1,398 of 1,400 cases of our kernel right." in filled
    stale = readme.fill(EMPTY, [*FACTS, *(replace(each, stale=True) for each in (*tools, *cases))])
    assert "The sanitizers have no record of today's kernel: renew it" in stale
    assert "The correctness matrix has no record of today's kernel: renew it" in stale
    assert "1,966.6 -> 90.0" in stale
    assert "errors in" not in readme.fill(EMPTY, [*FACTS, *tools[:-1]])


def test_what_a_call_costs_the_host_is_said() -> None:
    measured = [("build", "stock", 0.92), ("build", "ours", 2.88), ("run", "stock", 3.1), ("run", "ours", 5.0)]
    costs = [replace(fact(arm, us), id=f"host.h200.{call}.{arm}_us") for call, arm, us in measured]
    both = "What a call costs that machine's host in Python, microseconds: building a call 0.9 -> 2.9, building and "
    assert f"{both}enqueuing it 3.1 -> 5.0." in readme.fill(EMPTY, FACTS + costs)
    assert "building a call 0.9 -> 2.9.\n" in readme.fill(EMPTY, FACTS + costs[:3])
    assert "costs" not in readme.fill(EMPTY, FACTS + costs[:1])
    assert "costs" not in readme.fill(EMPTY, costs)


def test_a_stale_host_cost_withholds_only_itself() -> None:
    costs = [replace(fact(arm, 2.88), id=f"host.h200.build.{arm}_us", stale=arm == "ours") for arm in ("stock", "ours")]
    filled = readme.fill(EMPTY, FACTS + costs)
    assert "1,966.6 -> 90.0 (21.8x)" in filled
    assert "What a call costs the host has no record of today's dispatch: renew it on h200 with `x`." in filled
    assert "2.9" not in filled


def test_what_the_host_code_did_is_said_and_may_be_stale_alone() -> None:
    counts = {"passed": 343, "cases": 344, "planned": 1374, "most_wheel_to_runtime": 1.008}
    steps = {f"decode.b8.{arm}_step_us": us for arm, us in (("stock", 30245.7), ("runtime", 4420.0), ("wheel", 7153.0))}
    found = [replace(FACTS[0], id=f"wheel.h200.{name}", value=value) for name, value in {**counts, **steps}.items()]
    filled = readme.fill(EMPTY, FACTS + found)
    assert "343 of 344 cases (of 1,374) of the default matrix that our kernel takes are `install()`'s bits" in filled
    assert "in at most 1.01 of its device time" in filled
    assert "stock / `install()` / host code: B = 8 30.2 / 4.4 / 7.2.\n" in filled
    assert "Decode by" not in readme.fill(EMPTY, FACTS + found[:4])
    assert "host code" not in readme.fill(EMPTY, FACTS + found[:3])
    stale = readme.fill(EMPTY, [*FACTS, *(replace(each, stale=True) for each in found)])
    assert "The series' host code of today has no record: renew it" in stale
    assert "1,966.6 -> 90.0" in stale


def rows_of(stem: str, theirs: float, ours: float, other: str = "stock_us") -> list[Fact]:
    values = {other: theirs, "ours_us": ours, "speedup": theirs / ours}
    return [replace(fact(name, value), id=f"{stem}.{name}") for name, value in values.items()]


def test_calls_that_wait_for_one_another_are_under_the_table() -> None:
    def chain(row: str, stock: float, ours: float) -> list[Fact]:
        shape, _, m = row.partition(" ")
        return rows_of(f"small_m.h200.{shape}.b4.g64.bf16.{m}.chain", stock, ours)

    assert "waiting" not in readme.fill(EMPTY, FACTS)
    chains = [*chain("4096x4096 M1", 60, 8), *chain("4096x4096 M16", 70, 10), *chain("4096x1024 M32", 8, 10)]
    filled = readme.fill(EMPTY, [*FACTS, *chains])
    _, _, below = filled.partition("Each call waiting for the one before, as in decode")
    assert [line for line in below.splitlines() if line.startswith("| ")] == [
        "| K x N | M = 1 | M = 8 | M = 16 | M = 32 |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| 4096 x 1024 | not run | not run | not run | 8.0 -> 10.0 (0.8x) |",
        "| 4096 x 4096 | 60.0 -> 8.0 (7.5x) | not run | 70.0 -> 10.0 (7.0x) | not run |",
    ]


def test_every_chain_of_the_suite_but_7_rows_is_shown() -> None:
    chains = {(f"{s.problem.k}x{s.problem.n}", s.problem.m) for s in suite("small-m").rows if s.order == "chain"}
    assert {(weights, m) for weights, ms in readme.CHAINED.items() for m in ms} == {c for c in chains if c[1] != 7}


def test_the_head_against_pytorch_is_one_line_and_may_be_stale_alone() -> None:
    peers = [
        *rows_of("peer.h200.4096x128256.b4.g64.bf16.M1", 140, 70, "peer_us"),
        *rows_of("peer.h200.4096x128256.b4.g64.bf16.M8", 330, 75, "peer_us"),
    ]
    filled = readme.fill(EMPTY, FACTS + peers)
    assert "its -> ours: M = 1 140.0 -> 70.0 (2.0x), M = 8 330.0 -> 75.0 (4.4x).\n" in filled
    assert "PyTorch" not in readme.fill(EMPTY, FACTS)
    filled = readme.fill(EMPTY, FACTS + [replace(each, stale=True) for each in peers])
    assert "140.0" not in filled and "1,966.6 -> 90.0 (21.8x)" in filled
    assert "The comparison with PyTorch has no record of today's kernel: renew it on h200 with `x`." in filled


def test_targets_are_counted_from_the_same_facts() -> None:
    def line(facts: list[Fact]) -> str:
        (found,) = [one for one in readme.fill(EMPTY, facts).splitlines() if "evidence/targets.md" in one]
        return found

    total = targets.counted(FACTS)
    assert line(FACTS).startswith(f"Of {total.all} targets for this GPU {total.met} are met, {total.missed} missed")
    head = replace(fact("read_fraction", 0.9), id="small_m.h200.4096x128256.b4.g64.bf16.M8.read_fraction")
    assert f" {total.met + 1} are met, {total.missed} missed" in line([*FACTS, head])
    assert f" {total.met} are met, {total.missed + 1} missed" in line([*FACTS, replace(head, value=0.5)])
    assert line([*FACTS, replace(head, stale=True)]) == line(FACTS)


def test_plots_are_shown_beside_the_table_and_may_be_stale_alone() -> None:
    route = replace(fact("route", 0), value="small_m", unit="text")
    shares = [fact("read_fraction", 0.5), fact("stock_read_fraction", 0.1)]
    filled = readme.fill(EMPTY, [*FACTS, route, *shares])
    assert "stock MLX and ours, a panel for each K x N](evidence/plots/h200_time.svg)" in filled
    assert "[evidence/plots/h200_read_fraction.svg](evidence/plots/h200_read_fraction.svg)" in filled
    assert "evidence/plots" not in readme.fill(EMPTY, FACTS)
    # a shape that the table does not show
    other = [replace(one, id=one.id.replace("4096x1024", "512x512"), stale=True) for one in [*FACTS, route]]
    filled = readme.fill(EMPTY, [*FACTS, route, *other])
    assert "The plots have no record of today's kernel: renew it on h200 with `x`." in filled
    assert "evidence/plots" not in filled
    assert "1,966.6 -> 90.0 (21.8x)" in filled


@pytest.mark.parametrize(("limits", "said"), [(graphs.RAISED, True), ("default", False), (None, False)])
def test_raised_graph_limits_are_said_where_the_records_say_so(limits: str | None, said: bool) -> None:
    """And only where every record in use does."""
    known = [replace(FACTS[0], id="record.x.graph_limits", value=limits)] if limits else []
    words = "may overlap, one CUDA graph a sample (MLX's graph limits raised): stock -> ours"
    assert (words in readme.fill(EMPTY, FACTS + known)) is said
    other = replace(FACTS[1], record_path="evidence/records/h200/y.json")
    assert words not in readme.fill(EMPTY, [FACTS[0], other, FACTS[2], *known])


def test_before_a_benchmark_the_profiled_calls_are_shown() -> None:
    stem = "ncu.h200.4096x128256.b4.g64.bf16.M7"
    profiled = [
        replace(fact(arm, read), id=f"{stem}.{arm}.dram_bytes_read")
        for arm, read in (("stock", 2.0687e9), ("ours", 295.6e6))
    ]
    filled = readme.fill(EMPTY, profiled)
    assert "| K x N | M = 7 |" in filled
    assert "| 4096 x 128256 | 2,069 -> 296 |" in filled
    assert "4096 x 1024" not in filled
    assert "Nsight" not in readme.fill(EMPTY, [*profiled, *FACTS])
    assert "2,069" not in readme.fill(EMPTY, [replace(each, stale=True) for each in profiled])


def test_without_facts_it_says_so() -> None:
    assert "No benchmark has been recorded yet." in readme.fill(EMPTY, [])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_stale_fact_is_not_shown_and_what_renews_it_is(number: int) -> None:
    facts = [replace(each, stale=index == number) for index, each in enumerate(FACTS)]
    filled = readme.fill(EMPTY, facts)
    assert "The kernel changed since it was last measured: renew it on h200 with `x`." in filled
    assert "1,966.6" not in filled


@pytest.mark.parametrize(
    "text",
    ["no markers", EMPTY.replace(readme.END, ""), EMPTY + EMPTY, f"{readme.END}{readme.BEGIN}"],
)
def test_damaged_markers_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="needs one"):
        readme.fill(text, FACTS)


def test_the_file_changes_whole_and_only_when_it_must(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(EMPTY, encoding="utf-8")
    path.chmod(0o640)
    assert readme.update(path, FACTS)
    assert not readme.update(path, FACTS)
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["README.md"]
