"""How fast does a whole model decode? Stock, stock with the batch folded into rows, and ours, through mlx-lm."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rich.console import Console

from upstream_patch.machine import Machine
from upstream_patch.measure.steps import Progress, counter
from upstream_patch.records.decode_schema import DecodeBody
from upstream_patch.records.keeping import Keeper

ROWS_SHARE = 0.75
"""Of the time that is given, for the rows; what is left is for the last row to end, and for the traces."""
LEAST_TRACE_S = 45.0
"""A trace builds the model again; it gets this much even where the time is over."""
TRACES = "traces"
"""The unit of all traces."""


def plan(models: Sequence[str], batches: Sequence[int]) -> list[str]:
    """Names of the units: every row, then the traces."""
    from upstream_patch.measure.decode.run import row_id

    return [*(row_id(model, batch) for model in models for batch in sorted(batches)), TRACES]


def run_decode(
    models: Sequence[str],
    batches: Sequence[int],
    *,
    machine: Machine,
    progress: Progress | None = None,
    console: Console | None = None,
    limit_s: float = math.inf,
    keeper: Keeper | None = None,
    least_gbps: float = 0.0,
) -> DecodeBody:
    """Measure the decode of models (a name of ``shapes.SHAPES``, or a folder) on this machine's CUDA GPU.

    What was measured is shown on ``console`` (stderr by default); the notes name what was not reached in ``limit_s``
    seconds, or before the run was stopped. The units of ``keeper`` are those of ``plan``; ``least_gbps`` is as in
    ``bench.run_suite``. Raises MissingTool without a
    CUDA device or mlx-lm, SlowProbe, or UserError where no row was measured.
    """
    from upstream_patch.correctness import Case, compile_ahead
    from upstream_patch.measure import graphs
    from upstream_patch.measure.bench import normal_probe
    from upstream_patch.measure.conditions import conditions
    from upstream_patch.measure.decode import lm, report, run
    from upstream_patch.measure.decode.loop import LOOP
    from upstream_patch.measure.decode.models import named
    from upstream_patch.measure.decode.shapes import PROMPT
    from upstream_patch.measure.mlx_device import MlxDevice
    from upstream_patch.measure.timer import Timer
    from upstream_patch.problem import Problem
    from upstream_patch.records import dispatch_hash
    from upstream_patch.records.form import GRAPH_LIMITS

    begin = time.monotonic()
    version = lm.version()
    compile_ahead([Case("decode", Problem(m=m, n=4096, k=4096)) for m in sorted({*batches, PROMPT})])
    device = MlxDevice()
    notes = conditions("before")
    timer = Timer(device)
    timer.calibrate()
    probe = normal_probe(device, timer, machine, least_gbps)
    keeper = keeper or Keeper(plan(models, batches))
    opening = DecodeBody(
        loop=LOOP,
        probe_gbps=probe.gbps,
        mlx_lm=version,
        dispatch_hash=dispatch_hash.today(),
        models=[],
        rows=[],
        notes=[*notes, f"{GRAPH_LIMITS}{graphs.described()}"],
    )
    keeper.open(opening)
    ticks = counter(progress, len(models) * len(batches))
    run.measure(models, named, batches, begin + ROWS_SHARE * limit_s, keeper, ticks)
    left = max(LEAST_TRACE_S, begin + limit_s - time.monotonic())
    _trace(models[0], batches, min(left, 600.0), keeper)
    body = keeper.body(opening)
    body = body.model_copy(update={"notes": [*body.notes, *conditions("after"), *keeper.notes]})
    console = console or Console(stderr=True)
    console.print(report.table(body))
    console.print(report.kernels(body.traces) if body.traces else f"no trace: {body.tracer}", markup=False)
    for line in keeper.notes:
        console.print(line, style="red", markup=False)
    return body


def _trace(model: str, batches: Sequence[int], timeout_s: float, keeper: Keeper) -> None:
    """The first model's steps at the batch sizes that were measured."""
    from upstream_patch.measure.decode import run, trace
    from upstream_patch.measure.decode.models import name_of

    measured = [batch for batch in batches if {*keeper.units, *keeper.stored} & {run.row_id(model, batch)}]
    wanted = [batch for batch in measured if batch in trace.BATCHES] or measured[:1]
    if not wanted or keeper.skips(TRACES):
        return
    with keeper.unit(TRACES):
        here = [one for one in keeper.items("models") if one.name == name_of(model)]
        traces, tracer = trace.traced(model, wanted, timeout_s)
        keeper.keep(TRACES, models=here[:1] or [run.described(model)], traces=traces, tracer=tracer)
