"""What one call costs the host, stock against ours: a decode step makes hundreds, and no device timer sees it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from upstream_patch.problem import Problem
from upstream_patch.records import dispatch_hash
from upstream_patch.records.schema import HostCost

PROBLEM = Problem(m=1, n=512, k=512)
"""N = K, so that an output is the next input."""

Matmul = Callable[..., Any]


def host_costs(rounds: int = 18, *, calls: int = 1000, links: int = 100) -> list[HostCost]:
    """Building a call, and building and enqueuing it, in rounds that alternate which of the two comes first.

    A sample is the mean of ``calls`` calls, or of one chain of ``links``: short enough that MLX never waits for the
    device while it enqueues.
    """
    from importlib import import_module

    from upstream_patch import ops
    from upstream_patch.measure import inputs

    mx: Any = import_module("mlx.core")  # its stubs leave async_eval untyped
    x = inputs.make_x(PROBLEM, seed=0)
    weights = inputs.make_weights(PROBLEM, 1, seed=0).copies[0]

    def build(matmul: Matmul) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            inputs.call(matmul, PROBLEM, x, weights)
        return (time.perf_counter() - start) / calls

    def run(matmul: Matmul) -> float:
        y = x
        start = time.perf_counter()
        for _ in range(links):
            y = inputs.call(matmul, PROBLEM, y, weights)
        mx.async_eval(y)
        enqueued = time.perf_counter()
        mx.synchronize()
        return (enqueued - start) / links

    arms = (ops.stock_quantized_matmul, ops.quantized_matmul)
    costs = []
    gc.disable()
    try:
        for name, timed in (("build", build), ("run", run)):
            for matmul in arms:
                timed(matmul)  # the first one compiles
            times: dict[Any, list[float]] = {matmul: [] for matmul in arms}
            for number in range(rounds):
                for matmul in arms if number % 2 else reversed(arms):
                    times[matmul].append(timed(matmul) * 1e6)
            stock_us, ours_us = times.values()
            costs.append(
                HostCost.model_validate(
                    {
                        "call": name,
                        "problem": PROBLEM,
                        "stock_us": stock_us,
                        "ours_us": ours_us,
                        "dispatch_hash": dispatch_hash.today(),
                    }
                )
            )
    finally:
        gc.enable()
    return costs
