"""A case's operands as mlx arrays, in the memory form that the case asks for. Needs mlx, no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch.correctness.cases import Case
from upstream_patch.problem import MLX_DTYPE, DType, Problem
from upstream_patch.reference import F32, Inputs

Bits = NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class Operands:
    """What is handed to quantized_matmul (mlx arrays), and how its output turns back into [M, N]."""

    case: Case
    x: Any
    w: Any
    scales: Any
    biases: Any

    @property
    def arguments(self) -> tuple[Any, Any, Any, Any]:
        return self.x, self.w, self.scales, self.biases

    @property
    def keywords(self) -> dict[str, Any]:
        p = self.case.problem
        return {"transpose": self.case.form != "not_transposed", "group_size": p.group_size, "bits": p.bits}


def _array(values: F32, dtype: DType) -> Any:
    import mlx.core as mx

    return mx.array(values).astype(getattr(mx, MLX_DTYPE[dtype]))


def to_mlx(inputs: Inputs, problem: Problem) -> tuple[Any, Any, Any, Any]:
    """(x, w, scales, biases), evaluated on the default device; x has the shape of ``problem.layout``."""
    import mlx.core as mx

    x = _array(inputs.x.reshape(problem.x_shape), problem.dtype)
    arrays = x, mx.array(inputs.packed), _array(inputs.scales, problem.dtype), _array(inputs.biases, problem.dtype)
    mx.eval(*arrays)
    return arrays


def with_margins(values: Any, rows: int) -> Any:
    """A larger array, with ``rows`` rows of NaN, or of all ones for integers, before and after."""
    import mlx.core as mx

    margin = mx.full((rows, values.shape[1]), 2**32 - 1 if values.dtype == mx.uint32 else float("nan"), values.dtype)
    base = mx.concatenate([margin, values, margin])
    mx.eval(base)
    return base


def _rows_inside(values: Any, before: int) -> Any:
    """The same rows as a row-contiguous view into a poisoned array."""
    return with_margins(values, before)[before : before + len(values)]


def _every_second_row(array: Any) -> Any:
    import mlx.core as mx

    base = mx.repeat(array, 2, axis=0)
    mx.eval(base)
    return base[::2]


def _first_columns(array: Any) -> Any:
    import mlx.core as mx

    base = mx.concatenate([array, array], axis=1)
    mx.eval(base)
    return base[:, : array.shape[1]]


def operands(case: Case, inputs: Inputs) -> Operands:
    """The views are evaluated: their bases are real buffers, their offsets and strides reach the kernel."""
    import mlx.core as mx

    p = case.problem
    x, w, scales, biases = to_mlx(inputs, p)
    if case.form in ("margins", "odd_offset"):
        before = 2 if case.form == "margins" else 3
        x = _rows_inside(x.reshape(p.m, p.k), before).reshape(p.x_shape)
        w, scales, biases = (_rows_inside(a, before) for a in (w, scales, biases))
    elif case.form == "x_strided":
        base = mx.repeat(x, 2, axis=-1)
        mx.eval(base)
        x = base[..., ::2]
    elif case.form == "x_transposed":
        base = mx.contiguous(x.swapaxes(-1, -2))
        mx.eval(base)
        x = base.swapaxes(-1, -2)
    elif case.form == "x_blocks":
        x = x.reshape(2, p.m // 2, p.k)
    elif case.form == "w_row_strided":
        w, scales, biases = (_every_second_row(a) for a in (w, scales, biases))
    elif case.form == "w_column_slice":
        w, scales, biases = (_first_columns(a) for a in (w, scales, biases))
    elif case.form == "w_batched":
        x = mx.broadcast_to(x, (2, p.m, p.k))
        w, scales, biases = (a.reshape(2, p.n // 2, -1) for a in (w, scales, biases))
    mx.eval(x, w, scales, biases)
    return Operands(case, x, w, scales, biases)


def one_row(full: Operands, inputs: Inputs, m: int) -> Operands:
    """Row m alone, contiguous, against the very same weights."""
    import mlx.core as mx

    p = full.case.problem
    x = _array(inputs.x[m : m + 1].reshape(p.model_copy(update={"m": 1}).x_shape), p.dtype)
    if full.case.form == "w_batched":
        x = mx.broadcast_to(x, (2, 1, p.k))
    return Operands(full.case, x, full.w, full.scales, full.biases)


def outputs_bits(case: Case, outputs: Sequence[Any]) -> list[Bits]:
    """Outputs of any form, evaluated together, as stored bits [rows, N]."""
    import mlx.core as mx

    views = [y.view(mx.uint32 if case.problem.dtype == "f32" else mx.uint16) for y in outputs]
    mx.eval(*views)
    return [_bits(case, view) for view in views]


def output_bits(case: Case, y: Any) -> Bits:
    """One output."""
    return outputs_bits(case, [y])[0]


def _bits(case: Case, view: Any) -> Bits:
    bits = np.array(view)
    if case.form == "w_batched":
        bits = np.moveaxis(bits, 0, 1)
    return bits.reshape(-1, case.problem.n)
