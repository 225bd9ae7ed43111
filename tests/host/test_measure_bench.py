"""A whole suite on a simulated clock, its results checked for real (MLX on the CPU), and its refusals."""

from __future__ import annotations

import io
import math
import sys
import time
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from rich.console import Console

import upstream_patch
from tests.host.test_records_watched import Nvml
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import Gpu, Machine
from upstream_patch.measure import bench, graphs, suites
from upstream_patch.measure import timer as timing
from upstream_patch.measure.checked import WrongResult, make_row, sample_columns
from upstream_patch.measure.host_cost import host_costs
from upstream_patch.measure.mlx_device import MlxDevice
from upstream_patch.measure.probe import ReadProbe, Shape
from upstream_patch.measure.suites import Spec, Suite
from upstream_patch.measure.timer import NotLinear, Timer
from upstream_patch.problem import Problem
from upstream_patch.records import dispatch_hash
from upstream_patch.records.schema import BenchBody, Check, Protocol

mx = pytest.importorskip("mlx.core")

PROBLEM = Problem(m=2, n=512, k=128)
STOCK_US, OURS_US, LINK_US = 30.0, 10.0, 2.0


class SimulatedDevice:
    """A clock that advances by what the arms say they spent while they built a sample."""

    resolution_ns = 32

    def __init__(self) -> None:
        self.host = self.free = 0.0

    def host_us(self) -> float:
        return self.host

    def hold(self, us: float) -> Any:
        start = max(self.free, self.host)
        self.host += 5.0
        self.free = start + us
        return (int(start * 1e3), int(self.free * 1e3))

    def submit(self, batch: Sequence[Any]) -> None:
        assert all(isinstance(y, mx.array) for y in batch)  # not evaluated: check_row does the arithmetic, and in time
        self.host += 5.0
        self.free += SPENT.pop() if SPENT else 0.0
        SPENT.clear()

    def stamp(self) -> Any:
        self.host += 5.0
        return (int(self.free * 1e3) + 1000,)

    def wait(self) -> None:
        self.host = max(self.host, self.free)

    def read(self, handle: Any) -> tuple[int, ...]:
        return tuple(handle)

    def link(self, x: Any, y: Any) -> Any:
        _spend(LINK_US)
        return x + 0 * y.reshape(-1)[0]


SPENT: list[float] = []


def _spend(us: float) -> None:
    SPENT[:] = [sum(SPENT) + us]


def _arm(us: float, wrong: Callable[[Any], Any] = lambda y: y) -> Callable[..., Any]:
    def matmul(*args: Any, **kwargs: Any) -> Any:
        _spend(us)
        return wrong(mx.quantized_matmul(*args, **kwargs))

    return matmul


def _machine() -> Machine:
    gpu = Gpu(name="NVIDIA H200", vendor="nvidia", multiprocessors=132, l2_bytes=70_000)
    return Machine(os="Linux", arch="x86_64", cpu="cpu", cpu_count=2, memory_bytes=1, python="3.12", gpu=gpu)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    ops = types.ModuleType("upstream_patch.ops")
    vars(ops).update(
        stock_quantized_matmul=_arm(STOCK_US),
        quantized_matmul=_arm(OURS_US),
        route_of=lambda _: "stock_folded",
        kernel_symbol=lambda _: None,
    )
    monkeypatch.setitem(sys.modules, "upstream_patch.ops", ops)
    monkeypatch.setattr(upstream_patch, "ops", ops, raising=False)
    rows = (
        Spec(PROBLEM),
        Spec(PROBLEM.model_copy(update={"layout": "b1k"})),
        Spec(Problem(m=1, n=256, k=64)),
        Spec(PROBLEM, cache="hot"),
        Spec(PROBLEM, order="chain"),
    )
    monkeypatch.setitem(suites.SUITES, "tiny", Suite("tiny", "for this test", rows, rounds=12))
    monkeypatch.setattr(bench, "MlxDevice", SimulatedDevice)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    _set_probe(monkeypatch, 4400.0)
    monkeypatch.setattr(bench, "launch_floor", lambda *_: [0.6, 0.61])
    monkeypatch.setattr(bench, "host_costs", lambda: host_costs(3, calls=5, links=2))
    return ops


def test_the_host_cost_of_both_arms_is_paired(simulated: types.ModuleType) -> None:
    costs = host_costs(4, calls=5, links=2)
    assert [cost.call for cost in costs] == ["build", "run"]
    assert all(len(cost.stock_us) == len(cost.ours_us) == 4 for cost in costs)
    assert {cost.dispatch_hash for cost in costs} == {dispatch_hash.today()}


def test_a_slow_call_shows_in_the_host_cost(simulated: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = simulated.stock_quantized_matmul

    def slow(*arguments: Any, **more: Any) -> Any:
        time.sleep(0.002)
        return fast(*arguments, **more)

    monkeypatch.setattr(simulated, "quantized_matmul", slow)
    build, run = host_costs(3, calls=5, links=2)
    assert min(*build.ours_us, *run.ours_us) > 2000
    assert max(build.stock_us) < 1000


def _set_probe(monkeypatch: pytest.MonkeyPatch, gbps: float) -> None:
    probe = ReadProbe([gbps] * 3, 1 << 31, Shape(8, 256, 8), {"8 x 16 B": gbps})
    monkeypatch.setattr(bench, "read_probe", lambda *_: probe)


def _run(console: Console | None = None, limit_s: float = math.inf) -> BenchBody:
    console = console or Console(file=io.StringIO())
    return bench.run_suite("tiny", machine=_machine(), console=console, limit_s=limit_s)


def test_no_row_starts_after_the_limit(simulated: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", map(float, range(100)).__next__)  # a second goes by at every look
    body = _run(limit_s=3.5)
    late = {note.removeprefix("not reached in time: ") for note in body.notes if note.startswith("not reached")}
    assert late and body.rows
    assert late == {spec.id for spec in suites.SUITES["tiny"].rows} - {row.fact_stem for row in body.rows}
    with pytest.raises(UserError, match="before the first row"):
        _run(limit_s=0.5)


def test_a_suite_gives_checked_rows_in_order(simulated: types.ModuleType) -> None:
    seen: list[tuple[int, int]] = []
    out = io.StringIO()
    body = bench.run_suite(
        "tiny", machine=_machine(), console=Console(file=out, width=160), progress=lambda a, b: seen.append((a, b))
    )
    assert [row.fact_stem for row in body.rows] == [spec.id for spec in suites.SUITES["tiny"].rows]
    queue, _, _, hot, chain = body.rows
    assert queue.stock_us == pytest.approx([STOCK_US] * 12, rel=1e-3)
    assert queue.ours_us == pytest.approx([OURS_US] * 12, rel=1e-3)
    assert queue.aa_us == pytest.approx(queue.stock_us, rel=1e-3)
    assert chain.ours_us == pytest.approx([OURS_US + LINK_US] * 12, rel=1e-3)
    assert "2.00 us each when run alone" in chain.protocol.timer
    assert "less an empty bracket of 1.00 us" in queue.protocol.timer
    assert ["may overlap" in row.protocol.timer for row in (queue, chain)] == [True, False]
    assert (hot.protocol.copies, hot.protocol.cache) == (1, "hot")
    assert queue.protocol.copies * PROBLEM.packed_bytes > 3 * 70_000
    assert queue.protocol.ops_per_sample % queue.protocol.copies == 0
    assert all(row.check.passed and row.check.columns == min(320, row.problem.n) for row in body.rows)
    assert queue.ours_kernels == []
    assert (seen[0], seen[-1], {row.watched and row.watched.readings for row in body.rows}) == ((0, 60), (60, 60), {13})
    assert any("clock" in note for note in body.notes)
    assert "0 of 5 rows needed another number of operations a sample than the first that was tried" in body.notes
    assert body.graph_limits == graphs.described()
    assert all(part in out.getvalue() for part in ("3.00 [3.00, 3.00]", "FASTER"))
    assert BenchBody.model_validate_json(body.model_dump_json()) == body


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda y: y * 1.5, "our result is wrong"),
        (lambda y: mx.where(mx.arange(y.shape[-1]) == 511, 9, y), "our result is wrong"),
        (lambda y: mx.where(mx.arange(y.shape[-1]) == 0, mx.nan, y), "NaN"),
    ],
)
def test_a_wrong_result_is_not_timed(simulated: types.ModuleType, wrong: Callable[[Any], Any], says: str) -> None:
    vars(simulated)["quantized_matmul"] = _arm(OURS_US, wrong)
    with pytest.raises(WrongResult, match=says):
        _run()


def test_a_wrong_column_that_was_not_sampled_is_found_against_stock(simulated: types.ModuleType) -> None:
    missed = next(c for c in range(512) if c not in set(sample_columns(512, 0)) | set(sample_columns(512, 1)))
    vars(simulated)["quantized_matmul"] = _arm(OURS_US, lambda y: mx.where(mx.arange(y.shape[-1]) == missed, 9, y))
    with pytest.raises(WrongResult, match="weight copy 0 differs from stock"):
        _run()


def _fp32(x: Any, w: Any, scales: Any, biases: Any, **_: Any) -> Any:
    """Stands in for our kernel."""
    _spend(OURS_US)
    weights = mx.dequantize(w, scales.astype(mx.float32), biases.astype(mx.float32), group_size=64, bits=4)
    y = x.reshape(-1, 1, x.shape[-1]).astype(mx.float32) @ weights.T  # a product a row, whose bits no other row changes
    return y.astype(x.dtype).reshape(*x.shape[:-1], w.shape[0])


def test_a_row_whose_kernel_did_not_run_is_refused(simulated: types.ModuleType) -> None:
    vars(simulated).update(route_of=lambda _: "small_m", kernel_symbol=lambda _: "small_m_x", small_m_call=_fp32)
    vars(simulated).update(quantized_matmul=_fp32, stock_quantized_matmul=partial(_fp32))
    assert {tuple(row.ours_kernels) for row in _run().rows} == {("small_m_x",)}
    # within every bound: one unsampled column off by an ulp or two, as another kernel may be
    missed = next(c for c in range(512) if c not in set(sample_columns(512, 0)) | set(sample_columns(512, 1)))
    other = mx.where(mx.arange(512) == missed, 1 + 2**-7, 1).astype(mx.bfloat16)
    vars(simulated)["quantized_matmul"] = lambda *a, **k: _fp32(*a, **k) * other[: a[1].shape[0]]
    with pytest.raises(WrongResult, match="weight copy 0 is not what our kernel gives: another one ran"):
        _run()


@pytest.mark.parametrize("step", ["plan_ops", "paired"])
def test_a_row_that_cannot_be_timed_is_named(
    simulated: types.ModuleType, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotLinear("not linear")

    monkeypatch.setattr(bench, step, refuse)
    with pytest.raises(NotLinear, match=rf"^{PROBLEM.id}.*: not linear"):
        _run()


def test_a_row_that_cannot_be_timed_costs_no_other_its_place(
    simulated: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = timing.plan_ops

    def refuse_hot(timer: Timer, arms: Any, copies: int) -> int:
        if copies == 1:
            raise NotLinear("not linear")
        return real(timer, arms, copies)

    monkeypatch.setattr(bench, "plan_ops", refuse_hot)
    out = io.StringIO()
    body = _run(Console(file=out, width=160))
    assert [row.fact_stem for row in body.rows] == [
        spec.id for spec in suites.SUITES["tiny"].rows if spec.cache == "cold"
    ]
    assert body.notes[-1] == f"left out: {PROBLEM.id}.hot: not linear"
    assert body.notes[-1] in out.getvalue()


def test_rows_that_needed_another_length_are_counted(
    simulated: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replan(timer: Timer, arms: Any, copies: int) -> int:
        timer.replanned += copies == 1  # the hot row
        return copies

    def floor(_: Any, timer: Timer) -> list[float]:
        timer.replanned += 1
        return [0.6]

    monkeypatch.setattr(bench, "plan_ops", replan)
    monkeypatch.setattr(bench, "launch_floor", floor)
    assert [note for note in _run().notes if note.startswith("1 of 5 rows needed another number of operations")]


@pytest.mark.parametrize(("probe", "least"), [(4299.0, 0.0), (4459.0, 4460.0)])
def test_a_slow_probe_refuses_the_run(simulated: Any, monkeypatch: Any, probe: float, least: float) -> None:
    _set_probe(monkeypatch, probe)
    with pytest.raises(bench.SlowProbe, match=rf"{probe:.0f} GB/s, below the {least or 4300:.0f} that this h200 must"):
        bench.run_suite("tiny", machine=_machine(), least_gbps=least)


def test_a_row_needs_a_passed_check() -> None:
    failed = Check(passed=False, norm_error=1.0, max_ulp=9.0, bound="far off", columns=3)
    protocol, times = Protocol(copies=2, ops_per_sample=2, timer="t"), {"stock": [1.0], "ours": [1.0], "aa": [1.0]}
    with pytest.raises(WrongResult, match="far off"):
        make_row(PROBLEM, protocol, times, failed, ours_kernels=[], route="small_m")


def test_without_cuda_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: False)
    with pytest.raises(MissingTool, match=r"no CUDA GPU that MLX can use: .*doctor"):
        MlxDevice()
