"""The operands of a benchmark, made on the GPU: random weights in as many copies as the cache protocol asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from upstream_patch.errors import MissingTool
from upstream_patch.floating import E4M3, ELEMENTS, scale_codes
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


Triple = tuple[Any, Any, Any]
"""w, scales and biases; None for the biases of floating-point weights."""


@dataclass
class Weights:
    """Copies of the operands but x, with different random values, evaluated; ``turn`` walks over them."""

    problem: Problem
    copies: list[Triple]
    _next: int = field(default=0, repr=False)

    def turn(self, n: int, hot: bool) -> list[Triple]:
        """The next n operand triples. The rotation goes on from call to call, so a copy comes back only when all others
        have been used."""
        if hot:
            return self.copies[:1] * n
        start = self._next
        self._next = (start + n) % len(self.copies)
        return [self.copies[(start + i) % len(self.copies)] for i in range(n)]


def make_weights(problem: Problem, copies: int, seed: int) -> Weights:
    """Every bit of the packed codes is random (but no element NaN); scales of both signs, where they have one, and
    biases that give outputs near 1, or with nvfp4 near sqrt(K) / 3."""
    import mlx.core as mx

    made = []
    keys = mx.random.split(mx.random.key(seed), copies)
    for i in range(copies):
        low, high, *others = mx.random.split(keys[i], 5)
        words = (problem.n, problem.k * problem.bits // 32)
        half = [mx.random.randint(0, 2**16, words, dtype=mx.uint32, key=key) for key in (low, high)]
        w = half[0] | (half[1] << 16)
        triple = _affine(problem, w, others) if problem.mode == "affine" else _floating(problem, w, others)
        mx.eval(*(array for array in triple if array is not None))
        made.append(triple)
    return Weights(problem, made)


def _affine(problem: Problem, w: Any, keys: Sequence[Any]) -> Triple:
    import mlx.core as mx

    dtype = getattr(mx, MLX_DTYPE[problem.dtype])
    groups = (problem.n, problem.k // problem.group_size)
    middle = (2**problem.bits - 1) / 2
    size, sign, shift = keys
    scale = mx.random.uniform(0.5, 1.5, groups, key=size) / (middle * math.sqrt(problem.k))
    scale = mx.where(mx.random.uniform(shape=groups, key=sign) < 0.5, -scale, scale)
    bias = -middle * scale * mx.random.uniform(0.8, 1.2, groups, key=shift)
    return w, scale.astype(dtype), bias.astype(dtype)


def _floating(problem: Problem, w: Any, keys: Sequence[Any]) -> Triple:
    import mlx.core as mx

    groups = (problem.n, problem.k // problem.group_size)
    elements = ELEMENTS[problem.mode]
    if elements is E4M3:
        # of seven ones and a sign, NaN, the last 1 goes: 448. No sum carries from one byte to the next.
        nan = ((w & 0x7F7F7F7F) + 0x01010101) & 0x80808080
        w = w ^ (nan >> 7)
    if problem.mode == "nvfp4":
        least, most = (int(each) for each in scale_codes(np.array([2.0**-4, 1.5 * 2.0**-3]), "nvfp4"))
        scale = mx.random.randint(least, most + 1, groups, key=keys[0]) + 128 * mx.random.randint(
            0, 2, groups, key=keys[1]
        )
    else:
        usual = -round(math.log2(math.sqrt(np.nanmean(elements**2) * problem.k)))
        scale = 127 + usual + mx.random.randint(-1, 2, groups, key=keys[0])
    return w, scale.astype(mx.uint8), None


def make_x(problem: Problem, seed: int) -> Any:
    """Standard normal, in the problem's layout and dtype, evaluated."""
    import mlx.core as mx

    x = mx.random.normal(problem.x_shape, key=mx.random.key(seed)).astype(getattr(mx, MLX_DTYPE[problem.dtype]))
    mx.eval(x)
    return x


def call(matmul: Matmul, problem: Problem, x: Any, triple: Triple) -> Any:
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
