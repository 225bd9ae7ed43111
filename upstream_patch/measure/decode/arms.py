"""The arms: what ``mx.quantized_matmul`` is while a step is built. The model object and its weights are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from upstream_patch import installing, ops

Matmul = Callable[..., Any]


@contextmanager
def matmul_is(matmul: Matmul) -> Iterator[None]:
    """While the block runs, ``mx.quantized_matmul`` is this one, for mlx.nn and mlx-lm too."""
    mx: Any = import_module("mlx.core")
    before = mx.quantized_matmul
    mx.quantized_matmul = matmul
    try:
        yield
    finally:
        mx.quantized_matmul = before


def folded_matmul(x: Any, w: Any, /, *rest: Any, **named: Any) -> Any:
    """Stock's, on rows: x [B, 1, K] with weights [N, ...] becomes [B, K]; everything else is stock's call."""
    if x.ndim == 3 and x.shape[1] == 1 and w.ndim == 2:
        rows = ops.stock_quantized_matmul(x.reshape(x.shape[0], x.shape[2]), w, *rest, **named)
        return rows.reshape(x.shape[0], 1, -1)
    return ops.stock_quantized_matmul(x, w, *rest, **named)


ARMS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "stock": nullcontext,
    "folded": lambda: matmul_is(folded_matmul),
    "ours": installing.installed,
}


def dense_matmul(x: Any, w: Any, /, scales: Any, biases: Any = None, **named: Any) -> Any:
    """The product with dequantized weights, all of it in fp32: the answer that the arms are checked against."""
    mx: Any = import_module("mlx.core")
    form = {key: named[key] for key in ("group_size", "bits", "mode") if key in named}
    if biases is None:
        weights = mx.dequantize(w, scales, dtype=mx.float32, **form)
    else:
        weights = mx.dequantize(w, scales.astype(mx.float32), biases.astype(mx.float32), **form)
    return x.astype(mx.float32) @ weights.swapaxes(-1, -2)


@dataclass(frozen=True)
class Call:
    """One quantized matmul of a step as the model made it."""

    x: Any
    operands: tuple[Any, Any, Any]
    """w, scales, biases."""
    named: dict[str, Any]
    y: Any
    matmul: Matmul

    def again(self, x: Any) -> Any:
        """The same call, by the same arm, with another x."""
        w, scales, biases = self.operands
        return self.matmul(x, w, scales=scales, biases=biases, **self.named)


@contextmanager
def recorded(calls: list[Call]) -> Iterator[None]:
    """While the block runs, the quantized matmuls of the arm in force are kept in ``calls``, in order."""
    mx: Any = import_module("mlx.core")
    matmul = mx.quantized_matmul

    def keeping(x: Any, w: Any, /, scales: Any, biases: Any = None, **named: Any) -> Any:
        y = matmul(x, w, scales=scales, biases=biases, **named)
        calls.append(Call(x, (w, scales, biases), named, y, matmul))
        return y

    with matmul_is(keeping):
        yield
