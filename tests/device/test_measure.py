"""Timer, probe, floor, one checked suite row and ncu on a real GPU: ``pytest tests/device/test_measure.py -s``."""

from __future__ import annotations

import shutil
import statistics
import time
from typing import Any

import pytest

from upstream_patch import machine as prober
from upstream_patch.machine import Machine
from upstream_patch.measure import graphs, inputs
from upstream_patch.measure import timer as timing
from upstream_patch.measure.probe import launch_floor, read_probe
from upstream_patch.measure.timer import Timer, paired, plan_ops
from upstream_patch.problem import Problem
from upstream_patch.records import host_id
from upstream_patch.records.keeping import Keeper
from upstream_patch.records.rules import PROBE_FLOOR_GBPS

pytestmark = pytest.mark.needs_cuda

PROBLEM = Problem(m=1, n=28672, k=4096)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return prober.probe()


@pytest.fixture(scope="module")
def device() -> Any:
    from upstream_patch.measure.mlx_device import MlxDevice

    return MlxDevice()


@pytest.fixture(scope="module")
def timer(device: Any) -> Timer:
    timer = Timer(device)
    timer.calibrate()
    return timer


@pytest.fixture(scope="module")
def weights(machine: Machine) -> inputs.Weights:
    return inputs.make_weights(PROBLEM, inputs.cold_copies(PROBLEM, inputs.last_level_cache(machine)), seed=1)


def test_the_device_clock_and_the_hold(device: Any, timer: Timer) -> None:
    print(f"\nclock steps {device.resolution_ns} ns, empty bracket {timer.bracket_us:.3f} us")
    assert 1 <= device.resolution_ns <= 2000
    assert 0 < timer.bracket_us < 50
    for us in (300.0, 2000.0):
        handle = device.hold(us)
        start = time.perf_counter()
        device.wait()
        begin, end = device.read(handle)
        assert us * 1e3 <= end - begin < us * 1e3 + 100_000
        assert (time.perf_counter() - start) * 1e6 < us + 50_000


def test_the_host_clock_sees_the_enqueuing(device: Any, timer: Timer) -> None:
    """What the hold is compared with: were graphs launched by another thread after ``submit``, this would be blind."""
    few, many = (timer.sample(device.empty, n) for n in (1, 301))
    print(f"\nhost {few.host_us:.0f} us for 1 kernel, {many.host_us:.0f} us for 301; held {many.hold_us:.0f} us")
    assert (many.host_us - few.host_us) / 300 > 0.2
    assert many.host_us < many.hold_us


def test_a_known_duration_is_recovered(device: Any, timer: Timer) -> None:
    """A spin is the one operation whose device time is known. One alone: MLX may overlap independent ones."""
    us = timer.median(lambda _: [device._one_thread(device._hold_kernel, device._hold_ns(500.0), 4)], 1, 5)
    print(f"\nspin of 500 us measured as {us:.2f} us")
    assert us == pytest.approx(500.0, abs=10.0)


def test_the_read_probe_reaches_this_host_s_floor(device: Any, timer: Timer, machine: Machine) -> None:
    assert machine.gpu is not None and machine.gpu.multiprocessors is not None
    probe = read_probe(device, timer, machine.gpu.multiprocessors)
    print(f"\n{probe.shape}: {statistics.median(probe.gbps):.0f} GB/s; tried {probe.tried}")
    assert statistics.median(probe.gbps) >= PROBE_FLOOR_GBPS.get(host_id(machine), 0.0)
    assert max(probe.gbps) / min(probe.gbps) < 1.05


def test_the_launch_floor_is_microseconds(device: Any, timer: Timer) -> None:
    floor = launch_floor(device, timer)
    print(f"\nlaunch floor {statistics.median(floor):.3f} us")
    assert 0.05 < statistics.median(floor) < 20


def test_stock_against_itself_is_one(device: Any, timer: Timer, weights: inputs.Weights) -> None:
    import mlx.core as mx

    from upstream_patch.measure.inputs import make_x, queue_work

    x = make_x(PROBLEM, 1)
    stock = queue_work(mx.quantized_matmul, PROBLEM, x, weights, hot=False)
    replanned = timer.replanned
    ops = plan_ops(timer, [stock], len(weights.copies))
    times = paired(timer, {"stock": stock, "aa": stock}, ops, rounds=12)
    ratio = statistics.geometric_mean(a / b for a, b in zip(times["stock"], times["aa"], strict=True))
    us = statistics.median(times["stock"])
    if timer.replanned == replanned:  # the first number was taken: whole passes, and long enough
        assert ops % len(weights.copies) == 0
        assert ops * us > 0.9 * timing.LEAST_US
    print(f"\n{PROBLEM.id}: {us:.2f} us over {ops} operations, A/A {ratio:.4f}, {timer.discarded} samples taken again")
    assert 0.98 < ratio < 1.02
    # no faster than the bytes allow at any datasheet's speed, no slower than a sick machine
    assert PROBLEM.packed_bytes / (us * 1e3) < 8000


def test_a_longer_sample_gives_the_same_time(timer: Timer, weights: inputs.Weights) -> None:
    """Linear in the operations: the bracket, the hold and the graph cuts leave nothing behind."""
    import mlx.core as mx

    stock = inputs.queue_work(mx.quantized_matmul, PROBLEM, inputs.make_x(PROBLEM, 1), weights, hot=False)
    short, long = (timer.median(stock, n * len(weights.copies), 7) for n in (3, 9))
    print(f"\n{short:.2f} us and {long:.2f} us an operation at 3 and 9 passes")
    assert short == pytest.approx(long, rel=0.03)


def test_a_chain_is_serial(device: Any, timer: Timer, weights: inputs.Weights) -> None:
    import mlx.core as mx

    x = inputs.make_x(PROBLEM, 1)
    y = inputs.call(mx.quantized_matmul, PROBLEM, x, weights.copies[0])
    mx.eval(y)
    link = timer.median(inputs.link_work(device, x, y), 64)
    chain = timer.median(inputs.chain_work(device, mx.quantized_matmul, PROBLEM, x, weights, hot=False), 12)
    queue = timer.median(inputs.queue_work(mx.quantized_matmul, PROBLEM, x, weights, hot=False), 12)
    print(f"\nlink {link:.2f} us, chain {chain:.2f} us, queue {queue:.2f} us")
    assert link < 20
    assert chain > 0.98 * queue


def test_the_smoke_suite_makes_checked_rows() -> None:
    from upstream_patch.measure.bench import run_suite

    start = time.perf_counter()
    body = run_suite("smoke")
    print(f"\nsmoke took {time.perf_counter() - start:.1f} s; {body.notes}")
    assert all(row.check.passed for row in body.rows)
    assert body.graph_limits == graphs.described() != "default"
    assert {row.fact_stem for row in body.rows} >= {"4096x4096.b4.g64.bf16.M7", "4096x4096.b4.g64.bf16.M7.chain"}


@pytest.mark.skipif(shutil.which("ncu") is None, reason="Nsight Compute is not on the path")
def test_ncu_profiles_stock_and_ours() -> None:
    pytest.importorskip("ncu_report", exc_type=ImportError)
    from upstream_patch.measure.ncu import OPTIONAL, profile

    start = time.perf_counter()
    keeper = Keeper(["4096x4096.b4.g64.bf16"])
    body = profile("ncu-smoke", keeper=keeper)
    print(f"\nncu {body.ncu_version} took {time.perf_counter() - start:.1f} s")
    counted = {name for launch in body.launches for name in launch.metrics}
    print(f"not counted here: {sorted(set(OPTIONAL) - counted)}")
    assert "dram__bytes_read.sum" in counted or host_id(prober.probe()) != "h200"
    for launch in body.launches:
        if "dram__bytes_read.sum" not in counted:
            continue
        read = launch.metrics["dram__bytes_read.sum"]
        print(launch.problem.id, launch.arm, launch.kernel, launch.grid, launch.block, read.value, read.unit)
        # cold: at least once over the weights, less what a metric's multi-pass replay may blur
        assert read.value > 0.9 * launch.problem.packed_bytes
    assert b"gpu__time_duration.sum" in keeper.raw()["4096x4096.b4.g64.bf16.csv"]


def test_a_checked_row_ran_our_kernel(weights: inputs.Weights) -> None:
    """The comparison with the kernel itself, on the device: ours passes, MLX's own operation does not pass for it."""
    from upstream_patch import ops
    from upstream_patch.measure.checked import WrongResult, check_row

    x = inputs.make_x(PROBLEM, 1)
    stock, ours = ops.stock_quantized_matmul, ops.quantized_matmul
    assert check_row(PROBLEM, x, weights, stock=stock, ours=ours, our_kernel=True, seed=1).passed
    with pytest.raises(WrongResult):
        check_row(PROBLEM, x, weights, stock=stock, ours=stock, our_kernel=True, seed=1)
