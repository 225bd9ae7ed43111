"""Stock, the runtime delivery and the wheel build in turn, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from upstream_patch.measure import checked, inputs
from upstream_patch.measure.conditions import watching
from upstream_patch.measure.mlx_device import MlxDevice
from upstream_patch.measure.timer import Timer, TimerError, Work, paired, plan_ops
from upstream_patch.measure.wheel.arms import expected_module, require_route
from upstream_patch.problem import Problem
from upstream_patch.records.schema import WheelRow
from upstream_patch.series.wheel import Hook

ROUNDS = 24
"""Six balanced squares of the four arms (``timer.orders``)."""
PROBLEMS = (
    *(Problem(m=m, n=14336, k=4096) for m in (1, 2, 4, 7, 8, 16, 32)),
    *(Problem(m=m, n=14336, k=4096, layout="b1k") for m in (8, 16)),
    *(Problem(m=m, n=4096, k=14336) for m in (1, 8)),
    Problem(m=8, n=14336, k=4096, bits=8),
    Problem(m=8, n=14336, k=4096, bits=4, group_size=32, mode="mxfp4"),
)


def run_rows(
    hook: Hook, l2_bytes: int, problems: Sequence[Problem] = PROBLEMS, tick: Callable[[], None] | None = None
) -> tuple[list[WheelRow], list[str]]:
    """Rows, and why others are left out. Raises WrongResult or OtherRoute where a result or a route is wrong."""
    import mlx.core as mx

    device = MlxDevice()
    timer = Timer(device)
    timer.calibrate()
    rows: list[WheelRow] = []
    left_out: list[str] = []
    for number, (_, group) in enumerate(groupby(problems, key=lambda problem: problem.weights_id)):
        alike = list(group)
        mx.clear_cache()
        weights = inputs.make_weights(alike[0], inputs.cold_copies(alike[0], l2_bytes), seed=2000 + number)
        for problem in alike:
            try:
                rows.append(_row(hook, timer, problem, weights, number, tick))
            except TimerError as error:
                left_out.append(f"left out: {problem.id}: {error}")
        del weights
    return rows, left_out


def _row(
    hook: Hook, timer: Timer, problem: Problem, weights: inputs.Weights, seed: int, tick: Callable[[], None] | None
) -> WheelRow:
    import mlx.core as mx

    from upstream_patch import ops

    x = inputs.make_x(problem, seed)
    stock = ops.stock_quantized_matmul

    def wheel(*arguments: Any, **named: Any) -> Any:
        with hook.enabled():
            y = stock(*arguments, **named)
            mx.eval(y)
        return y

    module, before = expected_module(problem), hook.counts()
    check = checked.check_row(problem, x, weights, stock=stock, ours=wheel, our_kernel=True, seed=seed)
    require_route(hook, before, 1 + len(weights.copies), module)
    mx.clear_cache()

    def work(matmul: inputs.Matmul, hooked: bool) -> Work:
        queue = inputs.queue_work(matmul, problem, x, weights, hot=False)

        def build(n: int) -> Sequence[Any]:
            hook.enable(hooked)  # until another arm builds: these are evaluated before
            return queue(n)

        return build

    arms = {
        "stock": work(stock, False),
        "runtime": work(ops.quantized_matmul, False),
        "wheel": work(stock, True),
        "aa": work(ops.quantized_matmul, False),
    }
    try:
        ops_per_sample = plan_ops(timer, [arms["stock"], arms["wheel"]], len(weights.copies))
        with watching(tick) as watch:
            times = paired(timer, arms, ops_per_sample, rounds=ROUNDS, seed=seed, tick=watch.tick)
    finally:
        hook.enable(False)
    return WheelRow(
        problem=problem,
        copies=len(weights.copies),
        ops_per_sample=ops_per_sample,
        stock_us=times["stock"],
        runtime_us=times["runtime"],
        wheel_us=times["wheel"],
        aa_us=times["aa"],
        check=check,
        module=module,
        watched=watch.found(),
    )
