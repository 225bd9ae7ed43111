"""Every row of every suite as a benchmark of pytest-benchmark, which selects, stores and compares:

    pytest tests/device/test_bench.py --benchmark-only -k "small-m and M8" --benchmark-autosave --benchmark-compare

The times are our own paired timer's: a row is measured once, stock and ours alternating and checked, and each arm
hands its rounds on. These files are for development; evidence is what ``python -m upstream_patch bench`` records.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from upstream_patch import machine as prober
from upstream_patch.measure import bench
from upstream_patch.measure.suites import SUITES, Spec
from upstream_patch.records.schema import BenchRow
from upstream_patch.records.stats import geometric_mean_ratios, verdict

pytestmark = pytest.mark.needs_cuda

ASKED = "timed only with --benchmark-only or --benchmark-enable"
_now_s = 0.0


def device_clock() -> float:
    """Seconds of device time that rounds have taken; stands still between them."""
    return _now_s


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    asked = any(metafunc.config.getoption(name, False) for name in ("benchmark_only", "benchmark_enable"))
    rows = [
        pytest.param(
            name,
            spec,
            arm,
            id=f"{name}-{spec.id}-{arm}",
            marks=pytest.mark.benchmark(group=spec.id, timer=device_clock),
        )
        for name, suite in SUITES.items()
        for spec in suite.rows
        for arm in ("stock", "ours")
    ]
    skipped = [pytest.param("", None, "", id="asked", marks=pytest.mark.skip(reason=ASKED))]
    metafunc.parametrize(("suite", "spec", "arm"), rows if asked else skipped)


@cache
def opened() -> bench.Opened:
    return bench.open_device(prober.probe())


@cache
def measured(suite: str, spec: Spec) -> BenchRow:
    """Once for both arms."""
    return bench.measure_row(opened(), spec, SUITES[suite].rounds)


def test_row(benchmark: Any, suite: str, spec: Spec, arm: str) -> None:
    row = measured(suite, spec)
    times: list[float] = getattr(row, f"{arm}_us")
    rounds: Iterator[float] = iter(times)

    def hand_on() -> None:
        global _now_s  # noqa: PLW0603
        _now_s += next(rounds) * 1e-6

    (ratio,), (noise,) = (geometric_mean_ratios([(row.stock_us, other)]) for other in (row.ours_us, row.aa_us))
    judgement = verdict(ratio, noise, len(times))
    benchmark.extra_info |= {
        "speedup": ratio.value,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "verdict": str(judgement.verdict),
        "reason": judgement.reason,
        "route": row.route,
        "protocol": row.protocol.model_dump(),
        "check": row.check.model_dump(),
    }
    benchmark.pedantic(hand_on, rounds=len(times))
