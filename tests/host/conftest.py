"""Synthetic evidence: records of host ``test``, with numbers that nobody measured, in a root of their own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.machine import Gpu, Machine
from upstream_patch.problem import Layout, Problem
from upstream_patch.records.schema import (
    BenchBody,
    BenchRow,
    Body,
    CaseResult,
    Check,
    CorrectnessBody,
    KernelIdentity,
    Metric,
    NcuBody,
    NcuLaunch,
    Protocol,
)
from upstream_patch.records.store import LoadedRecord, SyntheticRoot, load_all, write

FIRST = datetime(2026, 11, 1, 12, tzinfo=UTC)
KERNEL = KernelIdentity(name="small_m", hash="ab" * 32, options=["-std=c++20"])
MACHINE = Machine(
    os="Synthetic 1.0",
    arch="x86_64",
    cpu="Synthetic",
    cpu_count=1,
    memory_bytes=2**30,
    python="3.11.0",
    gpu=Gpu(name="Synthetic GPU", vendor="nvidia", l2_bytes=1_000_000, driver="1.2.3"),
)
GOOD = Check(
    passed=True,
    norm_error=0.0012345,
    max_ulp=1.0,
    stock_norm_error=0.002,
    stock_max_ulp=2.0,
    bound="within 1.1x of stock",
    columns=4096,
)


def bench_row(m: int, n: int = 4096, layout: Layout = "mk", **changes: Any) -> BenchRow:
    """Stock takes 10 us a row, ours 10 us whatever M is; the noise is a few parts in a thousand."""
    wobble = [1 + 0.001 * ((7 * i) % 5 - 2) for i in range(12)]
    row = BenchRow(
        problem=Problem(m=m, n=n, k=4096, layout=layout),
        protocol=Protocol(copies=64, ops_per_sample=8, timer="synthetic"),
        stock_us=[10.0 * m * w for w in wobble],
        ours_us=[10.0 * w for w in reversed(wobble)],
        aa_us=[10.0 * m * w for w in wobble[1:] + wobble[:1]],
        check=GOOD,
        stock_kernels=["stock_kernel<4, 64>"],
        ours_kernels=["ours_kernel"],
        route="small_m",
    )
    return row.model_copy(update=changes)


def bench(rows: list[BenchRow], probe: float = 1000.0) -> BenchBody:
    return BenchBody(
        suite="synthetic",
        probe_gbps=[probe - 1, probe, probe + 1],
        probe_bytes=10**9,
        launch_floor_us=[2.0, 2.1, 2.2],
        rows=rows,
    )


def correctness(*checks: Check) -> CorrectnessBody:
    cases = [
        CaseResult(
            case=f"case_{index}",
            problem=Problem(m=index + 1, n=256, k=512),
            seed=index,
            check=check,
            repeats_equal=20,
            rows_equal_alone=True,
            written=True,
            kernels=["ours_kernel"],
        )
        for index, check in enumerate(checks or (GOOD, GOOD))
    ]
    return CorrectnessBody(cases=cases)


def ncu(ms: tuple[int, ...] = (1, 7)) -> NcuBody:
    launches = []
    for m in ms:
        for arm, read in (("stock", 10_000_000.0 * m), ("ours", 10_000_000.0)):
            launches.append(
                NcuLaunch.model_validate(
                    {
                        "problem": Problem(m=m, n=4096, k=4096),
                        "arm": arm,
                        "kernel": f"{arm}_kernel",
                        "grid": (1, 1, 1),
                        "block": (256, 1, 1),
                        "metrics": {
                            "dram__bytes_read.sum": Metric(value=read, unit="byte"),
                            "gpu__time_duration.sum": Metric(value=10_000.0, unit="ns"),
                            "launch__registers_per_thread": Metric(value=40, unit="register/thread"),
                            "dram__throughput.avg.pct_of_peak_sustained_elapsed": Metric(value=55.5, unit="%"),
                        },
                    }
                )
            )
    return NcuBody(ncu_version="2026.1", launches=launches)


@dataclass
class Synthetic:
    root: SyntheticRoot

    def write(self, body: Body, age_hours: int = 0, **changes: Any) -> Path:
        """Write a record, ``age_hours`` after the first one's time."""
        given: dict[str, Any] = {
            "host": "test",
            "command": f"python -m upstream_patch {body.kind}",
            "machine": MACHINE,
            "versions": {"mlx": "0.32.4", "nvidia-cuda-runtime": "13.0.0", "commit": "synthetic"},
            "kernel": KERNEL,
            "root": self.root,
            "created": FIRST + timedelta(hours=age_hours),
        }
        return write(body, **(given | changes))

    def load(self) -> list[LoadedRecord]:
        return load_all(self.root)

    bench_row = staticmethod(bench_row)
    bench = staticmethod(bench)
    correctness = staticmethod(correctness)
    ncu = staticmethod(ncu)
    good = GOOD
    kernel = KERNEL
    machine = MACHINE


@pytest.fixture
def synthetic(tmp_path: Path) -> Synthetic:
    return Synthetic(SyntheticRoot(tmp_path / "evidence"))
