"""The request's operator table on this Mac: stock, ours, and stock again, by its protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from upstream_patch.measure import checked, inputs
from upstream_patch.measure.m5 import slope
from upstream_patch.measure.m5.cases import sampled
from upstream_patch.measure.steps import Progress, counter
from upstream_patch.measure.suites import REQUEST_METAL, REQUESTED, SLOPE
from upstream_patch.problem import Problem
from upstream_patch.records.schema import BenchBody, BenchRow, Protocol
from upstream_patch.routing_metal import AppleGpu, instance, route, stock_route

WEIGHT_SETS = SLOPE.weight_sets
PROBE_BYTES = 1 << 30
_PROBES = 5
TIMER = (
    f"host clock around mx.eval of a chain of {slope.CALLS + slope.SHORT} dependent calls less that of one of "
    f"{slope.SHORT}, least of {slope.REPEATS} differences, per call, less the same of the glue alone: the request's "
    "slope method. Each input is x plus one element of the output before, times 0, by a compiled expression. Called "
    f"hot since the size of the GPU's cache is not known; {WEIGHT_SETS} sets of weights take turns"
)


def run_table(gpu: AppleGpu, problems: Sequence[Problem] = REQUESTED, progress: Progress | None = None) -> BenchBody:
    """Raises WrongResult for a wrong result, NoSlope where a chain cannot be timed; nothing is recorded then."""
    tick = counter(progress, len(problems))
    rows, floors = [], []
    for number, problem in enumerate(problems):
        row, floor = _row(problem, gpu, number)
        rows.append(row)
        floors.append(floor)
        tick()
    return BenchBody(
        suite=REQUEST_METAL.name,
        probe_gbps=[_read_gbps() for _ in range(_PROBES)],
        probe_bytes=PROBE_BYTES,
        launch_floor_us=floors,
        rows=rows,
        notes=[
            "read probe: mx.max over uint32, less that of 1,024; launch floor: the glue of each row, each waiting for "
            "the one before",
            "stock's kernels by our reading of MLX's dispatch: "
            + "; ".join(f"{problem.id} {stock_route(problem, gpu).text}" for problem in problems),
        ],
    )


def _row(problem: Problem, gpu: AppleGpu, seed: int) -> tuple[BenchRow, float]:
    """The row, and us of its glue."""
    from upstream_patch import ops, ops_metal

    taken = route(problem, gpu)
    staged = instance(problem, taken)
    weights = inputs.make_weights(problem, WEIGHT_SETS, seed=100 + seed)
    x = inputs.make_x(problem, seed)
    form: dict[str, Any] = {"group_size": problem.group_size, "bits": problem.bits}
    # x lies where MLX put it, at the start of its buffer: the kernels themselves, without the public call's copy
    ours = partial(ops_metal.staged_call, **form) if staged else partial(ops.stock_quantized_matmul, **form)
    stock = partial(ops.stock_quantized_matmul, **form)
    check = sampled(problem, x, weights.copies[0], ours(x, *weights.copies[0]), seed)
    arms = {name: _arm(call, x, weights) for name, call in (("stock", stock), ("ours", ours), ("aa", stock))}
    times = slope.rounds(arms)
    row = checked.make_row(
        problem,
        Protocol(cache="hot", order="chain", copies=WEIGHT_SETS, ops_per_sample=slope.CALLS, timer=TIMER),
        times,
        check,
        ours_kernels=[staged.host_name] if staged else [],
        route=taken.text,
    )
    return row, slope.slope_us(arms["stock"].glue)


def _arm(call: Callable[..., Any], x: Any, weights: inputs.Weights) -> slope.Arm:
    mx: Any = import_module("mlx.core")
    glue = mx.compile(lambda x, y: x + y.reshape(-1)[:1] * 0)

    def whole(count: int) -> Any:
        at = x
        for triple in weights.turn(count, hot=False):
            y = call(at, *triple)
            at = glue(x, y)
        return at

    def alone(count: int) -> Any:
        at = x
        for _ in range(count):
            at = glue(x, at)
        return at

    return slope.Arm(partial(_seconds, whole), partial(_seconds, alone))


def _seconds(build: Callable[[int], Any], count: int) -> float:
    mx: Any = import_module("mlx.core")
    start = time.perf_counter()
    mx.eval(build(count))
    return time.perf_counter() - start


def _read_gbps() -> float:
    """GB/s of one reduction over memory, less that of a small one."""
    mx: Any = import_module("mlx.core")
    data = mx.full((PROBE_BYTES // 4,), 1, mx.uint32)
    mx.eval(data)

    def largest(count: int) -> Any:
        return mx.max(data[:count])

    least, whole = (min(_seconds(largest, count) for _ in range(4)) for count in (1024, PROBE_BYTES // 4))
    return PROBE_BYTES / max(whole - least, 1e-9) / 1e9
