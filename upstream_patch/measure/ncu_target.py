"""The program that Nsight Compute watches: runs exactly the planned operations, one after another.

``python -m upstream_patch.measure.ncu_target PLAN.json`` where the plan is a list of ``{"problem": id, "arm": arm}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from upstream_patch.measure.suites import Profiled
from upstream_patch.problem import parse_problem


def write_plan(plan: Sequence[Profiled], path: Path) -> None:
    path.write_text(json.dumps([{"problem": item.problem.id, "arm": item.arm} for item in plan]))


def read_plan(path: Path) -> list[Profiled]:
    return [Profiled(parse_problem(item["problem"]), item["arm"]) for item in json.loads(path.read_text())]


def run(plan: Sequence[Profiled]) -> None:
    """Each operation once, evaluated before the next is built. ncu empties the caches before each, so it runs cold."""
    import mlx.core as mx

    from upstream_patch import ops
    from upstream_patch.measure import inputs
    from upstream_patch.measure.mlx_device import require_cuda

    require_cuda()
    weights: inputs.Weights | None = None
    for number, item in enumerate(plan):
        if weights is None or weights.problem.weights_id != item.problem.weights_id:
            weights = None
            weights = inputs.make_weights(item.problem, 1, seed=7)
        x = inputs.make_x(item.problem, seed=number)
        matmul = ops.stock_quantized_matmul if item.arm == "stock" else ops.quantized_matmul
        mx.eval(inputs.call(matmul, item.problem, x, weights.copies[0]))
        mx.synchronize()


if __name__ == "__main__":
    run(read_plan(Path(sys.argv[1])))
