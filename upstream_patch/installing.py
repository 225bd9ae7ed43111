"""``install()``: makes ``mx.quantized_matmul`` ours, for every program that calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import mlx.core as mx

from upstream_patch import ops, ops_metal

_saved: dict[str, Any] = {}  # what install() replaced


def install() -> None:
    """Makes ``mx.quantized_matmul`` ours, for mlx.nn and mlx-lm too. A second call changes nothing.

    ``mx.grad``, ``mx.value_and_grad``, ``mx.vjp``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile`` with ``shapeless=True``
    are wrapped as well: inside them every call takes MLX's own route. Not reached: names that a program imported from
    mlx.core before, and functions that were transformed before; those raise in a derivative, since a custom kernel has
    none.
    """
    if _saved:
        return
    for name in ("vjp", "jvp", "grad", "value_and_grad", "vmap"):
        _saved[name] = getattr(mx, name)
        setattr(mx, name, _noting(_saved[name]))
    _saved["compile"] = mx.compile
    mx.compile = _noting(mx.compile, _is_shapeless)
    _saved["quantized_matmul"] = mx.quantized_matmul
    mx.quantized_matmul = ops_metal.chosen()


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
    ops.thread.transforms += 1
    try:
        yield
    finally:
        ops.thread.transforms -= 1


def _is_shapeless(fun: Any = None, inputs: Any = None, outputs: Any = None, shapeless: Any = False) -> bool:
    """The signature is that of ``mx.compile``."""
    return bool(shapeless)


def _noting(transform: Callable[..., Any], when: Callable[..., bool] = lambda *_, **__: True) -> Callable[..., Any]:
    """The transformation, with ``transforms`` raised while it runs and while a function it returned runs.

    Only where ``when`` of its arguments is true.
    """

    @wraps(transform)
    def outer(*args: Any, **keywords: Any) -> Any:
        if not when(*args, **keywords):
            return transform(*args, **keywords)
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
