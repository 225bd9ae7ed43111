"""Our staged Metal kernels in the simulator: from their own files, and from the text that ``mx.fast`` would compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from upstream_patch.kernels import metal_source
from upstream_patch.kernels.metal import FILES, GROUP, ROWS, Staged, path_of, sources
from upstream_patch.problem import DType
from upstream_patch.reference import Inputs
from upstream_patch.simulate.api import CHECKS, Buffer, Run, run
from upstream_patch.simulate.metal.launches import How
from upstream_patch.simulate.metal.source import Instance, metal_kernel, mlx_headers
from upstream_patch.simulate.metal.stock import HEADERS, Operands, Quantization
from upstream_patch.simulate.small_m import Placement
from upstream_patch.simulate.source import Kernel

UNIT = "staged_unit.h"
# What clang only warns of and Metal refuses: a float that becomes a bfloat or half without a cast.
_STRICT = '#pragma clang diagnostic error "-Wimplicit-float-conversion"\n'
_UNIT = _STRICT + "".join(f'#include "{path_of(name)}"\n' for name in FILES.values())


_OPERANDS = ("w", "scales", "biases", "x", "y")


def of_kind(q: Quantization, rows: int, batched: bool, split: bool) -> Staged:
    """Raises ValueError for float32 weights."""
    return Staged(q.bits, q.group_size, q.dtype, rows, batched, split)  # type: ignore[arg-type]


def instances_of(q: Quantization, rows: Sequence[int] = ROWS) -> tuple[Staged, ...]:
    """All of one quantization."""
    kinds = ((False, False), (True, False), (False, True))
    return tuple(of_kind(q, each, *kind) for each in rows for kind in kinds)


def _call(instance: Staged) -> Instance:
    return Instance(instance.function, instance.template_arguments)


def library(name: str, instances: Sequence[Staged]) -> Kernel:
    """Instances from our own files. Raises MissingTool without an MLX wheel."""
    own = {**sources(), UNIT: _UNIT}
    return metal_kernel(name, [_call(each) for each in instances], headers=[UNIT], own=own)


@cache
def staged_kernel(q: Quantization) -> Kernel:
    """All instances of one quantization. Raises MissingTool without an MLX wheel."""
    kernel = library(f"staged_{q.dtype}_gs_{q.group_size}_b_{q.bits}", instances_of(q))
    return replace(kernel, many_launches=True)


@cache
def text_kernel(q: Quantization, rows: int) -> Kernel:
    """The instances of one quantization and tile, from the very text that ``mx.fast`` compiles after its preamble."""
    root = mlx_headers()
    chosen = instances_of(q, (rows,))
    text = metal_source.header(root) + "".join(metal_source.function(each) for each in chosen)
    name = f"mx_fast_{q.dtype}_gs_{q.group_size}_b_{q.bits}_bm{rows}"
    return metal_kernel(name, [Instance(each.host_name) for each in chosen], headers=[metal_source.PREAMBLE], text=text)


@cache
def accumulate_kernel(dtype: DType) -> Kernel:
    """MLX's sum of the parts of K, whose bits do not depend on the weights."""
    instance = Quantization(4, 64, dtype).accumulate()
    return metal_kernel(f"accumulate_{dtype}", [instance], headers=HEADERS["vector"])


def run_staged(
    instance: Staged,
    operands: Operands,
    parts: int = 1,
    where: Placement | None = None,
    how: How | None = None,
    kernel: Kernel | None = None,
) -> Run:
    """One launch. The output is [batch, M, N] of stored bits, of a split instance [parts, M, N] in fp32.

    ``parts`` divides K into multiples of 64 columns. ``kernel`` takes the place of our own, for mutations.
    """
    p = operands.problem
    buffers = dict(zip(_OPERANDS, _buffers(instance, operands, parts, where or Placement()), strict=True))
    bound = [buffers[each] if isinstance(each, str) else each for each in instance.arguments(p.m, p.n, p.k, parts)]
    rest = [] if instance.split else operands.batch_arguments()
    kernel = kernel or staged_kernel(Quantization.of(p))
    return _launch(kernel, _call(instance), [*bound, *rest], instance, operands, parts, how)


def run_text(
    instance: Staged, operands: Operands, parts: int = 1, where: Placement | None = None, how: How | None = None
) -> Run:
    """The same launch of what ``mx.fast`` compiles, with the arguments that it would pass."""
    p = operands.problem
    packed, scales, biases, x, out = _buffers(instance, operands, parts, where or Placement())
    given: dict[str, Any] = {"w": packed, "scales": scales, "biases": biases, "x": x, metal_source.OUTPUT: out}
    given |= {"K": p.k, "N": p.n, "M": p.m, "partition": p.k // parts, "stride": p.m * p.n}
    if instance.batched:
        rank, *_ = batch = operands.batch_arguments()
        assert isinstance(rank, int)
        names = ("x_shape", "x_strides", "w_ndim", "w_shape", "w_strides", "scales_strides", "biases_strides")
        given |= {**dict(zip(names, batch[1:], strict=True)), "x_ndim": rank + 2, "w_ndim": rank + 2}
    arguments = [given[text.split()[-1]] for text in metal_source.parameters(instance)]
    kernel = text_kernel(Quantization.of(p), instance.bm)
    return _launch(kernel, Instance(instance.host_name), arguments, instance, operands, parts, how)


def _buffers(instance: Staged, operands: Operands, parts: int, where: Placement) -> list[Buffer]:
    """In the order of ``_OPERANDS``."""
    x, packed, scales, biases = (
        Buffer(data, at_end=where.at_end, offset=offset)
        for data, offset in zip(operands.arrays(), where.offsets, strict=True)
    )
    p = operands.problem
    count, kind = (parts, np.uint32) if instance.split else (len(operands.batch), np.uint16)
    out = Buffer(np.empty((count, p.m, p.n), kind), output=True, at_end=where.at_end)
    return [packed, scales, biases, x, out]


def _launch(
    kernel: Kernel,
    call: Instance,
    arguments: Sequence[Any],
    instance: Staged,
    operands: Operands,
    parts: int,
    how: How | None,
) -> Run:
    """Threadgroup memory is what the instance says, and not a byte more."""
    p = operands.problem
    result = run(
        kernel,
        [kernel.instances.index(call.call), *arguments],
        instance.grid(p.m, p.n, parts if instance.split else len(operands.batch)),
        GROUP,
        shared_limit=instance.shared_bytes,
        **{"checks": CHECKS, **(how or {})},  # type: ignore[arg-type]
    )
    return replace(result, outputs=(result.outputs[0].view(np.float32),)) if instance.split else result


def part_of(operands: Operands, index: int, parts: int) -> Operands:
    """The operands of one part of K, as a problem of its own. Only of one matrix, not of a batch."""
    p = operands.problem
    k = p.k // parts
    problem = p.model_copy(update={"k": k})

    def columns(values: Any, per: int) -> Any:
        width = k // per
        return values[:, index * width : (index + 1) * width]

    def cut(inputs: Inputs) -> Inputs:
        return replace(
            inputs,
            problem=problem,
            x=columns(inputs.x, 1),
            packed=inputs.packed[:, index * k * p.bits // 32 : (index + 1) * k * p.bits // 32],
            scales=columns(inputs.scales, p.group_size),
            biases=columns(inputs.biases, p.group_size),
        )

    return replace(operands, problem=problem, x=tuple(map(cut, operands.x)), w=tuple(map(cut, operands.w)))
