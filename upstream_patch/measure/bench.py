"""Run a suite: probe, launch floor, then every row checked and timed, stock against ours against stock again."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console

from upstream_patch import machine as prober
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.machine import Machine
from upstream_patch.measure import checked, graphs, inputs
from upstream_patch.measure.conditions import conditions, watching
from upstream_patch.measure.host_cost import host_costs
from upstream_patch.measure.mlx_device import MlxDevice
from upstream_patch.measure.probe import ReadProbe, launch_floor, read_probe
from upstream_patch.measure.report import table
from upstream_patch.measure.steps import Progress, counter
from upstream_patch.measure.suites import Spec, suite
from upstream_patch.measure.timer import Timer, TimerError, Work, paired, plan_ops
from upstream_patch.records import host_id
from upstream_patch.records.form import GRAPH_LIMITS
from upstream_patch.records.keeping import Keeper
from upstream_patch.records.rules import PROBE_FLOOR_GBPS
from upstream_patch.records.schema import BenchBody, BenchRow, Protocol

LINKS = 64
"""Links in the sample that says what a link costs."""


class SlowProbe(UserError):
    """The machine is not at its normal speed; nothing was recorded."""

    exit_code = 4


@dataclass(frozen=True)
class Opened:
    """A device that is ready to be timed, and what it can do at best."""

    device: MlxDevice
    timer: Timer
    l2_bytes: int
    probe: ReadProbe
    floor_us: list[float]
    notes: list[str]


@dataclass(frozen=True)
class _Bench:
    """What every row of a run shares."""

    device: MlxDevice
    timer: Timer
    l2_bytes: int
    rounds: int
    tick: Callable[[], None]
    deadline: float
    """On ``time.monotonic``: no row starts after it."""


def run_suite(
    name: str,
    *,
    progress: Progress | None = None,
    machine: Machine | None = None,
    console: Console | None = None,
    limit_s: float = math.inf,
    keeper: Keeper | None = None,
    least_gbps: float = 0.0,
) -> BenchBody:
    """Measure every row of a suite on this machine's CUDA GPU; prints a table to ``console`` (stderr by default).

    After ``limit_s`` seconds no further row starts; the notes name those that were not reached. Ctrl-C, or a row that
    the ``keeper`` cannot write down, ends the run after the last complete row. ``least_gbps`` is what the read probe
    must reach for the record to be taken, where that is more than its kind of machine must.

    Raises KeyboardInterrupt when Ctrl-C comes before the first row.

    Raises UserError when the suite is unknown or of another kind of machine, MissingTool without a CUDA device,
    SlowProbe when the GPU reads memory more slowly than its kind must, WrongResult when a result is wrong, TimerError
    when the device cannot be timed.
    """
    chosen = suite(name)
    if chosen.where != "cuda":
        raise UserError(f"suite {name} is not for CUDA: `upstream-patch bench --suite {name}` says where it runs")
    deadline = time.monotonic() + limit_s
    keeper = keeper or Keeper([spec.id for spec in chosen.rows])
    opened = open_device(machine or prober.probe(), least_gbps)
    device, timer = opened.device, opened.timer
    specs = [spec for spec in chosen.rows if spec.id not in keeper.stored]
    tick = counter(progress, len(specs) * chosen.rounds)
    bench = _Bench(device, timer, opened.l2_bytes, chosen.rounds, tick, deadline)
    opening = BenchBody(
        suite=chosen.name,
        probe_gbps=opened.probe.gbps,
        probe_bytes=opened.probe.bytes,
        launch_floor_us=opened.floor_us,
        host_cost=host_costs(),
        rows=[],
        notes=[*opened.notes, f"{GRAPH_LIMITS}{graphs.described()}"],
    )
    keeper.open(opening)
    failed = _rows(bench, specs, keeper)
    left_out = [*(f"left out: {one}" for one in failed), *keeper.notes]
    after = [*conditions("after"), *_environment(device, timer, len(keeper.units)), *left_out]
    body = keeper.body(opening.model_copy(update={"notes": [*opening.notes, *after]}))
    console = console or Console(stderr=True)
    console.print(table(body))
    for line in left_out:
        console.print(line, style="red", markup=False)
    return body


def open_device(machine: Machine, least_gbps: float = 0.0) -> Opened:
    """Calibrate the timer, probe the memory and measure the launch floor, as every run does first.

    Raises MissingTool without a CUDA device, SlowProbe when it reads memory more slowly than its kind must, or than
    ``least_gbps``.
    """
    device = MlxDevice()
    l2_bytes = inputs.last_level_cache(machine)
    notes = conditions("before")
    timer = Timer(device)
    timer.calibrate()
    probe = normal_probe(device, timer, machine, least_gbps)
    notes += [f"read probe {shape}: {gbps:.0f} GB/s" for shape, gbps in probe.tried.items()]
    floor = launch_floor(device, timer)
    timer.calibrate()  # again at full clocks: this one is subtracted
    timer.replanned = 0  # the floor is no row
    return Opened(device, timer, l2_bytes, probe, floor, notes)


def measure_row(opened: Opened, spec: Spec, rounds: int, seed: int = 0) -> BenchRow:
    """One checked row, with weights of its own. Raises WrongResult, or TimerError when it cannot be timed."""
    bench = _Bench(opened.device, opened.timer, opened.l2_bytes, rounds, lambda: None, math.inf)
    copies = inputs.cold_copies(spec.problem, opened.l2_bytes)
    return _row(bench, spec, inputs.make_weights(spec.problem, copies, seed=1000 + seed), seed=seed)


def normal_probe(device: MlxDevice, timer: Timer, machine: Machine, least_gbps: float = 0.0) -> ReadProbe:
    """The read probe, from a machine at its normal speed. Raises SlowProbe below what its kind must reach, or below
    ``least_gbps``; MissingTool without a count of SMs."""
    multiprocessors = machine.gpu.multiprocessors if machine.gpu is not None else None
    if not multiprocessors:
        raise MissingTool("the number of SMs is unknown", "run `upstream-patch doctor` and follow its fix")
    probe = read_probe(device, timer, multiprocessors)
    host = host_id(machine)
    least, found = max(PROBE_FLOOR_GBPS.get(host, 0.0), least_gbps), statistics.median(probe.gbps)
    if found < least:
        tried = "; ".join(f"{shape}: {gbps:.0f}" for shape, gbps in probe.tried.items())
        raise SlowProbe(
            f"the read probe reached {found:.0f} GB/s, below the {least:.0f} that this {host} must reach ({tried}), so "
            "nothing was measured: stop what else uses the GPU, see its clocks with nvidia-smi, and run again"
        )
    return probe


def _rows(bench: _Bench, specs: list[Spec], keeper: Keeper) -> list[TimerError]:
    """Each row, with weights made once for neighbours that share them; why others are left out.

    A row that cannot be timed costs no other one its place. Raises TimerError when none can be, and UserError when the
    time is over before the first.
    """
    import mlx.core as mx

    def key(spec: Spec) -> str:
        return spec.problem.weights_id

    failed: list[TimerError] = []
    for number, (_, neighbours) in enumerate(groupby(sorted(specs, key=key), key=key)):
        weights: inputs.Weights | None = None
        for spec in neighbours:
            if keeper.skips(spec.id, bench.deadline):
                continue
            try:
                with keeper.unit(spec.id):
                    if weights is None:
                        mx.clear_cache()
                        copies = inputs.cold_copies(spec.problem, bench.l2_bytes)
                        weights = inputs.make_weights(spec.problem, copies, seed=1000 + number)
                    keeper.keep(spec.id, rows=[_row(bench, spec, weights, seed=number)])
            except TimerError as error:
                failed.append(error)
        del weights
    if not keeper.units:
        raise (
            failed[0] if failed else UserError("the time was over before the first row: give the bench more minutes")
        )
    return failed


def _row(bench: _Bench, spec: Spec, weights: inputs.Weights, seed: int) -> BenchRow:
    import mlx.core as mx

    from upstream_patch import ops

    problem = spec.problem
    x = inputs.make_x(problem, seed)
    stock, ours = ops.stock_quantized_matmul, ops.quantized_matmul
    route, symbol = ops.route_of(problem), ops.kernel_symbol(problem)
    check = checked.check_row(problem, x, weights, stock=stock, ours=ours, our_kernel=route == "small_m", seed=seed)
    mx.clear_cache()  # what the check read on the host would come back as an output, in memory that moves
    hot = spec.cache == "hot"

    def work(matmul: inputs.Matmul) -> Work:
        if spec.order == "chain":
            return inputs.chain_work(bench.device, matmul, problem, x, weights, hot)
        return inputs.queue_work(matmul, problem, x, weights, hot)

    copies = 1 if hot else len(weights.copies)
    arms = {"stock": work(stock), "ours": work(ours), "aa": work(stock)}
    link = ""
    try:
        ops_per_sample = plan_ops(bench.timer, [arms["stock"], arms["ours"]], copies)
        with watching(bench.tick) as watch:
            times = paired(bench.timer, arms, ops_per_sample, rounds=bench.rounds, seed=seed, tick=watch.tick)
        if spec.order == "chain":
            y = inputs.call(stock, problem, x, weights.copies[0])
            mx.eval(y)
            link = f"{bench.timer.median(inputs.link_work(bench.device, x, y), LINKS):.2f}"
    except TimerError as error:
        raise type(error)(f"{spec.id}: {error}") from error
    protocol = Protocol(
        cache=spec.cache,
        order=spec.order,
        copies=copies,
        ops_per_sample=ops_per_sample,
        timer=timer_text(bench.device.resolution_ns, bench.timer.bracket_us, link),
    )
    return checked.make_row(
        problem,
        protocol,
        times,
        check,
        ours_kernels=[symbol] if symbol else [],
        route=route,
        watched=watch.found(),
    )


def timer_text(resolution_ns: int, bracket_us: float, link_us: str = "") -> str:
    """What a time means, for ``Protocol.timer``. ``link_us`` is given for a chain."""
    order = (
        "each operation waits for the one before, through one link kernel an operation that both arms run and that is "
        f"not subtracted ({link_us} us each when run alone)"
        if link_us
        else "independent operations in one evaluation, which MLX may overlap on the device"
    )
    return (
        f"device clock %globaltimer (steps of {resolution_ns} ns), from the end of a spin kernel that outlasts the "
        f"host's enqueuing to a stamp kernel, less an empty bracket of {bracket_us:.2f} us, per operation between, "
        f"after as many that are not timed; {order}"
    )


def _environment(device: MlxDevice, timer: Timer, rows: int) -> list[str]:
    return [
        f"device clock steps of {device.resolution_ns} ns, empty bracket {timer.bracket_us:.3f} us, "
        f"{timer.discarded} samples taken again because the host was slower than the hold",
        f"{timer.replanned} of {rows} rows needed another number of operations a sample than the first that was tried",
    ]
