"""A case's operands as mlx arrays, in the memory form that the case asks for. Needs mlx, no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch.correctness.case import Case
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
    """None for floating-point weights."""

    @property
    def arguments(self) -> tuple[Any, Any, Any, Any]:
        return self.x, self.w, self.scales, self.biases

    @property
    def keywords(self) -> dict[str, Any]:
        return {"transpose": self.case.form != "not_transposed", **self.format}

    @property
    def format(self) -> dict[str, Any]:
        p = self.case.problem
        return {"group_size": p.group_size, "bits": p.bits, "mode": p.mode}


def _array(values: F32, dtype: DType) -> Any:
    import mlx.core as mx

    return mx.array(values).astype(getattr(mx, MLX_DTYPE[dtype]))


def to_mlx(inputs: Inputs, problem: Problem) -> tuple[Any, Any, Any, Any]:
    """(x, w, scales, biases), evaluated on the default device; x has the shape of ``problem.layout``.

    biases are None for floating-point weights, whose scales are uint8.
    """
    import mlx.core as mx

    weights = [mx.array(inputs.packed)]
    if inputs.scale_codes is None:
        weights += [_array(inputs.scales, problem.dtype), _array(inputs.biases, problem.dtype)]
    else:
        weights.append(mx.array(inputs.scale_codes))
    if problem.batch > 1:
        weights = [each.reshape(problem.batch, problem.n, -1) for each in weights]
    x = _array(_x_of(inputs.x, problem), problem.dtype)
    mx.eval(x, *weights)
    w, scales, biases = weights if len(weights) == 3 else (*weights, None)
    return x, w, scales, biases


def _x_of(x: F32, problem: Problem) -> F32:
    """Rows [H M, K], those of an entry of the batch together, in the shape of the layout."""
    if problem.layout == "b1k":
        x = x.reshape(problem.batch, problem.m, -1).swapaxes(0, 1)
    return x.reshape(problem.x_shape)


def with_margins(values: Any, rows: int) -> Any:
    """A larger array, with ``rows`` rows of NaN, or of all ones for integers, before and after.

    All ones are a NaN as an E8M0 or E4M3 scale, too.
    """
    import mlx.core as mx

    ones = {mx.uint32: 2**32 - 1, mx.uint8: 255}
    margin = mx.full((rows, values.shape[1]), ones.get(values.dtype, float("nan")), values.dtype)
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
    x, *weights = to_mlx(inputs, p)

    def each_of_weights(change: Callable[[Any], Any]) -> list[Any]:
        return [None if array is None else change(array) for array in weights]

    if case.form in ("margins", "odd_offset"):
        before = 2 if case.form == "margins" else 3
        x = _rows_inside(x.reshape(p.m, p.k), before).reshape(p.x_shape)
        weights = each_of_weights(lambda array: _rows_inside(array, before))
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
        weights = each_of_weights(_every_second_row)
    elif case.form == "w_column_slice":
        weights = each_of_weights(_first_columns)
    elif case.form == "w_batched":
        x = mx.broadcast_to(x, (2, p.m, p.k))
        weights = each_of_weights(lambda array: array.reshape(2, p.n // 2, -1))
    elif case.form == "w_broadcast":
        x = x.reshape(2, p.m // 2, p.k)
        weights = each_of_weights(lambda array: mx.broadcast_to(array, (2, *array.shape)))
    mx.eval(x, *(array for array in weights if array is not None))
    return Operands(case, x, *weights)


def one_row(full: Operands, inputs: Inputs, m: int) -> Operands:
    """Row m alone (of each entry of a batch), contiguous, against the very same weights: those expanded with stride 0,
    as they were before."""
    import mlx.core as mx

    p = full.case.problem
    alone = p.model_copy(update={"m": 1})
    x = _array(_x_of(inputs.x[m :: p.m], alone), p.dtype)
    if full.case.form == "w_batched":
        x = mx.broadcast_to(x, (2, 1, p.k))
    elif full.case.form == "w_broadcast":
        return Operands(
            full.case, x, *(None if each is None else each[0] for each in (full.w, full.scales, full.biases))
        )
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
    bits, p = np.array(view), case.problem
    if case.form == "w_batched":
        bits = np.moveaxis(bits, 0, 1)
    elif p.batch > 1 and p.layout == "b1k":
        bits = bits.reshape(-1, p.batch, p.n).swapaxes(0, 1)
    return bits.reshape(-1, p.n)
