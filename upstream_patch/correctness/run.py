"""Runs cases through stock and ours, and judges what came out."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from typing import Any, Protocol

import numpy as np

from upstream_patch.correctness.case import Answer, Case, answer, repeats_of
from upstream_patch.correctness.cases import matrix
from upstream_patch.correctness.errors import check
from upstream_patch.correctness.forms import Bits, Operands, one_row, operands, outputs_bits
from upstream_patch.kernels.tuning import USUAL, format_of
from upstream_patch.machine import cuda_device
from upstream_patch.problem import Problem
from upstream_patch.records.keeping import Keeper
from upstream_patch.records.schema import CaseResult, Check, CorrectnessBody
from upstream_patch.reference import from_bits
from upstream_patch.routing import QMV_ROWS

ROWS_ALONE = 64
"""A case with more rows tries this many of them alone."""
FILLS = (float("nan"), -3.0)
"""What the output's memory holds before a call. Two values, so that a wanted NaN cannot pass as an untouched one."""
PROCESSES = 16
"""That share the GPU at most."""
SHARE = 12
"""Cases that a process takes at a time, at least."""
SHARES_A_PROCESS = 6
"""At most: a share's cases are alike, and each process compiles the instances it meets."""
SHOWN = 300
"""Characters of a stock error that a record keeps."""
Progress = Callable[[int, int, str], None]
"""Called before each case with (cases done, cases in all, case id), and once at the end."""


class Arms(Protocol):
    """The two things compared. Outputs are stored bits [rows, N]; the host tests bring a numpy pair."""

    def prepare(self, case: Case, given: Answer) -> Any: ...

    def route(self, case: Case) -> str | None:
        """The route our operation takes, or None where the problem alone does not tell."""

    def kernels(self, case: Case) -> list[str]: ...

    def stock(self, prepared: Any) -> Bits: ...

    def ours(self, prepared: Any, repeats: int) -> list[Bits]:
        """Queued together, then read."""

    def ours_over(self, prepared: Any, fills: Sequence[float]) -> list[Bits]:
        """Once for each fill, which is in the memory that the output will take."""

    def ours_rows(self, prepared: Any, rows: int) -> list[Bits]:
        """Each of the first rows alone, [1, N], or of a batch [H, N]; queued together, then read."""


class MlxArms:
    """Stock MLX and ``upstream_patch.ops`` on mlx's default device."""

    def prepare(self, case: Case, given: Answer) -> tuple[Operands, Answer]:
        return operands(case, given.inputs), given

    def route(self, case: Case) -> str | None:
        from upstream_patch import ops

        return str(ops.route_of(case.problem)) if case.form in ("plain", "margins", "odd_offset") else None

    def kernels(self, case: Case) -> list[str]:
        from upstream_patch import ops

        symbol = ops.kernel_symbol(case.problem) if self.route(case) == "small_m" else None
        return [symbol] if symbol else []

    def stock(self, prepared: tuple[Operands, Answer]) -> Bits:
        from upstream_patch import ops

        given = prepared[0]
        return outputs_bits(given.case, [ops.stock_quantized_matmul(*given.arguments, **given.keywords)])[0]

    def ours(self, prepared: tuple[Operands, Answer], repeats: int) -> list[Bits]:
        from upstream_patch import ops

        given = prepared[0]
        return outputs_bits(
            given.case, [ops.quantized_matmul(*given.arguments, **given.keywords) for _ in range(repeats)]
        )

    def ours_over(self, prepared: tuple[Operands, Answer], fills: Sequence[float]) -> list[Bits]:
        """Our kernel takes ``fill`` through its own hook. Elsewhere MLX's allocator is primed with freed blocks of the
        output's size; which of them it hands out, and to which array, is its own choice, so that proves less."""
        import mlx.core as mx

        from upstream_patch import ops

        given = prepared[0]
        if given.case.route == "small_m":
            calls = [ops.small_m_call(*given.arguments, **given.format, init_value=fill) for fill in fills]
            return outputs_bits(given.case, calls)
        outputs = []
        for fill in fills:
            p = given.case.problem
            blocks = [mx.full((p.batch * p.m, p.n), fill, given.x.dtype) for _ in range(4)]
            mx.eval(*blocks)
            del blocks
            outputs += outputs_bits(given.case, [ops.quantized_matmul(*given.arguments, **given.keywords)])
        return outputs

    def ours_rows(self, prepared: tuple[Operands, Answer], rows: int) -> list[Bits]:
        from upstream_patch import ops

        alone = [one_row(prepared[0], prepared[1].inputs, m) for m in range(rows)]
        return outputs_bits(
            prepared[0].case, [ops.quantized_matmul(*given.arguments, **given.keywords) for given in alone]
        )


def _failed(problem: Problem, why: str, columns: int = 0) -> Check:
    return Check(passed=False, norm_error=0.0, max_ulp=0.0, bound=why, columns=columns)


def run_case(case: Case, arms: Arms, repeats: int | None = None) -> CaseResult:
    """Never raises for a wrong answer or a kernel that fails: the result says so."""
    try:
        return _run(case, arms, repeats_of(case.label) if repeats is None else repeats)
    except Exception as error:
        why = f"{case.id}: raised {_said(error)}"
        return _result(case, _failed(case.problem, why), [])


def _result(
    case: Case, verdict: Check, kernels: list[str], equal: int = 0, alone: bool = False, written: bool = False
) -> CaseResult:
    return CaseResult(
        case=case.label,
        problem=case.problem,
        seed=case.seed,
        check=verdict,
        repeats_equal=equal,
        rows_equal_alone=alone,
        written=written,
        kernels=kernels,
    )


def _stock(case: Case, arms: Arms, prepared: Any) -> Bits | Exception:
    """Stock may refuse a problem that ours answers: then the reference alone judges, and the result keeps why."""
    try:
        return arms.stock(prepared)
    except Exception as error:
        return error


def _said(error: Exception) -> str:
    """Type and text, in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def asks_stock(case: Case) -> bool:
    """Whether stock runs beside ours, always; else only where the bounds of rounding do not pass ours by themselves.

    Stock compiles a tile kernel for half a minute, one for each width, group size and dtype.
    """
    p = case.problem
    return case.route != "small_m" or p.m * p.batch < QMV_ROWS or format_of(p) == USUAL


def _run(case: Case, arms: Arms, repeats: int) -> CaseResult:
    given = answer(case)
    prepared = arms.prepare(case, given)
    kernels = arms.kernels(case)
    stock = _stock(case, arms, prepared) if asks_stock(case) else None
    try:
        outputs = arms.ours(prepared, repeats + 1)
    except Exception as error:
        stock = _stock(case, arms, prepared) if stock is None else stock
        if isinstance(stock, Exception) and (type(error), str(error)) == (type(stock), str(stock)):
            why = f"{case.id}: no answer from stock or ours, this environment cannot run it: {_said(error)}"
            return _result(case, _failed(case.problem, why), kernels)
        raise
    first = outputs[0]
    equal = sum(np.array_equal(first, other) for other in outputs[1:])
    written = all(np.array_equal(first, other) for other in arms.ours_over(prepared, FILLS))
    rows = arms.ours_rows(prepared, min(case.problem.m, ROWS_ALONE))
    alone = all(np.array_equal(first[m :: case.problem.m], row) for m, row in enumerate(rows))
    verdict = _verdict(case, given, first, stock)
    if not verdict.passed and stock is None:
        stock = _stock(case, arms, prepared)
        verdict = _verdict(case, given, first, stock)
    if isinstance(stock, Exception):
        verdict = verdict.model_copy(update={"bound": f"{verdict.bound}; stock unavailable: {_said(stock)}"})
    route = arms.route(case)
    if route is not None and case.route != "any" and (route == "small_m") != (case.route == "small_m"):
        verdict = _failed(case.problem, f"{case.id}: took route {route}, not {case.route}", verdict.columns)
    return _result(case, verdict, kernels, equal, alone, written)


def _verdict(case: Case, given: Answer, ours: Bits, stock: Bits | Exception | None) -> Check:
    dtype = case.problem.dtype
    return check(
        case.problem,
        from_bits(ours, dtype),
        given.reference,
        None if stock is None or isinstance(stock, Exception) else from_bits(stock, dtype),
        magnitude=given.magnitude,
        removed=given.removed,
        our_kernel=case.route == "small_m",
        seed=case.seed,
    )


def compile_ahead(cases: Sequence[Case]) -> None:
    """Has MLX compile stock's tile kernels for these cases in parallel processes; they stay in its cache on disk.

    Each takes half a minute, and one process compiles them one after the other. What fails here fails again later.
    """
    kinds: dict[tuple[object, ...], Case] = {}
    for case in cases:
        p = case.problem
        if case.form in ("plain", "not_transposed") and (p.m * p.batch >= QMV_ROWS or case.form != "plain"):
            form = p.dtype, *format_of(p), case.form
            kinds.setdefault((*form, (p.m - 1).bit_length(), p.n % 16 == 0, p.k % 128 == 0), case)
    with _pool() as processes, suppress(BrokenProcessPool):
        list(processes.map(_run_stock, kinds.values()))


def _pool(processes: int = PROCESSES) -> ProcessPoolExecutor:
    """Processes that share the GPU, no more than the machine has cores."""
    return ProcessPoolExecutor(min(processes, os.cpu_count() or 1), mp_context=get_context("spawn"))


def _run_stock(case: Case) -> None:
    p = case.problem
    if p.n % 128 == 0 and case.form == "plain":  # the same kernel, and less to do
        case = replace(case, problem=p.model_copy(update={"n": 128}), distinct=None)
    with suppress(Exception):
        arms = MlxArms()
        arms.stock(arms.prepare(case, answer(case)))


def complaints(result: CaseResult, repeats: int | None = None) -> list[str]:
    """What is wrong with a result, in lines; empty when nothing is. Row independence is asked of our kernel only."""
    repeats = repeats_of(result.case) if repeats is None else repeats
    where = f"{result.case} {result.problem.id} seed {result.seed}"
    found = [] if result.check.passed else [f"{where}: {result.check.bound}"]
    if result.repeats_equal < repeats:
        found.append(f"{where}: {result.repeats_equal} of {repeats} repetitions equal the first")
    if not result.written:
        found.append(f"{where}: the output depends on what its memory held before: an element is not written")
    if result.kernels and not result.rows_equal_alone:
        found.append(f"{where}: a row of the batch differs from the same row alone")
    return found


def failures(body: CorrectnessBody) -> list[str]:
    """Every complaint about every case."""
    return [line for result in body.cases for line in complaints(result)]


def matrix_here(full: bool = False) -> list[Case]:
    """The matrix of the CUDA device that mlx uses. Raises MissingTool without one."""
    from upstream_patch import ops

    ops.require_cuda()
    device = cuda_device()
    return matrix(full=full) if device is None else matrix(device, full)


def run_matrix(
    progress: Progress | None = None, full: bool = False, limit_s: float = math.inf, keeper: Keeper | None = None
) -> CorrectnessBody:
    """The matrix on mlx's default GPU. Failures are collected: ask ``failures(body)``.

    ``full``: the whole cross. With ``limit_s`` the cover's cases come first, and none of the rest starts after it.
    The units of ``keeper`` are the cases of ``planned``. Raises MissingTool without a CUDA device that mlx can use.
    """
    start = time.monotonic()
    cases, first = planned(full)
    compile_ahead([case for case in cases[:first] if asks_stock(case) and not (keeper and case.id in keeper.units)])
    left = limit_s - (time.monotonic() - start) if full else math.inf
    body = run_cases(cases, MlxArms, progress, processes=PROCESSES, first=first, limit_s=left, keeper=keeper)
    return body.model_copy(update={"full": full, "planned": len(cases)})


def planned(full: bool = False) -> tuple[list[Case], int]:
    """The cases of ``run_matrix``, and how many of them come first."""
    cases = matrix_here()
    if not full:
        return cases, len(cases)
    first = {case.id for case in cases}
    return [*cases, *(case for case in matrix_here(full=True) if case.id not in first)], len(first)


def run_cases(
    cases: Sequence[Case],
    arms: Callable[[], Arms],
    progress: Progress | None = None,
    processes: int = 1,
    first: int = 0,
    limit_s: float = math.inf,
    keeper: Keeper | None = None,
) -> CorrectnessBody:
    """In order of ``cases``. Nothing is timed, so several processes may share the GPU; each has ``arms()`` of its own.

    MLX compiles an instance of our kernel for a second or two, and a process one after the other. With several
    processes and a ``limit_s`` the ``first`` cases come first, and none of the others starts after so many seconds.
    """
    tell: Progress = progress or (lambda done, total, case: None)
    opening = CorrectnessBody(cases=[])
    if keeper is not None:
        keeper.open(opening)
    if processes == 1:
        mine = arms()
        results = []
        for done, case in enumerate(cases):
            tell(done, len(cases), case.id)
            results.append(run_case(case, mine))
    else:
        found = _in_processes(cases, arms, tell, processes, first, limit_s, keeper)
        results = [found[i] for i in sorted(found)]
    tell(len(results), len(cases), "")
    return opening.model_copy(update={"cases": results})


def _in_processes(
    cases: Sequence[Case],
    arms: Callable[[], Arms],
    tell: Progress,
    processes: int,
    first: int,
    limit_s: float,
    keeper: Keeper | None,
) -> dict[int, CaseResult]:
    """By place. Those that the keeper has are not run again, and each share of the others is kept as it ends."""
    end = time.time() + limit_s
    kept = keeper.units if keeper is not None else {}
    found = {i: kept[case.id].items["cases"][0] for i, case in enumerate(cases) if case.id in kept}
    first = first if math.isfinite(limit_s) else len(cases)
    parts = ([i for i in range(first) if i not in found], [i for i in range(first, len(cases)) if i not in found])
    with _pool(processes) as pool:
        waiting = {
            pool.submit(_run_share, [cases[i] for i in share], arms, ends): share
            for places, ends in zip(parts, (math.inf, end), strict=True)
            for share in _shares(cases, places)
        }
        try:
            for future in as_completed(waiting):
                share = waiting[future]
                results, died = _of(future, [cases[i] for i in share])
                new = dict(zip(share, results, strict=False))
                found.update(new)
                if keeper is not None and not died:  # where they did, it may be that the run is being stopped
                    keeper.keep_all({cases[i].id: {"cases": [result]} for i, result in new.items()})
                tell(len(found), len(cases), cases[share[-1]].id)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if keeper is not None:
        keeper.keep_all({cases[i].id: {"cases": [found[i]]} for i in found if cases[i].id not in keeper.units})
    return found


def _of(future: Future[list[CaseResult]], cases: Sequence[Case]) -> tuple[list[CaseResult], bool]:
    """The results, and whether the process died."""
    try:
        return future.result(), False
    except BrokenProcessPool:
        why = "a process that ran cases died, of memory or of a signal: no result"
        return [_result(case, _failed(case.problem, why), []) for case in cases], True


def _shares(cases: Sequence[Case], places: Sequence[int]) -> list[list[int]]:
    """Places of cases that mostly take the same instance of our kernel."""
    from upstream_patch import ops

    def like(i: int) -> tuple[object, ...]:
        p = cases[i].problem
        return ops.kernel_symbol(p) or "", *format_of(p), p.dtype, p.batch > 1, p.k, p.n

    order = sorted(places, key=like)
    size = max(SHARE, len(order) // (PROCESSES * SHARES_A_PROCESS))
    return [order[i : i + size] for i in range(0, len(order), size)]


def _run_share(cases: Sequence[Case], arms: Callable[[], Arms], ends: float) -> list[CaseResult]:
    """Results of the first of these cases, up to ``ends`` (``time.time``)."""
    mine = arms()
    return [run_case(case, mine) for case in cases if time.time() < ends]
