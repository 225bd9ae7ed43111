"""Our kernels on the installed MLX: ``quantized_matmul``, and ``install()`` for ``mx.quantized_matmul`` itself.

A call costs the host little: what follows from shapes and dtypes is worked out once and kept. Whatever our kernel does
not take goes to MLX's own operation with the caller's arguments, so that its errors are MLX's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from math import prod
from threading import local
from typing import Any

import mlx.core as mx

from upstream_patch import kernels, machine, routing
from upstream_patch.errors import MissingTool
from upstream_patch.problem import DType, Problem

stock_quantized_matmul = mx.quantized_matmul

_DTYPES: dict[mx.Dtype, DType] = {mx.bfloat16: "bf16", mx.float16: "f16"}
_MOST_PLANS = 4096  # a server sees a new prompt length again and again


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do with one combination of shapes and dtypes; neither kernel nor fold means MLX's own route."""

    dtype: mx.Dtype | None = None
    """Of x, scales and biases, with w in uint32; None: of any."""
    group_size: int | None = None
    bits: int | None = None
    kernel: Any = None
    output_shapes: list[tuple[int, ...]] = field(default_factory=list)
    output_dtypes: list[mx.Dtype] = field(default_factory=list)
    grid: tuple[int, int, int] = (0, 0, 0)
    threadgroup: tuple[int, int, int] = (0, 0, 0)
    fold: bool = False
    """x is [B, 1, K]: its batch becomes rows for MLX's own route."""


_STOCK = _Plan()
_UNKNOWN = _Plan(dtype=mx.bool_)
_WORDS = mx.uint32
_AFFINE = "affine"
_latest: dict[Any, _Plan] = {}  # by shapes: the plan of the dtypes they last came with
_plans: dict[Any, _Plan] = {}  # by shapes and dtypes


class _Thread(local):
    transforms = 0  # calls under way in a function transformation, where a custom kernel has no derivative


_thread = _Thread()
_saved: dict[str, Any] = {}  # what install() replaced


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
    """``mx.quantized_matmul`` that reads the weights once for all rows.

    x: [..., K]; w: [N, K * bits / 32] uint32; scales, biases: [N, K / group_size]; result [..., N]. Our kernel takes
    affine weights of 2, 3, 4, 5, 6 or 8 bits and group size 32, 64 or 128, bfloat16 or float16, 1 to 16 rows over all
    leading axes, on CUDA; MLX's own takes the rest. Errors are those of ``mx.quantized_matmul``.

    Up to 4 bits our sums hold (128 + q) x in fp32, so they overflow from |x| around 1e35 on. Our kernel has no
    shapeless form for ``mx.compile``, and no derivative: under ``mx.grad``, ``mx.vjp``, ``mx.jvp`` and ``mx.vmap`` use
    ``install()``, which takes MLX's own route there.
    """
    # `is` for the usual spelling; an array's == would be an array, and one of "affine" alone would even be true
    if (
        biases is not None
        and transpose is True
        and (mode is _AFFINE or (isinstance(mode, str) and mode == _AFFINE))
        and not _thread.transforms
    ):
        # Spelled out, and dtypes compared instead of hashed: every step costs a tenth of a microsecond.
        try:
            key = x.shape, w.shape, scales.shape, biases.shape, group_size, bits
            plan = _latest.get(key, _UNKNOWN)
            # By identity, since 4.0 is the same key as 4: Python has one object of each small integer.
            if not (
                plan.bits is bits
                and plan.group_size is group_size
                and x.dtype == scales.dtype == biases.dtype == plan.dtype
                and w.dtype == _WORDS
            ):
                plan = _other_plan(key, x, w, scales, biases)
        except (AttributeError, TypeError):  # not arrays, or not numbers: MLX says so
            plan = _STOCK
        if plan.kernel is not None:
            try:
                # no dict of arguments, no helper: each is a tenth of a microsecond too
                y: mx.array = plan.kernel(
                    inputs=[x, w, scales, biases],
                    output_shapes=plan.output_shapes,
                    output_dtypes=plan.output_dtypes,
                    grid=plan.grid,
                    threadgroup=plan.threadgroup,
                    stream=stream,
                )[0]
                return y
            except (TypeError, ValueError):
                # not an array, or not a GPU's stream: MLX says so, or runs it; anything else is a fault of ours
                if _on_gpu(stream) and all(isinstance(each, mx.array) for each in (x, w, scales, biases)):
                    raise
        elif plan.fold:
            # by axes, not by sizes, so that shapeless compilation keeps working
            folded = mx.flatten(x, 0, 1, stream=stream)
            y = stock_quantized_matmul(folded, w, scales, biases, transpose, group_size, bits, mode, stream=stream)
            return mx.expand_dims(y, 1, stream=stream)
    return stock_quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode, stream=stream)


def small_m_call(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    *,
    group_size: int = 64,
    bits: int = 4,
    init_value: float | None = None,
) -> mx.array:
    """Our kernel itself on the default stream, for tests: no fall-back. ``init_value`` fills the output beforehand.

    Raises ValueError where the kernel does not take the arguments.
    """
    key = x.shape, w.shape, scales.shape, biases.shape, group_size, bits
    problem = _problem(key, (x.dtype, w.dtype, scales.dtype, biases.dtype))
    device = capability()
    if problem is None or device is None or not routing.takes_small_m(problem, device):
        raise ValueError("the small-M kernel does not take these arguments here")
    plan = _plan(problem, x.shape)
    y: mx.array = plan.kernel(
        inputs=[x, w, scales, biases],
        output_shapes=plan.output_shapes,
        output_dtypes=plan.output_dtypes,
        grid=plan.grid,
        threadgroup=plan.threadgroup,
        init_value=init_value,
    )[0]
    return y


def cuda_available() -> bool:
    """MLX's GPU backend here is CUDA, and a device answers."""
    return bool(mx.cuda.is_available())


def capability() -> routing.Capability | None:
    """Compute capability of the CUDA device MLX uses; None without one."""
    found = _device()
    return None if found is None else found[0]


def require_cuda() -> None:
    """Raises MissingTool where MLX cannot use a CUDA GPU."""
    if not cuda_available():
        raise MissingTool("no CUDA GPU that MLX can use", "nox -s doctor says what is missing")


@cache
def _device() -> tuple[routing.Capability, int] | None:
    """Compute capability and multiprocessors."""
    return machine.cuda_device() if cuda_available() else None


def route_of(problem: Problem) -> routing.Route:
    """The route that ``quantized_matmul`` takes here for a problem with contiguous 2-D weights."""
    return routing.route(problem, capability())


def kernel_symbol(problem: Problem) -> str | None:
    """A part of the name under which a profiler shows our kernel; None where the problem takes another route."""
    if route_of(problem) != "small_m":
        return None
    return _kernel_name(_variant(problem)[0])


# --- dispatch


def _on_gpu(stream: Any) -> bool:
    if stream is None:
        kind: Any = mx.default_device().type
    elif isinstance(stream, mx.DeviceType):
        kind = stream
    else:
        kind = getattr(getattr(stream, "device", stream), "type", None)
    return kind is not None and kind == mx.gpu


def _other_plan(key: tuple[Any, ...], x: mx.array, w: mx.array, scales: mx.array, biases: mx.array) -> _Plan:
    """The plan of shapes that were not seen before, or last came with other dtypes."""
    *_, group_size, bits = key
    dtypes = x.dtype, w.dtype, scales.dtype, biases.dtype
    whole = key, dtypes, group_size.__class__, bits.__class__
    plan = _plans.get(whole)
    if plan is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
            _latest.clear()
        problem = _problem(key, dtypes)
        plan = _STOCK if problem is None else replace(_plan(problem, x.shape), group_size=group_size, bits=bits)
        _plans[whole] = plan
    if plan.dtype is not None:
        _latest[key] = plan
    return plan


def _plan(problem: Problem, x_shape: tuple[int, ...]) -> _Plan:
    dtype = mx.bfloat16 if problem.dtype == "bf16" else mx.float16
    route = route_of(problem)
    if route == "small_m":
        variant, blocks = _variant(problem)
        return _Plan(
            dtype,
            kernel=_compiled(variant),
            output_shapes=[(*x_shape[:-1], problem.n)],
            output_dtypes=[dtype],
            grid=(blocks * variant.threads, 1, 1),
            threadgroup=(variant.threads, 1, 1),
        )
    return _Plan(dtype, fold=route == "stock_folded" and len(x_shape) == 3)


def _problem(key: Any, dtypes: Any) -> Problem | None:
    """The problem behind the arguments; None where it is not contiguous rows times 2-D weights, or is wrong."""
    x_shape, w_shape, scales_shape, biases_shape, group_size, bits = key
    dtype, w_dtype, scales_dtype, biases_dtype = dtypes
    if not {int, type(None)}.issuperset({type(group_size), type(bits)}):  # 4.0 == 4 == mx.array(4), but MLX takes one
        return None
    group_size, bits = 64 if group_size is None else group_size, 4 if bits is None else bits
    if len(w_shape) != 2 or w_dtype != mx.uint32 or not (dtype == scales_dtype == biases_dtype):
        return None
    n, k = w_shape[0], x_shape[-1] if x_shape else 0
    rows = prod(x_shape[:-1])
    if dtype not in _DTYPES or rows * n * k * group_size == 0 or k % group_size or w_shape[1] * 32 != k * bits:
        return None
    if not (scales_shape == biases_shape == (n, k // group_size)):
        return None
    decode = len(x_shape) > 2 and x_shape[-2] == 1
    return Problem(
        m=rows,
        n=n,
        k=k,
        bits=bits,
        group_size=group_size,
        dtype=_DTYPES[dtype],
        layout="b1k" if decode else "mk",
    )


# --- launching


def _variant(problem: Problem) -> tuple[kernels.Variant, int]:
    found = _device()
    if found is None:
        raise RuntimeError("no CUDA device that MLX can use")
    return kernels.small_m_variant(problem, *found)


def _kernel_name(variant: kernels.Variant) -> str:
    # MLX caches compiled code by name: a changed source must have another.
    return f"{variant.name}_{kernels.fingerprint('small_m')}"


@cache
def _compiled(variant: kernels.Variant) -> Any:
    """The kernel for ``mx.fast``, which writes the signature itself and knows no launch bounds.

    They are put into its ``__global__``, after all headers: without them the compiler may take more registers than a
    block of this size can have. The sources are included by path, so that a call does not carry them along.
    """
    header = f"""
#include "{kernels.entry("small_m")}"
using Kernel = {kernels.small_m_instance(variant.dtype, variant.tuning)};
#undef __global__
#define __global__ __attribute__((global)) {variant.launch_bounds}
"""
    body = """
extern __shared__ __align__(256) char shared[];
int m = 1;
for (int i = 0; i < x_ndim - 1; ++i) {
  m *= x_shape[i];
}
Kernel(w, scales, biases, x, out, m, w_shape[0], x_shape[x_ndim - 1], shared).run();
"""
    return mx.fast.cuda_kernel(
        name=_kernel_name(variant),
        input_names=["x", "w", "scales", "biases"],
        output_names=["out"],
        source=body,
        header=header,
        shared_memory=variant.shared_bytes,
    )


# --- installing


def install() -> None:
    """Makes ``mx.quantized_matmul`` ours, for mlx.nn and mlx-lm too. A second call changes nothing.

    ``mx.grad``, ``mx.value_and_grad``, ``mx.vjp``, ``mx.jvp`` and ``mx.vmap`` are wrapped as well: inside them every
    call takes MLX's own route. Not reached: names that a program imported from mlx.core before, and functions that were
    transformed before; those raise in a derivative, since a custom kernel has none.
    """
    if _saved:
        return
    for name in ("vjp", "jvp", "grad", "value_and_grad", "vmap"):
        _saved[name] = getattr(mx, name)
        setattr(mx, name, _noting(_saved[name]))
    _saved["quantized_matmul"] = mx.quantized_matmul
    mx.quantized_matmul = quantized_matmul


def uninstall() -> None:
    """Undoes ``install()``; without one it does nothing."""
    while _saved:
        name, original = _saved.popitem()
        setattr(mx, name, original)


@contextmanager
def installed() -> Iterator[None]:
    """``install()`` for the length of a block; leaves an outer ``install()`` in place."""
    outer = bool(_saved)
    install()
    try:
        yield
    finally:
        if not outer:
            uninstall()


@contextmanager
def _transforming() -> Iterator[None]:
    _thread.transforms += 1
    try:
        yield
    finally:
        _thread.transforms -= 1


def _noting(transform: Callable[..., Any]) -> Callable[..., Any]:
    """The transformation, with ``transforms`` raised while it runs and while a function it returned runs."""

    @wraps(transform)
    def outer(*args: Any, **keywords: Any) -> Any:
        with _transforming():
            result = transform(*args, **keywords)
        if not callable(result):
            return result

        @wraps(result, updated=())
        def inner(*args: Any, **keywords: Any) -> Any:
            with _transforming():
                return result(*args, **keywords)

        return inner

    return outer
