"""The program that Nsight Compute watches: runs exactly the planned operations, one after another.

``python -m upstream_patch.measure.ncu_target PLAN.json`` where the plan is a list of ``{"problem": id, "arm": arm}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from upstream_patch.measure.inputs import Weights, call, make_weights, make_x
from upstream_patch.measure.suites import Profiled
from upstream_patch.problem import parse_problem


def write_plan(plan: Sequence[Profiled], path: Path) -> None:
    path.write_text(json.dumps([{"problem": item.problem.id, "arm": item.arm} for item in plan]))


def read_plan(path: Path) -> list[Profiled]:
    return [Profiled(parse_problem(item["problem"]), item["arm"]) for item in json.loads(path.read_text())]


def operands(plan: Sequence[Profiled]) -> Iterator[tuple[Profiled, Any, Weights]]:
    """(item, x, one copy of the weights), the same values in every process; neighbours of one shape share weights."""
    weights: Weights | None = None
    for number, item in enumerate(plan):
        if weights is None or weights.problem.weights_id != item.problem.weights_id:
            weights = None
            weights = make_weights(item.problem, 1, seed=7)
        yield item, make_x(item.problem, seed=number), weights


def check(plan: Sequence[Profiled]) -> None:
    """On the very operands that are then profiled, both arms' results are right. Raises WrongResult otherwise.

    Not in the watched process: ncu would count these launches too.
    """
    import mlx.core as mx

    from upstream_patch import ops
    from upstream_patch.measure.checked import check_row

    for number, (item, x, weights) in enumerate(operands(plan)):
        stock, ours = ops.stock_quantized_matmul, ops.quantized_matmul
        our_kernel = ops.route_of(item.problem) == "small_m"
        check_row(item.problem, x, weights, stock=stock, ours=ours, our_kernel=our_kernel, seed=number)
    mx.clear_cache()


def run(plan: Sequence[Profiled]) -> None:
    """Each operation once, evaluated before the next is built. ncu empties the caches before each, so it runs cold."""
    import mlx.core as mx

    from upstream_patch import ops

    ops.require_cuda()
    for item, x, weights in operands(plan):
        matmul = ops.stock_quantized_matmul if item.arm == "stock" else ops.quantized_matmul
        mx.eval(call(matmul, item.problem, x, weights.copies[0]))
        mx.synchronize()


if __name__ == "__main__":
    run(read_plan(Path(sys.argv[1])))
