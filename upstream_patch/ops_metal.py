"""``quantized_matmul`` on a Mac: the staged kernels on MLX's released wheel, where the GPU has matrix units (NAX).

A module of its own, chosen once, so that what a call costs on CUDA does not change. No Apple GPU has run it yet: it is
tested with stand-ins for ``mx.fast``, and its kernels in the simulator.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from math import gcd, prod
from pathlib import Path
from typing import Any

import mlx.core as mx

from upstream_patch import machine, ops
from upstream_patch.kernels import metal_source
from upstream_patch.kernels.metal import GROUP, Staged
from upstream_patch.problem import Problem
from upstream_patch.routing_metal import AppleGpu, MetalRoute, apple_gpu, instance, route, rows_and_batch

COPY = """const int64_t at = thread_position_in_grid.x;
y[at] = x[elem_to_loc(at, x_shape, x_strides, x_ndim)];
"""
"""x in rows that follow one another, in an array of its own, and so aligned. An operation of MLX's need not make one:
it may write over its input."""
SUM_INPUTS = ("partials", "parts", "stride")
SUM = """const size_t at = thread_position_in_grid.x;
float sum = 0.0f;
for (int i = 0; i < parts; ++i) {
  sum += partials[i * size_t(stride) + at];
}
y[at] = static_cast<T>(sum);
"""
"""Adds partials [parts, M, N] in their order, and rounds once, as MLX's steel_gemm_splitk_accum does: that one is a
kernel, which another kernel cannot call."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one combination of shapes and dtypes is launched; without a kernel it is MLX's own operation."""

    kernel: Any = None
    sizes: tuple[mx.array, ...] = ()
    grid: tuple[int, int, int] = (0, 0, 0)
    out_shape: tuple[int, ...] = ()
    dtype: mx.Dtype | None = None
    parts: int = 1


_STOCK = _Plan()
_MOST_PLANS = 4096
MOST_THREADS = 2**31 - 1
"""Along an axis of a grid that ``mx.fast`` takes."""
_plans: dict[Any, _Plan] = {}


@cache
def gpu() -> AppleGpu | None:
    """The Apple GPU that MLX uses, if it has matrix units that MLX may use."""
    if not mx.metal.is_available():
        return None
    architecture = str(mx.device_info().get("architecture", ""))
    version = [int(part) for part in platform.mac_ver()[0].split(".") if part.isdigit()]
    found = apple_gpu(architecture, version)
    return found if found is not None and found.nax else None


@cache
def chosen() -> Callable[..., mx.array]:
    """The ``quantized_matmul`` of this machine: that of ``ops``, or this module's on an Apple GPU with matrix units."""
    return ops.quantized_matmul if gpu() is None else quantized_matmul


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    /,
    scales: mx.array,
    biases: mx.array | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    *,
    stream: Any = None,
) -> mx.array:
    """``mx.quantized_matmul`` with the routes of ``routing_metal.route``; x [..., K], result [..., N].

    Taken are affine weights with biases, transposed, x in bfloat16 or float16, on the GPU and outside of function
    transformations. MLX's own takes the rest, and its errors are MLX's.
    """
    if (
        biases is not None
        and transpose is True
        and isinstance(mode, str)
        and mode == "affine"
        and not ops.thread.transforms
        and ops._on_gpu(stream)  # private, since a new name in ops.py would void the records of its host cost
    ):
        try:
            plan = _plan_of(x, w, scales, biases, group_size, bits)
        except (AttributeError, TypeError):  # not arrays, or not numbers: MLX says so
            plan = _STOCK
        if plan.kernel is not None:
            # A view may begin anywhere, and Python cannot see where.
            return _launch(plan, _copied(x, stream), w, scales, biases, stream)
    return ops.stock_quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode, stream=stream)


def staged_call(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    *,
    group_size: int,
    bits: int,
    init_value: float | None = None,
) -> mx.array:
    """The staged kernels themselves on the default stream, for an x that lies at a multiple of 8 bytes: no copy.

    ``init_value`` fills what they write beforehand. Raises ValueError where the route of these arguments is none of
    theirs.
    """
    plan = _plan_of(x, w, scales, biases, group_size, bits)
    if plan.kernel is None:
        raise ValueError("the staged kernels do not take these arguments here")
    return _launch(plan, x, w, scales, biases, None, init_value)


def route_of(problem: Problem) -> MetalRoute | None:
    """The route that ``quantized_matmul`` takes here for contiguous operands; None without matrix units."""
    found = gpu()
    return None if found is None else route(problem, found)


def _plan_of(
    x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int | None, bits: int | None
) -> _Plan:
    key = x.shape, w.shape, scales.shape, biases.shape, group_size, bits
    dtypes = x.dtype, w.dtype, scales.dtype, biases.dtype
    # 4.0 is the same key as 4, but MLX takes one of the two
    whole = key, dtypes, group_size.__class__, bits.__class__
    plan = _plans.get(whole)
    if plan is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        problem = ops._problem(key, dtypes)
        plan = _plans[whole] = _STOCK if problem is None else _plan(problem, x.shape)
    return plan


def _plan(problem: Problem, x_shape: tuple[int, ...]) -> _Plan:
    taken = route_of(problem)
    staged = None if taken is None else instance(problem, taken)
    if taken is None or staged is None:
        return _STOCK
    p = problem
    m, batch = rows_and_batch(p)
    counts = [p.k, p.n, m, *([p.k // taken.parts, m * p.n] if staged.split else [])]
    across, down, deep = staged.grid(m, p.n, taken.parts if staged.split else batch)
    # a thread for each element of x, which is copied, for each output of a sum, and for each lane of a row of tiles
    if max(m * batch * p.k, m * p.n if staged.split else 0, across * GROUP[0]) > MOST_THREADS:
        return _STOCK
    return _Plan(
        kernel=_compiled(staged),
        sizes=tuple(mx.array(count, mx.int32) for count in counts),
        grid=(across * GROUP[0], down, deep),
        out_shape=(*x_shape[:-1], p.n),
        dtype=mx.bfloat16 if p.dtype == "bf16" else mx.float16,
        parts=taken.parts,
    )


def _launch(
    plan: _Plan,
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    stream: Any,
    init_value: float | None = None,
) -> mx.array:
    split = plan.parts > 1
    (y,) = plan.kernel(
        inputs=[w, scales, biases, x, *plan.sizes],
        output_shapes=[(plan.parts, *plan.out_shape) if split else plan.out_shape],
        output_dtypes=[mx.float32 if split else plan.dtype],
        grid=plan.grid,
        threadgroup=GROUP,
        init_value=init_value,
        stream=stream,
    )
    found: mx.array = y
    if split:
        inputs = [y, mx.array(plan.parts, mx.int32), plan.sizes[-1]]
        found = _by_element(_sum(), inputs, plan.out_shape, plan.dtype, stream)
    return found


def _copied(x: mx.array, stream: Any) -> mx.array:
    return _by_element(_copy(), [x], x.shape, x.dtype, stream)


def _by_element(kernel: Any, inputs: list[mx.array], shape: tuple[int, ...], dtype: Any, stream: Any) -> mx.array:
    """A kernel with one thread an output."""
    elements = prod(shape)
    y: mx.array = kernel(
        inputs=inputs,
        template=[("T", dtype)],
        output_shapes=[shape],
        output_dtypes=[dtype],
        grid=(elements, 1, 1),
        threadgroup=(gcd(256, elements), 1, 1),  # all of one size
        stream=stream,
    )[0]
    return y


@cache
def _compiled(staged: Staged) -> Any:
    root = Path(machine.find_mlx_headers() or "")
    header, body = metal_source.header(root), metal_source.body(staged)
    # MLX caches compiled code by name: a changed source must have another.
    name = f"{staged.host_name}_{sha256((header + body).encode()).hexdigest()[:12]}"
    return mx.fast.metal_kernel(
        name=name,
        input_names=list(metal_source.input_names(staged)),
        output_names=[metal_source.OUTPUT],
        source=body,
        header=header,
    )


@cache
def _copy() -> Any:
    return mx.fast.metal_kernel(
        name="upstream_patch_copy", input_names=["x"], output_names=["y"], source=COPY, ensure_row_contiguous=False
    )


@cache
def _sum() -> Any:
    return mx.fast.metal_kernel(
        name="upstream_patch_sum_of_parts", input_names=list(SUM_INPUTS), output_names=["y"], source=SUM
    )
