"""Facts: the right value, unit and source for each id, and when one is stale."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.host.conftest import OURS
from upstream_patch.errors import UserError
from upstream_patch.kernels import small_m_variant
from upstream_patch.problem import Problem
from upstream_patch.records.facts import Fact, current, derive, to_json
from upstream_patch.records.schema import HostCost

STEM = "small_m.test.4096x4096.b4.g64.bf16.M7"
NEW = "cd" * 32


def by_id(synthetic: Any, today: str = "ab" * 32) -> dict[str, Fact]:
    return {fact.id: fact for fact in derive(synthetic.load(), lambda kernel: today)}


def test_a_benchmark_row(synthetic: Any) -> None:
    path = synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    facts = by_id(synthetic)
    assert facts[f"{STEM}.stock_us"].value == pytest.approx(70.0)
    assert facts[f"{STEM}.ours_us"].value == pytest.approx(10.0)
    assert facts[f"{STEM}.stock_us"].unit == "us"
    # 4096 * 4096 weights of 4 bits, and a scale and a bias of 2 bytes for each 64 of them: 9,437,184 bytes.
    assert facts[f"{STEM}.read_fraction"].value == pytest.approx(9_437_184 / 10e-6 / 1000e9)
    assert facts[f"{STEM}.stock_read_fraction"].value == pytest.approx(9_437_184 / 70e-6 / 1000e9)
    low, value, high = (facts[f"{STEM}.{name}"].value for name in ("speedup_low", "speedup", "speedup_high"))
    assert isinstance(low, float) and isinstance(value, float) and isinstance(high, float)
    assert 6.98 < low < value < high < 7.02
    assert value == pytest.approx(7.0, rel=1e-3)
    assert facts[f"{STEM}.verdict"].value == "FASTER"
    assert facts[f"{STEM}.route"].value == "small_m"
    assert facts["probe.test.read_gbps"].value == 1000.0
    assert facts["probe.test.launch_floor_us"].value == 2.1
    one = facts[f"{STEM}.stock_us"]
    assert (one.record_path, one.host) == (f"evidence/records/test/{path.name}", "test")
    assert re.fullmatch("[0-9a-f]{64}", one.sha256)


def test_other_protocols_are_suffixes(synthetic: Any) -> None:
    row = synthetic.bench_row(7, layout="b1k")
    hot = row.model_copy(update={"protocol": row.protocol.model_copy(update={"cache": "hot", "order": "chain"})})
    synthetic.write(synthetic.bench([row, hot]))
    assert {f"{STEM}.b1k.speedup", f"{STEM}.b1k.hot.chain.speedup"} <= set(by_id(synthetic))
    assert f"{STEM}.speedup" not in by_id(synthetic)
    # Hot weights do not come from memory, so they have no share of its bandwidth.
    assert [one for one in by_id(synthetic) if one.endswith(".read_fraction")] == [f"{STEM}.b1k.read_fraction"]


def test_host_cost_facts(synthetic: Any) -> None:
    cost = HostCost(call="run", problem=Problem(m=1, n=512, k=512), stock_us=[3.0, 3.2, 3.4], ours_us=[4.5, 4.0, 4.6])
    body = synthetic.bench([synthetic.bench_row(7)]).model_copy(update={"host_cost": [cost]})
    synthetic.write(body)
    facts = by_id(synthetic)
    values = {name: facts[f"host.test.run.{name}"].value for name in ("stock_us", "ours_us", "extra_us")}
    assert values == {"stock_us": 3.2, "ours_us": 4.5, "extra_us": pytest.approx(1.2)}
    with pytest.raises(ValidationError, match="paired by round"):
        HostCost(call="run", problem=cost.problem, stock_us=[3.0, 3.2, 3.4], ours_us=[4.5] * 4)


@pytest.mark.parametrize(("measured", "stale"), [("12" * 32, False), ("34" * 32, True), (None, True)])
def test_host_costs_go_stale_with_the_dispatch(synthetic: Any, measured: str | None, stale: bool) -> None:
    times = [3.0, 3.2, 3.4]
    cost = HostCost(
        call="run", problem=Problem(m=1, n=512, k=512), stock_us=times, ours_us=times, dispatch_hash=measured
    )
    body = synthetic.bench([synthetic.bench_row(7)]).model_copy(update={"host_cost": [cost]})
    synthetic.write(body)
    found = {fact.id: fact for fact in derive(synthetic.load(), lambda kernel: "ab" * 32, "12" * 32)}
    assert [found[f"host.test.run.{name}_us"].stale for name in ("ours", "extra")] == [stale, stale]
    assert not found["host.test.run.stock_us"].stale
    assert not found[f"{STEM}.speedup"].stale


def test_the_graph_limits_are_those_of_the_record(synthetic: Any) -> None:
    body = synthetic.bench([synthetic.bench_row(7)])
    path = synthetic.write(body.model_copy(update={"notes": ["before", "MLX graph limits: A=1, B=2", "after"]}))
    assert by_id(synthetic)[f"record.{path.stem}.graph_limits"].value == "A=1, B=2"
    without = synthetic.write(body, 1)
    assert f"record.{without.stem}.graph_limits" not in by_id(synthetic)


TODAYS = small_m_variant(Problem(m=7, n=4096, k=4096), (9, 0), 132)[0].name


@pytest.mark.parametrize(
    ("recorded", "stale"),
    [
        (f"{TODAYS}_a23456789abc_batch", False),
        (f"custom_kernel_{TODAYS}_0123456789ab", False),
        ("small_m_bf16_b4_g64_r8_w16_s9_t4_0123456789ab", True),
        ("small_m_bf16_nvfp4_r8_w16_s9_t4_0123456789ab", True),
        ("another_kernel", False),
    ],
)
def test_another_tuning_today_makes_a_row_stale(synthetic: Any, recorded: str, stale: bool) -> None:
    gpu = synthetic.machine.gpu.model_copy(update={"compute_capability": "9.0", "multiprocessors": 132})
    machine = synthetic.machine.model_copy(update={"gpu": gpu})
    synthetic.write(synthetic.bench([synthetic.bench_row(7, ours_kernels=[recorded])]), machine=machine)
    facts = by_id(synthetic)
    assert (facts[f"{STEM}.ours_us"].stale, facts[f"{STEM}.stock_us"].stale) == (stale, False)


def test_a_device_that_lost_its_tuning_makes_its_rows_stale(synthetic: Any) -> None:
    gpu = synthetic.machine.gpu.model_copy(update={"compute_capability": "7.0", "multiprocessors": 80})
    machine = synthetic.machine.model_copy(update={"gpu": gpu})
    names = {7: "small_m_bf16_b4_g64_r8_w16_s2_t4", 8: "another"}
    body = synthetic.bench([synthetic.bench_row(m, ours_kernels=[name]) for m, name in names.items()])
    synthetic.write(body, machine=machine)
    facts, other = by_id(synthetic), STEM.replace("M7", "M8")  # whose name carries no tuning
    stale = [facts[one].stale for one in (f"{STEM}.ours_us", f"{STEM}.stock_us", f"{other}.ours_us")]
    assert stale == [True, False, False]


def test_profiler_facts(synthetic: Any) -> None:
    body = synthetic.ncu((1, 7))
    synthetic.write(body)
    facts = by_id(synthetic)
    stem = "ncu.test.4096x4096.b4.g64.bf16.M7"
    assert facts[f"{stem}.stock.dram_bytes_read"].value == 70_000_000
    assert facts[f"{stem}.ours.dram_bytes_read"].value == 10_000_000
    assert facts[f"{stem}.ours.duration_us"].value == 10.0
    assert facts[f"{stem}.ours.registers"].value == 40
    assert facts[f"{stem}.ours.dram_pct"].value == pytest.approx(55.5)
    assert facts[f"{stem}.stock.kernels"].value == "qmv_kernel"


def test_a_call_of_two_kernels_is_summed_and_a_missing_metric_is_no_zero(synthetic: Any) -> None:
    launch = synthetic.ncu((7,)).launches[1]
    without = {name: metric for name, metric in launch.metrics.items() if not name.startswith("dram__bytes")}
    second = launch.model_copy(update={"kernel": "reduce", "metrics": without})
    synthetic.write(synthetic.ncu((7,)).model_copy(update={"launches": [launch, second]}))
    facts = by_id(synthetic)
    stem = "ncu.test.4096x4096.b4.g64.bf16.M7.ours"
    assert facts[f"{stem}.duration_us"].value == 20.0
    assert facts[f"{stem}.kernels"].value == f"{OURS}, reduce"
    assert f"{stem}.dram_bytes_read" not in facts


def test_correctness_facts_count_what_failed(synthetic: Any) -> None:
    bad = synthetic.good.model_copy(update={"passed": False, "norm_error": 0.5, "max_ulp": 9.0})
    synthetic.write(synthetic.correctness(synthetic.good, bad, synthetic.good))
    facts = by_id(synthetic)
    found = {
        name: facts[f"correctness.test.bf16.{name}"].value for name in ("cases", "passed", "max_norm_error", "max_ulp")
    }
    assert found == {"cases": 3, "passed": 2, "max_norm_error": 0.5, "max_ulp": 9.0}
    assert facts["correctness.test.bf16.stock_max_norm_error"].value == 0.002


def test_a_row_that_was_wrong_gives_no_facts(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    (loaded,) = synthetic.load()
    row = loaded.record.body.rows[0]
    wrong = row.model_copy(update={"check": row.check.model_copy(update={"passed": False})})
    record = loaded.record.model_copy(update={"body": loaded.record.body.model_copy(update={"rows": [wrong]})})
    facts = derive([type(loaded)(record, loaded.path, loaded.sha256)], lambda kernel: "")
    assert not [fact for fact in facts if fact.id.startswith("small_m")]
    assert [fact for fact in facts if fact.id.startswith("probe")]


def test_a_changed_kernel_makes_only_our_facts_stale(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    synthetic.write(synthetic.ncu((7,)))
    synthetic.write(synthetic.correctness())
    stale = {fact.id for fact in by_id(synthetic, today=NEW).values() if fact.stale}
    fresh = set(by_id(synthetic, today=NEW)) - stale
    assert {
        f"{STEM}.{name}" for name in ("ours_us", "speedup", "speedup_low", "speedup_high", "read_fraction", "verdict")
    } <= stale
    assert {f"{STEM}.stock_us", f"{STEM}.stock_read_fraction", "probe.test.read_gbps"} <= fresh
    assert "ncu.test.4096x4096.b4.g64.bf16.M7.ours.dram_bytes_read" in stale
    assert "ncu.test.4096x4096.b4.g64.bf16.M7.stock.dram_bytes_read" in fresh
    assert {"correctness.test.bf16.cases", "correctness.test.bf16.max_norm_error"} <= stale
    assert not any(fact.stale for fact in by_id(synthetic).values())


def test_the_newest_that_is_not_stale_wins(synthetic: Any) -> None:
    other = synthetic.kernel.model_copy(update={"hash": NEW})
    for age, ours, kernel in ((0, 30.0, synthetic.kernel), (1, 20.0, synthetic.kernel), (2, 10.0, other)):
        synthetic.write(synthetic.bench([synthetic.bench_row(7, ours_us=[ours] * 12)]), age, kernel=kernel)
    assert by_id(synthetic)[f"{STEM}.ours_us"].value == 20.0
    assert by_id(synthetic, today=NEW)[f"{STEM}.ours_us"].value == 10.0
    none = by_id(synthetic, today="ef" * 32)[f"{STEM}.ours_us"]
    assert (none.value, none.stale) == (10.0, True)


def sources(facts: dict[str, Fact], row: str) -> set[str]:
    return {fact.record_path for name, fact in facts.items() if name.startswith(f"{row}.")}


def test_a_row_is_of_one_record(synthetic: Any) -> None:
    """Times of two runs side by side would be no pair: with our kernel of one record comes stock of that record."""
    other = synthetic.kernel.model_copy(update={"hash": NEW})
    bodies = [
        (synthetic.bench([synthetic.bench_row(7), synthetic.bench_row(8)]), synthetic.bench([synthetic.bench_row(7)])),
        (synthetic.ncu((7,)), synthetic.ncu((7,))),
        (synthetic.correctness(), synthetic.correctness()),
    ]
    paths = [
        [
            synthetic.write(body, age, kernel=kernel).name
            for body, age, kernel in zip(pair, (0, 9), kernels, strict=True)
        ]
        for pair, kernels in ((pair, (synthetic.kernel, other)) for pair in bodies)
    ]
    rows = (STEM, "ncu.test.4096x4096.b4.g64.bf16.M7", "correctness.test.bf16")
    older, newer = ([f"evidence/records/test/{pair[at]}" for pair in paths] for at in (0, 1))
    for today, expected in (("ab" * 32, older), (NEW, newer), ("ef" * 32, newer)):
        facts = by_id(synthetic, today)
        assert [sources(facts, row) for row in rows] == [{path} for path in expected]
        assert facts[f"{STEM}.ours_us"].stale is (today == "ef" * 32)
    # A row that only the older record holds stays, and what says nothing of our kernel is the newest.
    facts = by_id(synthetic, NEW)
    assert sources(facts, STEM.replace("M7", "M8")) == {older[0]}
    assert sources(by_id(synthetic), "probe.test") == {newer[0]}


def test_stock_profiled_alone_does_not_hide_a_pair(synthetic: Any) -> None:
    synthetic.write(synthetic.ncu((7,)))
    alone = synthetic.ncu((7,))
    synthetic.write(alone.model_copy(update={"launches": alone.launches[:1]}), 1)
    assert "ncu.test.4096x4096.b4.g64.bf16.M7.ours.duration_us" in by_id(synthetic)


def test_only_a_profiler_names_stocks_kernels(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7), synthetic.bench_row(8, ours_kernels=[])]))
    facts = by_id(synthetic)
    assert facts[f"{STEM}.ours_kernels"].value == OURS
    assert [name for name in facts if name.endswith("_kernels")] == [f"{STEM}.ours_kernels"]


def test_a_stale_fact_says_what_renews_it(synthetic: Any) -> None:
    path = synthetic.write(synthetic.bench([synthetic.bench_row(7)]), command="nox -s bench")
    old = by_id(synthetic, today=NEW)
    assert current(old[f"{STEM}.stock_us"]) is old[f"{STEM}.stock_us"]
    with pytest.raises(
        UserError, match=rf"{STEM}\.speedup is stale, .*{path.name}: renew it on test with `nox -s bench`"
    ):
        current(old[f"{STEM}.speedup"])


def test_json_form_and_order(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(m) for m in (16, 2)]))
    rows = json.loads(to_json(derive(synthetic.load())))
    assert set(rows[0]) == {"id", "value", "unit", "host", "record", "sha256", "stale", "created", "command"}
    stock = [row["id"] for row in rows if row["id"].endswith("stock_us")]
    assert [one.split(".")[-2] for one in stock] == ["M2", "M16"]
    assert all(row["stale"] for row in rows if row["id"].endswith("ours_us"))  # not the hash of any real kernel


def test_some_hundred_rows_take_less_than_a_second(synthetic: Any) -> None:
    rows = [
        synthetic.bench_row(m, n=64 * n, stock_us=[10.0 + (m * n * i) % 7 for i in range(50)])
        for m in range(1, 21)
        for n in range(1, 21)
    ]
    rows = [
        row.model_copy(update={"ours_us": [5.0 + i % 3 for i in range(50)], "aa_us": [10.0 + i % 5 for i in range(50)]})
        for row in rows
    ]
    cold = [row.model_copy(update={"protocol": row.protocol.model_copy(update={"cache": "hot"})}) for row in rows]
    synthetic.write(synthetic.bench(cold))
    import scipy.stats  # noqa: F401 (its import is not what is timed)

    loaded = synthetic.load()
    start = time.process_time()
    facts = derive(loaded, lambda kernel: "")
    took = time.process_time() - start
    assert len([fact for fact in facts if fact.id.endswith(".speedup")]) == 400
    assert took < 1.0, f"{took:.2f} s of processor time"


def test_facts_need_no_mlx(root: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['mlx'] = sys.modules['mlx.core'] = None\n"
        "from upstream_patch.records import facts, store\n"
        "from upstream_patch.draft import documents\n"
        "print(facts.to_json(facts.derive(store.load_all())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)
