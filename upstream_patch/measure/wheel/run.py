"""All of it in one go, for a record."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from upstream_patch import machine as prober
from upstream_patch.correctness import Case, Progress, compile_ahead, complaints, matrix_here, run_case, run_cases
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.measure import inputs
from upstream_patch.measure.conditions import conditions
from upstream_patch.measure.wheel.arms import WheelArms, cases_of
from upstream_patch.measure.wheel.decode import MODEL, PROMPT, Decoded, decode
from upstream_patch.measure.wheel.timing import PROBLEMS, run_rows
from upstream_patch.problem import Problem
from upstream_patch.records.schema import WheelBody, WheelRow
from upstream_patch.records.wheel_facts import host_hash
from upstream_patch.series.wheel import CUDA_WHEEL_FIX, build, find_mlx_library, load

PROCESSES = 16
STOPPED = "rows or decoding stopped: "
MOST_SLOWER = 1.05
"""The wheel build may take this much of the runtime delivery's time."""


def run_wheel(
    built: Path | None = None,
    every: int = 1,
    decoding: bool = True,
    progress: Progress | None = None,
    least_cases: float = 0,
) -> WheelBody:
    """The matrix (or every n-th case), rows, and decoding. ``built`` is the library; it is built where not given.

    Needs a CUDA GPU. One case runs first: where it is wrong, UserError, and nothing else is tried. What is wrong after
    that, or cannot run, stands in the body (``failures``). Raises UserError, too, where that is fewer than
    ``least_cases``: no record would be taken.
    """
    mlx = find_mlx_library()
    if mlx is None:
        raise MissingTool("no MLX for CUDA here", CUDA_WHEEL_FIX)
    built = (build(mlx) if built is None else built).absolute()
    whole = cases_of(matrix_here())
    cases = whole[::every]
    if len(cases) < least_cases:
        most = max(1, int(len(whole) // least_cases))
        raise UserError(f"{len(cases)} of {len(whole)} cases are too few for a record here: --every {most} at most")
    if wrong := complaints(run_case(cases[0], WheelArms(built))):
        raise UserError(f"the first case is wrong, nothing else was tried: {wrong[0]}")
    with ThreadPoolExecutor(1) as aside:
        # stock's tile kernels take half a minute each to compile: those of the rows, and of the prompts
        stock = [Case("wheel", problem) for problem in (*PROBLEMS, Problem(m=PROMPT, n=4096, k=4096))]
        ahead = aside.submit(compile_ahead, stock)
        matrix = run_cases(cases, partial(WheelArms, built), progress, processes=PROCESSES)
        ahead.result()
    notes = conditions("before")
    rows: list[WheelRow] = []
    decoded: Decoded | None = None
    try:
        rows, left_out = run_rows(load(built, mlx), inputs.last_level_cache(prober.probe()))
        notes += left_out
        decoded = decode(built, mlx) if decoding else None
    except UserError as error:  # the matrix is not thrown away for it
        notes.append(f"{STOPPED}{error}")
    return WheelBody(
        library_sha256=mlx.sha256,
        host_hash=host_hash(),
        cases=matrix.cases,
        planned=len(whole),
        every=every,
        rows=rows,
        model=dict(MODEL) if decoded else {},
        decode=decoded.rows if decoded else [],
        decode_environment=decoded.environment if decoded else None,
        calls=decoded.calls._asdict() if decoded else {},
        notes=[*notes, *conditions("after")],
    )


def failures(body: WheelBody) -> list[str]:
    """What is wrong, in lines: cases, rows slower than the runtime delivery, tokens that differ from its."""
    from upstream_patch.records.wheel_facts import to_runtime

    found = [line for case in body.cases for line in complaints(case)]
    found += [note for note in body.notes if note.startswith(STOPPED)]
    for row, ratio in zip(body.rows, to_runtime(body), strict=True):
        if ratio.value > MOST_SLOWER:
            found.append(f"{row.problem.id}: {ratio.value:.3f} of the runtime delivery's time")
    found += [
        f"decoding {decoded.batch} sequences: other tokens than with the runtime delivery"
        for decoded in body.decode
        if not decoded.same_as_runtime
    ]
    return found


def summary(body: WheelBody) -> str:
    """In a line."""
    from upstream_patch.records.wheel_facts import to_runtime

    worst = max((ratio.value for ratio in to_runtime(body)), default=0.0)
    speed = f", at most {worst:.3f} of the runtime delivery's time over {len(body.rows)} rows" if worst else ""
    decoded = f", decoding of {len(body.decode)} batch sizes" if body.decode else ""
    if not body.cases:
        raise UserError("no case ran")
    of = f" (of {body.planned} of the matrix)" if body.planned > len(body.cases) else ""
    right = sum(case.passed for case in body.cases)
    return f"{right} of {len(body.cases)} cases{of} right and bit-identical{speed}{decoded}"
