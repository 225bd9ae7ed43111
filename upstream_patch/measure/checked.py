"""Is the result right that a benchmark row times? A row cannot be made without this module's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch.correctness import check
from upstream_patch.errors import UserError
from upstream_patch.floating import SCALES
from upstream_patch.measure.inputs import Matmul, Triple, Weights, call
from upstream_patch.problem import Problem
from upstream_patch.records.schema import BenchRow, Check, Protocol
from upstream_patch.records.watched import Watched
from upstream_patch.reference import Inputs

EDGE_COLUMNS = 32
RANDOM_COLUMNS = 256
STOCK_BOUND = 2**-4
"""Every output of ours may differ from stock's by this much of the row's RMS. Stock's bf16 accumulators are off by
4e-3 of it in the mean, hence by 5 times that somewhere among millions; a wrong column is off by about 1.4."""


class WrongResult(UserError):
    """An operation under test gave a wrong answer; it is not timed and nothing is recorded."""

    exit_code = 1


def sample_columns(n: int, seed: int) -> NDArray[np.intp]:
    """The first and last 32 outputs and 256 random ones between, sorted, each once; all of them when n is small."""
    if n <= RANDOM_COLUMNS + 2 * EDGE_COLUMNS:
        return np.arange(n, dtype=np.intp)
    rng = np.random.default_rng([seed, n])
    inner = rng.choice(n - 2 * EDGE_COLUMNS, RANDOM_COLUMNS, replace=False) + EDGE_COLUMNS
    edge = np.arange(EDGE_COLUMNS)
    return np.sort(np.concatenate([edge, inner, n - 1 - edge])).astype(np.intp)


def check_row(
    problem: Problem, x: Any, weights: Weights, *, stock: Matmul, ours: Matmul, our_kernel: bool, seed: int
) -> Check:
    """Check ours against the fp64 reference on sampled columns, and every column of every weight copy against stock.

    ``our_kernel``: ours must be our kernel's result too, bit for bit, so that a row cannot name a kernel that did not
    run. Returns a passed Check. Raises WrongResult otherwise, naming the problem and what failed.
    """
    import mlx.core as mx

    columns = sample_columns(problem.n, seed)
    index = mx.array(columns.astype(np.uint32))
    first = weights.copies[0]
    y_ours = call(ours, problem, x, first).reshape(problem.m, problem.n)
    y_stock = call(stock, problem, x, first).reshape(problem.m, problem.n)
    # gathered on the GPU: the big arrays never move to the host, and x stays where the kernels read it
    w, scales, biases = (None if array is None else mx.take(array, index, axis=0) for array in first)
    inputs = _inputs(problem.model_copy(update={"n": len(columns)}), seed, x, (w, scales, biases))
    result = check(
        problem,
        _float32(mx.take(y_ours, index, axis=1)).astype(np.float64),
        inputs.reference(),
        _float32(mx.take(y_stock, index, axis=1)).astype(np.float64),
        magnitude=inputs.magnitude(),
        removed=inputs.removed(),
        our_kernel=our_kernel,
        seed=seed,
        columns=columns.tolist(),
    )
    if not result.passed:
        raise WrongResult(f"{problem.id}: our result is wrong, nothing was recorded: {result.bound}")
    for number, triple in enumerate(weights.copies):
        y_ours = call(ours, problem, x, triple)
        where = f"{problem.id}: our result with weight copy {number}"
        difference, finite = _against_stock(y_ours, call(stock, problem, x, triple))
        if not finite or not difference <= STOCK_BOUND:
            what = f"differs from stock by {difference:.3g} of the RMS" if finite else "is not finite everywhere"
            raise WrongResult(f"{where} {what} (bound {STOCK_BOUND}), nothing was recorded")
        if our_kernel and not _same_bits(y_ours, _our_kernel(problem, x, triple)):
            raise WrongResult(f"{where} is not what our kernel gives: another one ran, nothing was recorded")
    return result


def _inputs(problem: Problem, seed: int, x: Any, triple: Triple) -> Inputs:
    w, scales, biases = triple
    codes = np.array(scales) if biases is None else None
    values = _float32(scales) if codes is None else SCALES[problem.mode][codes].astype(np.float32)
    return Inputs(
        problem=problem,
        seed=seed,
        distribution="normal",
        x=_float32(x.reshape(problem.m, problem.k)),
        packed=np.array(w),
        scales=values,
        biases=np.zeros_like(values) if biases is None else _float32(biases),
        scale_codes=codes,
    )


def _our_kernel(problem: Problem, x: Any, triple: Triple) -> Any:
    from upstream_patch import ops

    return ops.small_m_call(x, *triple, group_size=problem.group_size, bits=problem.bits, mode=problem.mode)


def _against_stock(ours: Any, stock: Any) -> tuple[float, bool]:
    """(largest difference over the RMS of its row, whether all of ours is finite), over all outputs."""
    import mlx.core as mx

    ours, stock = (y.reshape(-1, y.shape[-1]).astype(mx.float32) for y in (ours, stock))
    rms = mx.sqrt(mx.mean(stock * stock, axis=1, keepdims=True))
    difference: Any = mx.max(mx.abs(ours - stock) / rms)
    finite: Any = mx.all(mx.isfinite(ours))
    mx.eval(difference, finite)
    return float(difference.item()), bool(finite.item())


def _same_bits(one: Any, other: Any) -> bool:
    import mlx.core as mx

    words = mx.uint16 if one.itemsize == 2 else mx.uint32
    same: Any = mx.array_equal(one.view(words), other.view(words))
    return bool(same.item())


def make_row(
    problem: Problem,
    protocol: Protocol,
    times: dict[str, list[float]],
    check: Check,
    *,
    ours_kernels: Sequence[str],
    route: str,
    watched: Watched | None = None,
) -> BenchRow:
    """The one place where rows are made: takes a Check, and raises WrongResult when it did not pass."""
    if not check.passed:
        raise WrongResult(f"{problem.id}: a row needs a passed check: {check.bound}")
    return BenchRow(
        problem=problem,
        protocol=protocol,
        stock_us=times["stock"],
        ours_us=times["ours"],
        aa_us=times["aa"],
        check=check,
        ours_kernels=list(ours_kernels),
        route=route,
        watched=watched,
    )


def _float32(array: Any) -> NDArray[np.float32]:
    import mlx.core as mx

    # numpy has no bfloat16; + 0 makes a new array even from float32, so that only the copy moves to the host
    return np.array(array.astype(mx.float32) + 0, dtype=np.float32)
