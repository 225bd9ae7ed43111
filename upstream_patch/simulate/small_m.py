"""Launch the small-M kernel on a problem's inputs, as the host code of the real one does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from upstream_patch.errors import UserError
from upstream_patch.kernels import Variant, strides
from upstream_patch.kernels.tuning import BLOCK_ROWS
from upstream_patch.problem import DType, Mode, Problem
from upstream_patch.reference import F32, F64, Inputs, from_bits, round_to
from upstream_patch.simulate.api import CHECKS, Buffer, Check, Order, Run, Sums, run
from upstream_patch.simulate.source import Kernel, small_m_kernel

FILE = "smxx_qmm_small_m.cuh"
Operand = Literal["x", "w", "scales", "biases", "out"]
_NAN_BITS = 0xFFFF  # in both dtypes
_PAST_K = "groups past K: their x is 0 and any bits give a finite f16, so they add 0"
EXCUSED = {
    "load_shared_4(at + (i == 1 ? second : 4 * i))": _PAST_K,
    "load_shared_words_16(at)": _PAST_K,
    "load_shared_8(at)": _PAST_K,
    "load_shared_4(at + 4 * i)": _PAST_K,
}
"""Reads of shared memory that nobody wrote, by the text of their line, and why each is right. Runs over two fills of
the memory must agree bit for bit, which shows that an unwritten value does not matter."""


@dataclass(frozen=True)
class Placement:
    """Where the buffers lie: at the end of their pages, or these bytes after the start: x, w, scales, biases if any."""

    at_end: bool = False
    offsets: tuple[int, int, int, int] = (0, 0, 0, 0)

    def for_mode(self, mode: Mode) -> Placement:
        """Scales of one byte may lie at odd addresses: theirs, where it is no multiple of 16, becomes one less."""
        x, w, scales, biases = self.offsets
        odd = mode != "affine" and scales % 16 != 0
        return replace(self, offsets=(x, w, scales - 1, biases)) if odd else self


def excused_lines(kernel: Kernel) -> tuple[int, ...]:
    """Today's line numbers of ``EXCUSED``."""
    lines = kernel.files[FILE].splitlines()
    found = [[number for number, line in enumerate(lines, 1) if text in line] for text in EXCUSED]
    for text, numbers in zip(EXCUSED, found, strict=True):
        if len(numbers) != 1:
            raise UserError(f"the excused read {text!r} is on {len(numbers)} lines of {FILE}: look at its proof again")
    return tuple(numbers[0] for numbers in found)


def run_small_m(
    variant: Variant,
    blocks: int,
    inputs: Inputs,
    *,
    shared_limit: int,
    kernel: Kernel | None = None,
    placement: Placement | None = None,
    x_padding: int = 0,
    seed: int = 0,
    order: Order = "in_order",
    sums: Sums = "ascending",
    fill: int = 0xFF,
    checks: Sequence[Check] = CHECKS,
) -> Run:
    """``blocks`` share the tiles of N; the grid's other axes follow from the problem.

    ``kernel`` takes the place of the variant's own, for mutations. Between two rows of x lie ``x_padding`` NaN. The one
    output is [M, N] of stored bits, the entries of a batch one after another.
    """
    kernel = kernel or small_m_kernel(variant)
    where = placement or Placement()
    problem = inputs.problem
    operands = stored_operands(inputs)
    if x_padding:
        padded = np.pad(operands["x"], ((0, 0), (0, x_padding)), constant_values=_NAN_BITS)
        operands["x"] = padded.reshape(-1)[:-x_padding]  # nothing lies past the last row
    buffers = [
        Buffer(data, at_end=where.at_end, offset=offset)
        for data, offset in zip(operands.values(), where.offsets, strict=False)
    ]
    out = Buffer(np.empty((problem.batch * problem.m, problem.n), np.uint16), output=True, at_end=where.at_end)
    result = run(
        kernel,
        [*buffers, out, problem.m, problem.n, problem.k, *strides(problem, x_padding)],
        (blocks, -(-problem.m // BLOCK_ROWS), problem.batch),
        (variant.threads, 1, 1),
        shared_limit=shared_limit,
        seed=seed,
        order=order,
        sums=sums,
        fill=fill,
        checks=checks,
        excused=excused_lines(kernel),
        excused_file=FILE,
    )
    return replace(result, outputs=(by_entry(problem, result.outputs[0]),))


def stored_operands(inputs: Inputs) -> dict[Operand, NDArray[Any]]:
    """The operands' bits, in the order of the kernel's parameters; the rows of x in the order of memory."""
    p = inputs.problem

    def bits(values: F32) -> NDArray[Any]:
        return to_bits(values.astype(np.float64), p.dtype)

    x = bits(inputs.x)
    if p.layout == "b1k":  # the rows of a batch's entries take turns
        x = np.ascontiguousarray(x.reshape(p.batch, p.m, p.k).swapaxes(0, 1)).reshape(-1, p.k)
    if inputs.scale_codes is not None:
        return {"x": x, "w": inputs.packed, "scales": inputs.scale_codes}
    return {"x": x, "w": inputs.packed, "scales": bits(inputs.scales), "biases": bits(inputs.biases)}


def by_entry(problem: Problem, out: NDArray[Any]) -> NDArray[Any]:
    """An output's rows, from their order in memory to the reference's: one entry of a batch after the other."""
    if problem.layout != "b1k":
        return out
    return np.ascontiguousarray(out.reshape(problem.m, problem.batch, problem.n).swapaxes(0, 1)).reshape(out.shape)


def to_bits(values: F64, dtype: DType) -> NDArray[Any]:
    """The inverse of ``reference.from_bits``: stored bits, rounded to nearest even."""
    rounded = round_to(values, dtype).astype(np.float32)
    if dtype == "bf16":
        return np.asarray(rounded.view(np.uint32) >> 16, np.uint16)
    return rounded.astype(np.float16).view(np.uint16) if dtype == "f16" else rounded.view(np.uint32)


def values(run: Run, inputs: Inputs) -> F64:
    """The output as fp64."""
    return from_bits(run.outputs[0], inputs.problem.dtype)
