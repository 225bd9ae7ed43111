"""Synthetic evidence: records of host ``test``, numbers nobody measured; and a device on a simulated clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.machine import Gpu, Machine
from upstream_patch.measure.timer import Timer
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
OURS = "small_m_bf16_b4_g64_r8_w8_s4_t4"
"""As our instances are named; the synthetic machine has no compute capability, so nothing asks for its tuning."""
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
        ours_kernels=[OURS],
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
            kernels=[OURS],
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
                        "kernel": OURS if arm == "ours" else "qmv_kernel",
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


@dataclass
class FakeDevice:
    """One in-order stream on a simulated clock; times in us. A batch is a list of durations."""

    submit_us: float = 20.0
    per_op_us: float = 4.0
    """Host time to enqueue one evaluation, and each operation in it."""
    gap_us: float = 1.5
    """Device time between two graphs."""
    tick_ns: int = 32
    jitter: float = 0.0
    stalls: dict[int, float] = field(default_factory=dict)
    """Number of the submit call -> host us lost in it."""
    in_flight: int | None = None
    """Operations after which the host is blocked until the device is idle, as MLX does past 10 graphs."""
    starved_after: int | None = None
    """Operations after which each takes 12 us for no reason that the host's clock shows, as seen on an H200."""
    upload_us: float = 0.0
    """Device time lost before the first operation of a sample."""
    pages_us: float = 0.0
    """Device time lost in the first submit after a read, as where the host took pages of an output along."""
    pages_gone: bool = False
    host: float = 0.0
    free: float = 0.0
    submits: int = 0
    holds: list[float] = field(default_factory=list)
    skew_us: float = 5_000_000.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def host_us(self) -> float:
        return self.host

    def _run(self, us: float) -> tuple[float, float]:
        start = max(self.free + self.gap_us, self.host)
        self.free = start + us
        return start, self.free

    def _ns(self, us: float) -> int:
        return int((us + self.skew_us) * 1e3) // self.tick_ns * self.tick_ns

    def hold(self, us: float) -> Any:
        self.host += self.submit_us
        self.holds.append(us)
        return tuple(self._ns(t) for t in self._run(us))

    def submit(self, batch: Sequence[Any]) -> None:
        self.submits += 1
        lost_us = self.upload_us + (self.pages_us if self.pages_gone else 0.0)
        self.pages_gone = False
        for number, us in enumerate(batch):
            self.host += self.per_op_us
            if self.in_flight is not None and number == self.in_flight:
                self.host = max(self.host, self.free)
            starved = self.starved_after is not None and number >= self.starved_after
            taken = max(us, 12.0) if starved else us + (0 if number else lost_us)
            self._run(taken * (1 + self.jitter * self.rng.random()) - self.gap_us)
        self.host += self.submit_us + self.stalls.get(self.submits, 0.0)

    def stamp(self) -> Any:
        self.host += self.submit_us
        return (self._ns(self._run(0.0)[0]),)

    def wait(self) -> None:
        self.host = max(self.host, self.free) + 30.0

    def read(self, handle: Any) -> tuple[int, ...]:
        self.pages_gone = True
        return tuple(handle)


@pytest.fixture
def ready() -> Callable[..., tuple[Timer, FakeDevice]]:
    """``ready(**about)``: a calibrated timer on a fake device of that make."""

    def make(**about: Any) -> tuple[Timer, FakeDevice]:
        device = FakeDevice(**about)
        timer = Timer(device)
        timer.calibrate()
        return timer, device

    return make
