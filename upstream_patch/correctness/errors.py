"""How far a result is from the right answer, and whether that is far enough to be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from upstream_patch.problem import DType, Problem
from upstream_patch.records.schema import Check
from upstream_patch.reference import F64, Inputs, from_bits, round_to, ulp

STOCK_FACTOR = 1.1
HARD_CAP: dict[DType, float] = {"f16": 2e-3, "bf16": 5e-3, "f32": 2e-3}
"""Norm-relative; f32 has the f16 cap because a tensor core multiplies f32 as tf32, which keeps f16's 11 bits."""
LOST = 0.5
"""Norm-relative; zeros, or values that have nothing to do with the answer, have 1. That stock is as wrong is no excuse.
"""
TILE_COLUMNS = 16
NORM_ULPS = 4
Mask = NDArray[np.bool_]


def accumulation(problem: Problem) -> float:
    """Error of our kernel over ``S = sum_k |x| ((offset + q) |scale| + |bias|)``, before the output is rounded.

    S bounds every partial sum: a group is in it with its correction ``(bias - offset scale) sum x``, or with that and
    its product. In ulps (2**-23) of S, if a tensor-core step truncates by at most one of its running sum:
    - ``sum (offset + q) x`` and ``sum x`` of a group are g / 16 steps each, times |scale|, or offset |scale| + |bias|;
    - ``sum x`` goes to tf32 as two parts of 11 bits, 22 of its 24: 3. Their products with scale and bias are exact;
    - a pass over 256 of K adds to a warp's sum two tf32 steps for each four groups, and half an ulp for each group and
      once more, where x was scaled;
    - at least 8 warps share K where it is longer than 2048, at most 16 sums are added with half an ulp each: 8.
    4-bit g64: 3.4e-6 up to K = 4096, 6.0e-6 at 14336. Emulated in numpy, no distribution comes to more than 3 ulps.

    Floating-point weights have no offset and no ``sum x``. With an E8M0 scale a group is two steps, and half an ulp
    where it is added to the warp's sum; an E4M3 scale goes into the weight, exactly, and a pass is 16 steps. mxfp4 and
    mxfp8: 2.3e-6 up to K = 4096, 4.9e-6 at 14336; nvfp4: 4.9e-6 and 1.5e-5.
    """
    passes = -(-problem.k // 2048)
    if problem.mode != "affine":
        steps, a_pass = (0.0, 16 + 0.5) if problem.mode == "nvfp4" else (2.0, 256 / problem.group_size / 2 + 0.5)
        return (steps + a_pass * passes + 8) * 2.0**-23
    groups = 256 // problem.group_size
    a_pass = 2 * max(1, groups // 4) + groups / 2 + 0.5
    return (2 * problem.group_size / 16 + 3 + a_pass * passes + 8) * 2.0**-23


@dataclass(frozen=True)
class Bounds:
    """What rounding allows, per element and in the norm."""

    element: F64
    """[M, C]. With E = accumulation * S, a right kernel holds v, |v - ref| <= E, and stores round(v), half an ulp off
    at most, so |ours - ref| <= E + ulp(|ref| + E) / 2. S is the worst case, whatever the data. A kernel that sums in
    16 bits need not pass."""
    overflow: F64
    """[M, C]: E alone; within it of the overflow threshold, Inf and the largest number are both right."""
    norm: float
    """The distance to the grid of the dtype is 1-Lipschitz, so |v - ref| = D gives |ours - ref| <= |round(ref) - ref|
    + 2 D. Over many elements worst cases do not add up: partial sums are about |ref| + removed (growing) + S / sqrt(K)
    (wandering), and D = 4 ulps of that (emulated: 0.6, and 1.5 at the most). Normal data: 2 D is 4e-5 of the norm in
    bf16, 2.4e-5 in f16, where rounding is 1.65e-3 and 2.1e-4, and rounding the weights too 2.3e-3 and 2.8e-4. 2 D
    counts up to the cap: where more is lost, the answer is gone."""


def bounds(problem: Problem, reference: F64, magnitude: F64 | None, removed: F64 | None = None) -> Bounds:
    """``magnitude`` is S, [M, C]; without it S is taken as 40 sqrt(K) times each row's RMS (normal data has 25).

    ``removed`` is ``Inputs.removed()``; without it that of x with mixed signs.
    """
    finite = np.where(np.isfinite(reference), reference, 0.0)
    if magnitude is None:
        rms = np.sqrt(np.mean(finite**2, axis=1, keepdims=True))
        magnitude = np.broadcast_to(40 * np.sqrt(problem.k) * rms, reference.shape)
    size = np.where(np.isfinite(magnitude), magnitude, 0.0)
    unit = accumulation(problem)
    slack = unit * size
    half = ulp(np.abs(finite) + slack, problem.dtype) / 2
    stored = np.isfinite(round_to(finite, problem.dtype))
    rounding = norm_error(round_to(finite, problem.dtype), finite, stored, size)
    wander = size / np.sqrt(problem.k)
    growing = np.abs(finite) + (wander if removed is None else np.where(np.isfinite(removed), removed, 0.0))
    distance = NORM_ULPS * 2.0**-23 * (growing + wander)
    beyond = min(2 * norm_error(finite + distance, finite, stored, size), HARD_CAP[problem.dtype])
    return Bounds(slack + half, slack, rounding + beyond)


def norm_error(values: F64, reference: F64, where: Mask, magnitude: F64 | None = None) -> float:
    """||values - reference|| / ||reference|| over ``where``.

    Where the reference is zero throughout it is over ||magnitude||, and absolute without one.
    """
    wanted = reference[where]
    if not wanted.size:
        return 0.0
    against = wanted if magnitude is None or wanted.any() else np.where(np.isfinite(magnitude), magnitude, 0.0)[where]
    # scaled first: squares of bf16's ends do not fit fp64's range comfortably at f32
    scale = float(np.abs(against).max()) or 1.0
    size = float(np.linalg.norm(against / scale)) or 1.0
    return float(np.linalg.norm((values[where] - wanted) / scale)) / size


def _misplaced(problem: Problem, ours: F64, reference: F64, slack: F64) -> Mask:
    """Where NaN and Inf differ from the reference's.

    A NaN must be a NaN, an overflow the Inf of the right sign, and no finite answer may be either. One choice is open:
    where x is Inf and there is a bias, NaN is right too, since ``scale * sum(q x) + bias * sum(x)`` is Inf - Inf.
    """
    with np.errstate(invalid="ignore"):
        # the two stored values that accumulation error may reach, low before high
        low, high = round_to(reference - slack, problem.dtype), round_to(reference + slack, problem.dtype)
    right_nan = np.isnan(ours) & np.isnan(reference)
    right_inf = np.isinf(ours) & ((ours == low) | (ours == high))
    right_finite = np.isfinite(ours) & (np.isfinite(low) | np.isfinite(high))
    # the fp64 reference itself is Inf only where x is
    tainted = np.isinf(reference) & (problem.mode == "affine")
    right: Mask = right_nan | right_inf | right_finite | (tainted & np.isnan(ours))
    return ~right


def _excess(values: F64, reference: F64, limit: F64) -> F64:
    """Error over its bound, [M, C]; 0 where either is not finite (those are judged by place)."""
    both = np.isfinite(values) & np.isfinite(reference)
    distance: F64 = np.abs(np.where(both, values, 0.0) - np.where(both, reference, 0.0))
    return distance / limit


def _report(
    problem: Problem, seed: int | None, columns: Sequence[int] | None, ours: F64, reference: F64, bad: Mask
) -> str:
    """Everything needed to look at a failure: where, which tile, both values, how far, which rows."""
    m, c = (int(i) for i in np.argwhere(bad)[0])
    n = c if columns is None else int(columns[c])
    with np.errstate(invalid="ignore"):
        distance = float(np.abs(ours[m, c] - reference[m, c]) / ulp(reference[m, c], problem.dtype))
        both = np.isfinite(ours) & np.isfinite(reference)
    rows = [f"{norm_error(ours[r : r + 1], reference[r : r + 1], both[r : r + 1]):.1e}" for r in range(len(ours))]
    bad_rows, bad_columns = (np.flatnonzero(bad.any(axis=a)) for a in (1, 0))
    if columns is not None:
        bad_columns = np.asarray(columns)[bad_columns]
    shown = ", ".join(rows[:32]) + (", ..." if len(rows) > 32 else "")
    return (
        f"{problem.id} seed {seed}: {int(bad.sum())} of {bad.size} elements; "
        f"first at m={m} n={n} (tile {n // TILE_COLUMNS}, its column {n % TILE_COLUMNS}): "
        f"ours {ours[m, c]!s}, reference {reference[m, c]!s}, {distance:.4g} ulp; "
        f"rows {_span(bad_rows)}, columns {_span(bad_columns)}; error per row [{shown}]"
    )


def _span(index: NDArray[np.intp]) -> str:
    some = ", ".join(str(int(i)) for i in index[:8])
    return some if len(index) <= 8 else f"{some}, ... {int(index[-1])} ({len(index)})"


def check(
    problem: Problem,
    ours: F64,
    reference: F64,
    stock: F64 | None,
    *,
    magnitude: F64 | None = None,
    removed: F64 | None = None,
    our_kernel: bool = True,
    seed: int | None = None,
    columns: Sequence[int] | None = None,
) -> Check:
    """Judge ``ours`` [M, C] against the unrounded ``reference``; ``stock`` is MLX's own result on the same input.

    Passes when NaN and Inf are where they must be, every element is within ``Bounds.element``, and the norm error is
    within ``Bounds.norm`` or within 1.1 times stock's and under the hard cap. ``our_kernel=False`` (the stock route)
    allows each element twice the excess of stock's worst, and stock's own error past the cap if short of ``LOST``;
    without ``stock``, the cap alone. ``columns`` names the outputs that C samples; ``magnitude`` and ``removed`` are
    those of ``Inputs``. A failed check says in ``bound`` what failed, and where.
    """
    if ours.shape != reference.shape or (stock is not None and stock.shape != reference.shape):
        raise ValueError(f"shapes differ: ours {ours.shape}, reference {reference.shape}")
    limit = bounds(problem, reference, magnitude, removed)
    stored = round_to(reference, problem.dtype)
    judged = np.isfinite(ours) & np.isfinite(stored)
    error = norm_error(ours, reference, judged, magnitude)
    stock_error = stock_ulp = None
    allowed = 1.0
    if stock is not None:
        both = np.isfinite(stock) & np.isfinite(stored)
        stock_error = norm_error(stock, reference, both, magnitude)
        stock_ulp = _max_ulp(problem, stock, reference, both)
    if not our_kernel:
        allowed = np.inf if stock is None else max(1.0, 2 * float(_excess(stock, reference, limit.element).max()))

    cap = HARD_CAP[problem.dtype]
    misplaced = _misplaced(problem, ours, reference, limit.overflow)
    far = _excess(ours, reference, limit.element) > allowed
    failed = True
    if misplaced.any():
        bound = "NaN or Inf out of place: " + _report(problem, seed, columns, ours, reference, misplaced)
    elif far.any():
        bound = "element past its rounding bound: " + _report(problem, seed, columns, ours, reference, far)
    elif error <= limit.norm:
        failed, bound = False, f"within output rounding ({limit.norm:.3g})"
    elif (
        stock_error is not None
        and error <= STOCK_FACTOR * stock_error
        and (error <= cap or (not our_kernel and error < LOST))
    ):
        side = "under" if error <= cap else "like stock past"
        failed, bound = False, f"within {STOCK_FACTOR}x of stock, {side} the cap {cap:g}"
    elif stock is None and not our_kernel and error <= cap:
        failed, bound = False, f"under the cap {cap:g}; stock gave no result"
    else:
        worst = _excess(ours, reference, limit.element)
        of_stock = "none" if stock_error is None else f"{stock_error:.3g}"
        bound = (
            f"norm error {error:.3g} past rounding ({limit.norm:.3g}), {STOCK_FACTOR}x of stock ({of_stock}) "
            f"or the cap {cap:g}: " + _report(problem, seed, columns, ours, reference, worst == worst.max())
        )
    return Check(
        passed=not failed,
        norm_error=error,
        max_ulp=_max_ulp(problem, ours, reference, judged),
        stock_norm_error=stock_error,
        stock_max_ulp=stock_ulp,
        bound=bound,
        columns=reference.shape[1],
    )


def why_wrong(inputs: Inputs, stored: NDArray[np.unsignedinteger]) -> str | None:
    """Why our kernel's output [M, N], as stored bits, is wrong by the reference alone; None where it is right."""
    verdict = check(
        inputs.problem,
        from_bits(stored, inputs.problem.dtype),
        inputs.reference(),
        None,
        magnitude=inputs.magnitude(),
        removed=inputs.removed(),
        seed=inputs.seed,
    )
    return None if verdict.passed else verdict.bound


def _max_ulp(problem: Problem, values: F64, reference: F64, where: Mask) -> float:
    """Distance from the exact answer in its ulps (0.5: correctly rounded), where that is not zero."""
    where = where & (reference != 0)
    if not where.any():
        return 0.0
    return float((np.abs(values[where] - reference[where]) / ulp(reference[where], problem.dtype)).max())
