"""The matrix of the staged kernels on a Mac: every format, dtype and edge of their routes, judged against fp64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch.correctness.errors import norm_error
from upstream_patch.correctness.stock_metal import held_weights, judge
from upstream_patch.kernels.metal import BITS, GROUPS
from upstream_patch.measure.checked import sample_columns
from upstream_patch.measure.m5 import bits as exact_bits
from upstream_patch.measure.steps import Progress, counter
from upstream_patch.problem import DTYPE_BYTES, DType, Problem
from upstream_patch.records.schema import REPEATS, CaseResult, Check, CorrectnessBody
from upstream_patch.reference import F64, Inputs, from_bits, round_to, ulp
from upstream_patch.routing_metal import AppleGpu, instance, route

Call = Callable[..., Any]
SHAPES: tuple[tuple[str, int, int, int, int], ...] = (
    ("two_parts", 8, 2048, 512, 1),
    ("three_parts", 16, 1024, 768, 1),
    ("four_parts", 33, 128, 1024, 1),
    ("one_step", 40, 4096, 64, 1),
    ("short_k", 9, 2048, 384, 1),
    ("rows_off_tile", 65, 192, 512, 1),
    ("two_row_tiles", 72, 128, 1152, 1),
    ("parts_of_320", 70, 128, 640, 1),
    ("batch", 40, 64, 384, 3),
    ("batch_short", 33, 128, 256, 2),
    ("batch_few_rows", 20, 64, 4352, 2),
    ("wide", 40, 8256, 512, 1),
)
"""Name, M, N, K, matrices."""
_DTYPES: tuple[DType, ...] = ("bf16", "f16")
REFERENCE = "exact weights rounded as the kernel holds them, one rounding of the sum and what fp32 sums lose"


def problems(gpu: AppleGpu) -> Iterator[tuple[str, Problem]]:
    """Every case that takes the staged kernels on that GPU."""
    for (name, m, n, k, batch), bits, group, dtype in product(SHAPES, BITS, GROUPS, _DTYPES):
        if k % group:
            continue
        problem = Problem(m=m, n=n, k=k, bits=bits, group_size=group, dtype=dtype, batch=batch)
        if instance(problem, route(problem, gpu)) is not None:
            yield name, problem


def run_matrix(gpu: AppleGpu, progress: Progress | None = None) -> CorrectnessBody:
    """Each case against the reference. Never raises for a wrong answer: the result says so."""
    cases = list(problems(gpu))
    tick = counter(progress, len(cases))
    results = []
    for name, problem in cases:
        results.append(run_case(name, problem, gpu))
        tick()
    return CorrectnessBody(cases=results)


def run_case(name: str, problem: Problem, gpu: AppleGpu) -> CaseResult:
    """Twice the public operation's answer, through its copy of x, and the kernel's own over NaN.

    A row alone is the same call with all other rows 0, so that it takes the same kernel.
    """
    mx: Any = import_module("mlx.core")
    from upstream_patch import ops_metal

    p = problem
    x, *weights = exact_bits.arrays(p, "normal")
    form = {"group_size": p.group_size, "bits": p.bits}

    def bits_of(rows: Any, call: Call = ops_metal.quantized_matmul, **more: Any) -> NDArray[Any]:
        return exact_bits.stored(call(rows, *weights, **form, **more)).reshape(p.batch, p.m, p.n)

    first = bits_of(x)
    over_nan = bits_of(x, ops_metal.staged_call, init_value=float("nan"))
    equal = sum(np.array_equal(bits_of(x), first) for _ in range(REPEATS))
    alone = True
    for m in range(p.m):
        only = mx.where(mx.arange(p.m)[:, None] == m, x, mx.zeros_like(x))
        alone = alone and np.array_equal(bits_of(only)[:, m], first[:, m])
    staged = instance(p, route(p, gpu))
    return CaseResult(
        case=name,
        problem=p,
        seed=exact_bits.SEED,
        check=verdict(exact_bits.entries(p, "normal"), first),
        repeats_equal=equal,
        rows_equal_alone=alone,
        written=np.array_equal(over_nan, first),
        kernels=[] if staged is None else [staged.host_name],
    )


def verdict(entries: list[Inputs], bits: NDArray[Any]) -> Check:
    """Of stored outputs [batch, M, N]."""
    problem = entries[0].problem
    ours = from_bits(bits, problem.dtype)
    with np.errstate(invalid="ignore"):
        references = [inputs.x.astype(np.float64) @ held_weights(inputs, True).T for inputs in entries]
    wrong = [why for inputs, one in zip(entries, ours, strict=True) if (why := judge(inputs, one, True)) is not None]
    reference: F64 = np.stack(references)
    finite = np.isfinite(ours) & np.isfinite(round_to(reference, problem.dtype))
    off = np.abs(np.where(finite, ours - reference, 0.0)) / ulp(np.where(finite, reference, 0.0), problem.dtype)
    return Check(
        passed=not wrong,
        norm_error=norm_error(ours, reference, finite),
        max_ulp=float(off.max()),
        bound=wrong[0] if wrong else REFERENCE,
        columns=problem.n,
    )


def sampled(problem: Problem, x: Any, triple: tuple[Any, Any, Any], y: Any, seed: int) -> Check:
    """Some columns of a large output y, which stands on x [M, K] and weights of MLX's."""
    mx: Any = import_module("mlx.core")
    columns = sample_columns(problem.n, seed)
    index = mx.array(columns.astype(np.uint32))

    def wide(array: Any) -> NDArray[np.float32]:
        return np.array(array.astype(mx.float32))

    w, scales, biases = (mx.take(array, index, axis=0) for array in triple)
    part = problem.model_copy(update={"n": len(columns)})
    inputs = Inputs(part, seed, "normal", wide(x), np.array(w), wide(scales), wide(biases))
    assert DTYPE_BYTES[problem.dtype] == 2
    return verdict([inputs], exact_bits.stored(mx.take(y, index, axis=-1))[None])
