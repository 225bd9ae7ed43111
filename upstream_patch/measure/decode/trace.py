"""Where a step's time goes, kernel by kernel: a process of its own under CUPTI, whose times are no speeds.

``python -m upstream_patch.measure.decode.trace MODEL BATCH...`` prints one JSON line for each batch size and arm.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256

from pydantic import ValidationError

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.records.decode_schema import DecodeTrace, KernelTime

STEPS = 4
BATCHES = (1, 8, 16)
"""Those that the targets speak of."""
TRACER = "CUPTI activity records, in a process of its own"
_LONGEST_NAME = 160


def traced(model: str, batches: Sequence[int], timeout_s: float) -> tuple[list[DecodeTrace], str]:
    """The traces, and what made them, or why some are missing. Never raises for what the process did: the times that
    were measured without it stand."""
    command = [sys.executable, "-m", __name__, model, *map(str, batches)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
        out, err, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        out, err, code = _text(late.stdout), f"it was stopped after {timeout_s:.0f} s", 1
    traces = []
    try:
        traces = [DecodeTrace.model_validate_json(line) for line in out.splitlines() if line.startswith("{")]
    except ValidationError as error:
        err, code = f"its output cannot be read ({error.error_count()} faults)", 1
    if code == 0:
        return traces, TRACER
    said = (err.strip().splitlines() or ["it said nothing"])[-1].removeprefix("error: ")
    return traces, f"{TRACER}; it ended with code {code}: {said[:500]}"


def summed(kernels: Sequence[tuple[str, int, int]], steps: int) -> list[KernelTime]:
    """By name, the longest first: launches and us of one step."""
    times: dict[str, list[int]] = defaultdict(list)
    for name, start, end in kernels:
        times[name].append(end - start)
    found = [
        KernelTime(kernel=_shortened(name), launches=len(those) / steps, us=max(1e-3, sum(those) / 1e3 / steps))
        for name, those in times.items()
    ]
    return sorted(found, key=lambda one: -one.us)


def _shortened(name: str) -> str:
    """A template's whole name may be pages long: its beginning, and what tells it from others that begin so."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}... sha256 {sha256(name.encode()).hexdigest()[:8]}"


def main(model: str, batches: Sequence[int]) -> None:
    """Trace every arm at every batch size."""
    from upstream_patch.measure.decode.cupti import Cupti

    cupti = Cupti()
    from importlib import import_module
    from typing import Any

    from upstream_patch.measure.decode import loop
    from upstream_patch.measure.decode.arms import ARMS
    from upstream_patch.measure.decode.models import named

    mx: Any = import_module("mlx.core")
    built = named(model)
    for batch in batches:
        state = loop.prefill(built, batch)
        for arm in ARMS:
            loop.sample(state, arm, 1)  # what it compiles is not traced
            mx.synchronize()
            cupti.begin()
            loop.sample(state, arm, STEPS)
            mx.synchronize()
            kernels = cupti.end()
            if not kernels:
                raise MissingTool("CUPTI saw no kernel", "another profiler may be attached; end it")
            steps = STEPS + loop.LEAD
            span = (max(end for _, _, end in kernels) - min(start for _, start, _ in kernels)) / 1e3 / steps
            trace = DecodeTrace.model_validate(
                {"model": built.name, "batch": batch, "arm": arm, "span_us": span, "kernels": summed(kernels, steps)}
            )
            print(trace.model_dump_json(), flush=True)


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


if __name__ == "__main__":
    try:
        main(sys.argv[1], [int(batch) for batch in sys.argv[2:]])
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
