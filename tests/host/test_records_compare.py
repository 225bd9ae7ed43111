"""Two records beside each other, and all of them as CSV."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import OURS
from tests.host.test_decode_records import MODEL, arm, body, row
from upstream_patch.errors import UserError
from upstream_patch.machine import Gpu
from upstream_patch.records import compare, export, facts, stats, store
from upstream_patch.records.compare import Comparison
from upstream_patch.records.form import GRAPH_LIMITS

STEM = "4096x4096.b4.g64.bf16.M7"


def compared(synthetic: Any) -> Comparison:
    return compare.compare(*synthetic.load())


def said(found: Comparison) -> dict[str, tuple[float, str]]:
    return {
        pair.name: (round(pair.ratio, 3), str(pair.judgement.verdict) if pair.judgement else "") for pair in found.pairs
    }


def faster(synthetic: Any, gain: float, stock: float = 1.0, m: int = 7) -> Any:
    row = synthetic.bench_row(m)
    return row.model_copy(
        update={
            "ours_us": [one / gain for one in row.ours_us],
            "stock_us": [one / stock for one in row.stock_us],
            "aa_us": [one / stock for one in row.aa_us],
        }
    )


def test_a_faster_kernel_is_faster_and_a_faster_machine_is_not(synthetic: Any) -> None:
    first = [faster(synthetic, 1.0), faster(synthetic, 1.0, m=8), synthetic.bench_row(1)]
    second = [faster(synthetic, 1.25), faster(synthetic, 1.1, 1.1, m=8), synthetic.bench_row(2)]
    synthetic.write(synthetic.bench(first, 4000.0))
    synthetic.write(synthetic.bench(second, 4000.0), age_hours=1)
    found = compared(synthetic)
    assert said(found) == {
        f"{STEM} stock": (1.0, "SAME"),
        f"{STEM} ours": (1.25, "FASTER"),
        f"{STEM[:-1]}8 stock": (1.1, "FASTER"),
        f"{STEM[:-1]}8 ours": (1.1, "UNCLEAR"),  # all of it went with the machine
    }
    assert (found.only_first, found.only_second) == ((f"{STEM[:-1]}1",), (f"{STEM[:-1]}2",))
    assert "counts as noise" in found.control
    (pair,) = [pair for pair in found.pairs if pair.name == f"{STEM} ours"]
    assert pair.interval is not None and pair.interval.low < 1.25 < pair.interval.high
    assert (pair.first, pair.second) == (10.0, 8.0)


def test_what_differs_between_the_runs_is_said(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    kernel = synthetic.kernel.model_copy(update={"hash": "cd" * 32})
    given = {"versions": {"mlx": "0.33.0", "commit": "synthetic"}, "kernel": kernel}
    synthetic.write(synthetic.bench([faster(synthetic, 1.0, 1.1)], probe=990.0), age_hours=1, **given)
    found = compared(synthetic)
    assert found.differs == (
        ("mlx", "0.32.4", "0.33.0"),
        ("nvidia-cuda-runtime", "13.0.0", "unknown"),
        ("kernel", "ab" * 6, "cd" * 6),
        ("read probe", "1,000 GB/s", "990 GB/s"),
    )
    assert "host test" in found.same
    assert found.control.startswith("stock is not the same in both runs")
    assert said(found)[f"{STEM} ours"] == (1.0, "SAME")  # another stock says nothing of the machine


def test_decode_compares_with_intervals(synthetic: Any) -> None:
    wobble = [1 + 0.002 * ((7 * i) % 5 - 2) for i in range(12)]
    for hours, gain in enumerate((1.0, 1.25)):
        ours = arm(2.0, step_ms=[2.0 / gain * w for w in wobble], host_ms=[1.0] * 12)
        stock, aa = arm(32.0, step_ms=[32.0 * w for w in wobble]), [32.0 * w for w in reversed(wobble)]
        synthetic.write(body(row(8, stock=stock, folded=stock, ours=ours, aa_ms=aa)), age_hours=hours)
    found = compared(synthetic)
    assert said(found) == {"llama-3.1-8b.B8 stock": (1.0, "SAME"), "llama-3.1-8b.B8 ours": (1.25, "FASTER")}
    pair = found.pairs[1]
    assert pair.interval is not None and pair.interval.low < 1.25 < pair.interval.high
    assert (pair.unit, pair.first, pair.second) == ("ms", 2.0, 1.6)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mlx_lm": "0.1"}, ("mlx-lm", "0.0", "0.1")),
        ({"rows": [row(1), row(8, prompt=64)]}, ("prompt", "128 tokens", "64 tokens")),
        ({"models": [MODEL.model_copy(update={"weights": "loaded"})]}, ("weights", "random", "loaded")),
        ({"notes": [f"{GRAPH_LIMITS}default"]}, ("MLX's graph limits", "unknown", "default")),
        ({"rows": [row(1, prompt=64), row(8)]}, None),  # only one record has that row
    ],
)
def test_what_a_decode_step_depends_on_is_the_code(synthetic: Any, changes: Any, named: Any) -> None:
    synthetic.write(body(row(8)))
    synthetic.write(body(row(8)).model_copy(update=changes), age_hours=1)
    found = compared(synthetic)
    assert found.differs == ((named,) if named else ())
    assert ("counts as noise" in found.control) == (named is None)


def test_records_without_samples_compare_without_an_interval(synthetic: Any) -> None:
    synthetic.write(synthetic.ncu((1,)))
    synthetic.write(synthetic.ncu((1, 7)), age_hours=1)
    found = compared(synthetic)
    stem = "ncu.4096x4096.b4.g64.bf16.M1"
    assert said(found)[f"{stem}.ours.dram_bytes_read"] == (1.0, "")
    assert found.only_second and all(".M7." in name for name in found.only_second)


def test_kinds_and_vendors_do_not_mix(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    synthetic.write(synthetic.ncu(), age_hours=1)
    with pytest.raises(UserError, match=r"of kind bench, .* of ncu: two of one kind compare"):
        compared(synthetic)
    apple = synthetic.machine.model_copy(update={"gpu": Gpu(name="Apple M5", vendor="Apple")})
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]), age_hours=2, machine=apple)
    loaded = synthetic.load()
    with pytest.raises(UserError, match="of cards of apple and nvidia, whose numbers never share a table"):
        compare.compare(loaded[0], loaded[2])


def test_a_record_is_found_by_its_id_its_end_or_its_file(synthetic: Any) -> None:
    path = synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    synthetic.write(synthetic.bench([synthetic.bench_row(8)]), age_hours=1)
    for name in (path.stem, path.stem[-8:], path.stem[:20]):
        assert store.find(name, synthetic.root).record.id == path.stem
    with pytest.raises(UserError, match=r"no one record is 'test-' \(test-.*, test-.*\)"):
        store.find("test-", synthetic.root)
    with pytest.raises(UserError, match=r"no one record is 'nothing' \(there is none\)"):
        store.find("nothing", synthetic.root)


def test_unpaired_ratios_resample_both_sides() -> None:
    first, second = [1.0, 1.1, 0.9, 1.0] * 3, [2.0, 2.2, 1.8, 2.0] * 3
    (ratio,) = stats.unpaired_ratios([(first, second)])
    assert ratio.value == pytest.approx(0.5)
    assert 0.45 < ratio.low < 0.5 < ratio.high < 0.55
    (paired,) = stats.geometric_mean_ratios([(first, second)])
    assert (paired.low, paired.high) == pytest.approx((0.5, 0.5))  # which these are not: no round is another's
    with pytest.raises(ValueError, match="two or more positive samples"):
        stats.unpaired_ratios([([1.0, 1.0], [1.0])])


def test_every_fact_and_every_sample_is_exported(synthetic: Any) -> None:
    synthetic.write(synthetic.bench([synthetic.bench_row(7)]))
    synthetic.write(synthetic.ncu((1,)), age_hours=1)
    loaded = synthetic.load()
    derived = facts.derive(loaded)
    (header, *rows) = csv.reader(export.facts_csv(derived).splitlines())
    assert tuple(header) == export.FACTS
    assert [(row[0], row[1]) for row in rows] == [(fact.id, str(fact.value)) for fact in derived]
    (header, *rows) = csv.reader(export.samples_csv(loaded).splitlines())
    assert tuple(header) == export.SAMPLES
    times = [float(row[6]) for row in rows if row[3:5] == [STEM, "ours_us"]]
    assert times == loaded[0].record.body.rows[0].ours_us
    assert [row[5] for row in rows if row[4] == "aa_us"] == [str(i) for i in range(12)]
    counted = [row[3:] for row in rows if row[4] == "dram__bytes_read.sum"]
    stem = "4096x4096.b4.g64.bf16.M1"
    assert counted == [
        [f"{stem} {arm} {kernel}", "dram__bytes_read.sum", "0", "10000000.0", "byte"]
        for arm, kernel in (("stock", "qmv_kernel"), ("ours", OURS))
    ]


def test_the_verbs(root: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root)}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "upstream_patch", "records", *arguments]
        return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)

    (name,) = [path for path in sorted((root / "evidence" / "records" / "h200").glob("*-ncu-*.json"))][:1]
    done = call("compare", str(name), name.stem)
    assert done.returncode == 0, done.stderr
    assert "the same: host h200" in done.stdout and "(one value each: no interval)" in done.stdout
    done = call("export", "--csv", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["facts.csv", "samples.csv"]
    assert call("compare", "nothing", "nothing").returncode == 2
