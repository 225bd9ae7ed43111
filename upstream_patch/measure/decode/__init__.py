"""How fast does a whole model decode? Stock, stock with the batch folded into rows, and ours, through mlx-lm."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rich.console import Console

from upstream_patch.machine import Machine
from upstream_patch.measure.steps import Progress, counter
from upstream_patch.records.decode_schema import DecodeBody

ROWS_SHARE = 0.75
"""Of the time that is given, for the rows; what is left is for the last row to end, and for the traces."""
LEAST_TRACE_S = 45.0
"""A trace builds the model again; it gets this much even where the time is over."""


def run_decode(
    models: Sequence[str],
    batches: Sequence[int],
    *,
    machine: Machine,
    progress: Progress | None = None,
    console: Console | None = None,
    limit_s: float = math.inf,
) -> DecodeBody:
    """Measure the decode of models (a name of ``shapes.SHAPES``, or a folder) on this machine's CUDA GPU.

    What was measured is shown on ``console`` (stderr by default); the notes name what was not reached in ``limit_s``
    seconds. Raises MissingTool without a CUDA device or mlx-lm, SlowProbe, WrongResult, or UserError where no row was
    reached.
    """
    from upstream_patch.correctness import Case, compile_ahead
    from upstream_patch.measure import graphs
    from upstream_patch.measure.bench import normal_probe
    from upstream_patch.measure.conditions import conditions
    from upstream_patch.measure.decode import lm, report, run, trace
    from upstream_patch.measure.decode.loop import LOOP
    from upstream_patch.measure.decode.models import named
    from upstream_patch.measure.decode.shapes import PROMPT
    from upstream_patch.measure.mlx_device import MlxDevice
    from upstream_patch.measure.timer import Timer
    from upstream_patch.problem import Problem
    from upstream_patch.records import dispatch_hash
    from upstream_patch.records.schema import GRAPH_LIMITS

    begin = time.monotonic()
    version = lm.version()
    compile_ahead([Case("decode", Problem(m=m, n=4096, k=4096)) for m in sorted({*batches, PROMPT})])
    device = MlxDevice()
    notes = conditions("before")
    timer = Timer(device)
    timer.calibrate()
    probe = normal_probe(device, timer, machine)
    found = run.measure(
        models,
        named,
        batches,
        begin + ROWS_SHARE * limit_s,
        counter(progress, len(models) * len(batches)),
    )
    notes += [*conditions("after"), f"{GRAPH_LIMITS}{graphs.described()}", *found.left_out]
    wanted = [row.batch for row in found.rows if row.model == found.models[0].name and row.batch in trace.BATCHES]
    left = max(LEAST_TRACE_S, begin + limit_s - time.monotonic())
    traces, tracer = trace.traced(models[0], wanted or [found.rows[0].batch], min(left, 600.0))
    body = DecodeBody(
        loop=LOOP,
        probe_gbps=probe.gbps,
        mlx_lm=version,
        dispatch_hash=dispatch_hash.today(),
        models=found.models,
        rows=found.rows,
        traces=traces,
        tracer=tracer,
        notes=notes,
    )
    console = console or Console(stderr=True)
    console.print(report.table(body))
    console.print(report.kernels(traces) if traces else f"no trace: {tracer}", markup=False)
    for line in found.left_out:
        console.print(line, style="red", markup=False)
    return body
