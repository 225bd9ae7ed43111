"""Our kernels on the installed MLX: ``quantized_matmul``.

A call costs the host little: what follows from shapes and dtypes is worked out once and kept. Whatever our kernel does
not take goes to MLX's own operation with the caller's arguments, so that its errors are MLX's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from threading import local
from typing import Any

import mlx.core as mx

from upstream_patch import kernels, machine, routing
from upstream_patch.errors import MissingTool
from upstream_patch.kernels import fast
from upstream_patch.kernels.tuning import Launch
from upstream_patch.problem import FLOATING, DType, Problem

stock_quantized_matmul = mx.quantized_matmul

_DTYPES: dict[mx.Dtype, DType] = {mx.bfloat16: "bf16", mx.float16: "f16"}
_MOST_PLANS = 4096  # a server sees a new prompt length again and again


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do with one combination of shapes and dtypes; neither kernel nor fold means MLX's own route."""

    dtype: mx.Dtype | None = None
    """Of x, and of affine scales and biases, with w in uint32 and other scales in uint8; None: of any."""
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
_SCALE_CODES = mx.uint8
_AFFINE = "affine"
_latest: dict[Any, _Plan] = {}  # by shapes: the plan of the dtypes they last came with
_plans: dict[Any, _Plan] = {}  # by shapes and dtypes


class Thread(local):
    """``transforms``: calls under way in a function transformation, where a custom kernel has no derivative."""

    transforms = 0


thread = Thread()


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
    affine weights of 2, 3, 4, 5, 6 or 8 bits and group size 32, 64 or 128, and mxfp4, nvfp4 and mxfp8 (uint8 scales, no
    biases); x in bfloat16 or float16, 1 to 32 rows over all leading axes; on CUDA. MLX's own takes the rest. Errors are
    those of ``mx.quantized_matmul``.

    Weights may be [H, N, ...] with x [H, M, K] (and axes of 1 before) or, as in decode, [B, H, 1, K], M or B up to 32.
    A view of weights whose rows do not follow one another, one expanded along H among them, is copied by MLX before
    each call: right, but slow.

    Our sums are of fp32. In bf16 and up to 4 bits they hold (128 + q) x, so they overflow from |x| around 1e35 on. With
    other weights x in bf16 is brought to 2^16 first, and the scale multiplied before that is taken out again: a scale
    from about 2^90 on may give Inf where the answer is finite. There an x below 2^-30 of the largest of its row in a
    stretch of 256 of K loses bits, and below 2^-37 it counts as 0. Where x is Inf, affine weights may give NaN. Our
    kernel has no shapeless form for ``mx.compile``, and no derivative: there, and under ``mx.vmap``, use ``install()``,
    which takes MLX's own route.
    """
    if biases is None:
        if transpose is True and isinstance(mode, str) and mode in FLOATING and not thread.transforms:
            found = _floating(x, w, scales, group_size, bits, mode, stream)
            if found is not None:
                return found
    # `is` for the usual spelling; an array's == would be an array, and one of "affine" alone would even be true
    elif (
        transpose is True and (mode is _AFFINE or (isinstance(mode, str) and mode == _AFFINE)) and not thread.transforms
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
                plan = _other_plan(key, (x.dtype, w.dtype, scales.dtype, biases.dtype))
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
                if _is_ours(stream, x, w, scales, biases):
                    raise
        elif plan.fold:
            return _folded(x, w, scales, biases, transpose, group_size, bits, mode, stream=stream)
    return stock_quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode, stream=stream)


def _floating(
    x: mx.array, w: mx.array, scales: mx.array, group_size: Any, bits: Any, mode: str, stream: Any
) -> mx.array | None:
    """What ``quantized_matmul`` does for weights without biases; None: MLX's own operation, as it was called."""
    try:
        key = x.shape, w.shape, scales.shape, mode, group_size, bits
        plan = _latest.get(key, _UNKNOWN)
        if not (
            plan.bits is bits
            and plan.group_size is group_size
            and x.dtype == plan.dtype
            and w.dtype == _WORDS
            and scales.dtype == _SCALE_CODES
        ):
            plan = _other_plan(key, (x.dtype, w.dtype, scales.dtype))
    except (AttributeError, TypeError):
        return None
    if plan.kernel is not None:
        try:
            y: mx.array = plan.kernel(
                inputs=[x, w, scales],
                output_shapes=plan.output_shapes,
                output_dtypes=plan.output_dtypes,
                grid=plan.grid,
                threadgroup=plan.threadgroup,
                stream=stream,
            )[0]
            return y
        except (TypeError, ValueError):
            if _is_ours(stream, x, w, scales):
                raise
    elif plan.fold:
        return _folded(x, w, scales, None, True, group_size, bits, mode, stream=stream)
    return None


def _folded(x: mx.array, *rest: Any, stream: Any) -> mx.array:
    """MLX's own operation on [B, K] in place of [B, 1, K]."""
    # by axes, not by sizes, so that shapeless compilation keeps working
    y = stock_quantized_matmul(mx.flatten(x, 0, 1, stream=stream), *rest, stream=stream)
    return mx.expand_dims(y, 1, stream=stream)


def small_m_call(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    group_size: int = 64,
    bits: int = 4,
    mode: str = _AFFINE,
    init_value: float | None = None,
) -> mx.array:
    """Our kernel itself on the default stream, for tests: no fall-back. ``init_value`` fills the output beforehand.

    Raises ValueError where the kernel does not take the arguments.
    """
    inputs = [x, w, scales] if biases is None else [x, w, scales, biases]
    fourth = mode if biases is None else biases.shape
    affine_only = biases is not None and mode != _AFFINE
    key = x.shape, w.shape, scales.shape, fourth, group_size, bits
    problem = None if affine_only else _problem(key, tuple(each.dtype for each in inputs))
    device = capability()
    if problem is None or device is None or not routing.takes_small_m(problem, device):
        raise ValueError("the small-M kernel does not take these arguments here")
    plan = _plan(problem, x.shape, len(w.shape))
    y: mx.array = plan.kernel(
        inputs=inputs,
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


def _is_ours(stream: Any, *inputs: Any) -> bool:
    """Whether an error of a launch is ours: what is no array, or no GPU's stream, MLX itself refuses, or runs."""
    return _on_gpu(stream) and all(isinstance(each, mx.array) for each in inputs)


def _on_gpu(stream: Any) -> bool:
    if stream is None:
        kind: Any = mx.default_device().type
    elif isinstance(stream, mx.DeviceType):
        kind = stream
    else:
        kind = getattr(getattr(stream, "device", stream), "type", None)
    return kind is not None and kind == mx.gpu


def _other_plan(key: tuple[Any, ...], dtypes: tuple[mx.Dtype, ...]) -> _Plan:
    """The plan of shapes that were not seen before, or last came with other dtypes."""
    *_, group_size, bits = key
    whole = key, dtypes, group_size.__class__, bits.__class__
    plan = _plans.get(whole)
    if plan is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
            _latest.clear()
        problem = _problem(key, dtypes)
        plan = _STOCK
        if problem is not None:
            plan = replace(_plan(problem, key[0], len(key[1])), group_size=group_size, bits=bits)
        _plans[whole] = plan
    if plan.dtype is not None:
        _latest[key] = plan
    return plan


def _plan(problem: Problem, x_shape: tuple[int, ...], w_axes: int) -> _Plan:
    dtype = mx.bfloat16 if problem.dtype == "bf16" else mx.float16
    route = route_of(problem)
    if route == "small_m":
        variant, launch = _variant(problem)
        blocks, row_blocks, entries = launch.grid
        return _Plan(
            dtype,
            kernel=_compiled(variant, w_axes > 2),
            output_shapes=[(*x_shape[:-1], problem.n)],
            output_dtypes=[dtype],
            grid=(blocks * variant.threads, row_blocks, entries),
            threadgroup=(variant.threads, 1, 1),
        )
    return _Plan(dtype, fold=route == "stock_folded" and len(x_shape) == 3 and w_axes == 2)


def _problem(key: Any, dtypes: Any) -> Problem | None:
    """The problem behind the arguments; None where it is not rows times 2-D weights or a batch of that, or is wrong."""
    x_shape, w_shape, scales_shape, fourth, group_size, bits = key
    dtype, w_dtype, scales_dtype, *biases_dtype = dtypes
    if not {int, type(None)}.issuperset({type(group_size), type(bits)}):  # 4.0 == 4 == mx.array(4), but MLX takes one
        return None
    mode = "affine" if biases_dtype else str(fourth)
    usual = FLOATING.get(mode, (4, 64))
    bits, group_size = (
        given if given is not None else of_mode for given, of_mode in zip((bits, group_size), usual, strict=True)
    )
    if w_dtype != _WORDS or dtype not in _DTYPES or len(w_shape) not in (2, 3):
        return None
    if biases_dtype and not (scales_shape == fourth and dtype == scales_dtype == biases_dtype[0]):
        return None
    if not biases_dtype and (mode not in FLOATING or scales_dtype != _SCALE_CODES):
        return None
    *entries, n, words = w_shape
    k = x_shape[-1] if x_shape else 0
    if prod(x_shape) * prod(w_shape) * group_size == 0 or k % group_size or words * 32 != k * bits:
        return None
    if scales_shape != (*entries, n, k // group_size):
        return None
    batch = prod(entries)
    decode = len(x_shape) > 2 and x_shape[-2] == 1
    if entries:
        # [.., H, M, K] without a batch of its own, or [B, H, 1, K]
        if len(x_shape) < 3 or x_shape[-3] != batch or (prod(x_shape[:-3]) > 1 and not decode):
            return None
        decode = len(x_shape) > 3 and decode
    return Problem(
        m=prod(x_shape[:-1]) // batch,
        n=n,
        k=k,
        bits=bits,
        group_size=group_size,
        mode=mode,
        dtype=_DTYPES[dtype],
        layout="b1k" if decode else "mk",
        batch=batch,
    )


# --- launching


def _variant(problem: Problem) -> tuple[kernels.Variant, Launch]:
    found = _device()
    if found is None:
        raise RuntimeError("no CUDA device that MLX can use")
    return kernels.small_m_variant(problem, *found)


def _kernel_name(variant: kernels.Variant) -> str:
    # MLX caches compiled code by name: a changed source must have another.
    return f"{variant.name}_{kernels.fingerprint('small_m')}"


@cache
def _compiled(variant: kernels.Variant, batch: bool) -> Any:
    """For 2-D weights, or a batch of them."""
    return mx.fast.cuda_kernel(
        name=_kernel_name(variant) + "_batch" * batch,
        input_names=fast.input_names(variant),
        output_names=["out"],
        source=fast.body(variant, batch),
        header=fast.header(variant),
        shared_memory=variant.shared_bytes,
    )
