"""The operands of a benchmark, made on the GPU: random weights in as many copies as the cache protocol asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from upstream_patch.errors import MissingTool
from upstream_patch.machine import Machine
from upstream_patch.measure.mlx_device import MlxDevice
from upstream_patch.measure.timer import Work
from upstream_patch.problem import MLX_DTYPE, Problem
from upstream_patch.records.rules import CACHE_MULTIPLE

Matmul = Callable[..., Any]


def last_level_cache(machine: Machine) -> int:
    """Bytes. Raises MissingTool when the prober does not know: a guess would make hot weights look cold."""
    l2 = machine.gpu.l2_bytes if machine.gpu is not None else None
    if not l2:
        raise MissingTool("the size of the GPU's L2 cache is unknown", "run `upstream-patch doctor` and follow its fix")
    return l2


def cold_copies(problem: Problem, l2_bytes: int) -> int:
    """Copies of the weights so that copies * packed bytes > CACHE_MULTIPLE * L2, at least 2."""
    return max(2, CACHE_MULTIPLE * l2_bytes // problem.packed_bytes + 1)


@dataclass
class Weights:
    """Copies of (w, scales, biases) with different random values, evaluated; ``turn`` walks over them."""

    problem: Problem
    copies: list[tuple[Any, Any, Any]]
    _next: int = field(default=0, repr=False)

    def turn(self, n: int, hot: bool) -> list[tuple[Any, Any, Any]]:
        """The next n operand triples. The rotation goes on from call to call, so a copy comes back only when all others
        have been used."""
        if hot:
            return self.copies[:1] * n
        start = self._next
        self._next = (start + n) % len(self.copies)
        return [self.copies[(start + i) % len(self.copies)] for i in range(n)]


def make_weights(problem: Problem, copies: int, seed: int) -> Weights:
    """Every bit of the packed integers is random; scales of both signs and biases that give outputs near 1."""
    import mlx.core as mx

    if problem.mode != "affine":
        raise ValueError(f"no weights of mode {problem.mode} yet")
    dtype = getattr(mx, MLX_DTYPE[problem.dtype])
    words = (problem.n, problem.k * problem.bits // 32)
    groups = (problem.n, problem.k // problem.group_size)
    middle = (2**problem.bits - 1) / 2
    made = []
    keys = mx.random.split(mx.random.key(seed), 5 * copies)
    for i in range(copies):
        low, high, size, sign, shift = (keys[5 * i + j] for j in range(5))
        half = [mx.random.randint(0, 2**16, words, dtype=mx.uint32, key=key) for key in (low, high)]
        w = half[0] | (half[1] << 16)
        scale = mx.random.uniform(0.5, 1.5, groups, key=size) / (middle * math.sqrt(problem.k))
        scale = mx.where(mx.random.uniform(shape=groups, key=sign) < 0.5, -scale, scale)
        bias = -middle * scale * mx.random.uniform(0.8, 1.2, groups, key=shift)
        triple = (w, scale.astype(dtype), bias.astype(dtype))
        mx.eval(*triple)
        made.append(triple)
    return Weights(problem, made)


def make_x(problem: Problem, seed: int) -> Any:
    """Standard normal, in the problem's layout and dtype, evaluated."""
    import mlx.core as mx

    x = mx.random.normal(problem.x_shape, key=mx.random.key(seed)).astype(getattr(mx, MLX_DTYPE[problem.dtype]))
    mx.eval(x)
    return x


def call(matmul: Matmul, problem: Problem, x: Any, triple: tuple[Any, Any, Any]) -> Any:
    w, scales, biases = triple
    return matmul(
        x, w, scales, biases, transpose=True, group_size=problem.group_size, bits=problem.bits, mode=problem.mode
    )


def queue_work(matmul: Matmul, problem: Problem, x: Any, weights: Weights, hot: bool) -> Work:
    """n independent operations on the same x."""

    def work(n: int) -> Sequence[Any]:
        return [call(matmul, problem, x, triple) for triple in weights.turn(n, hot)]

    return work


def chain_work(device: MlxDevice, matmul: Matmul, problem: Problem, x: Any, weights: Weights, hot: bool) -> Work:
    """n operations, each waiting for the one before: a link kernel makes the next x after the last y."""

    def work(n: int) -> Sequence[Any]:
        at = x
        for triple in weights.turn(n, hot):
            at = device.link(at, call(matmul, problem, at, triple))
        return [at]

    return work


def link_work(device: MlxDevice, x: Any, y: Any) -> Work:
    """The links of a chain alone, so that what they cost is known."""

    def work(n: int) -> Sequence[Any]:
        at = x
        for _ in range(n):
            at = device.link(at, y)
        return [at]

    return work
