"""How far a stock Metal kernel may be from fp64: one rounding of the output, and what fp32 sums cost before it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch.correctness.errors import norm_error
from upstream_patch.problem import DType
from upstream_patch.reference import F32, F64, Inputs, from_bits, round_to, ulp
from upstream_patch.simulate.small_m import to_bits


def held_weights(inputs: Inputs, rounded: bool) -> F64:
    """Dequantized weights [N, K] as a kernel holds them: ``q * scale + bias`` in fp32; ``rounded`` to the dtype."""
    groups = inputs.q.reshape(inputs.q.shape[0], -1, inputs.problem.group_size).astype(np.float32)
    wide = (groups * inputs.scales[:, :, None] + inputs.biases[:, :, None]).reshape(inputs.q.shape)
    return round_to(wide.astype(np.float64), inputs.problem.dtype) if rounded else wide.astype(np.float64)


def judge(inputs: Inputs, ours: F64, rounded: bool) -> str | None:
    """Why ``ours`` [M, N] is wrong, or None.

    A sum of K terms in fp32, whatever its order and even where it truncates, is within E = K ulps (2**-23) of S = sum
    |x w| of the exact one; then one rounding. NaN and Inf must be where the reference has them, or where E reaches past
    the largest number. In the norm errors do not add up like that: on top of rounding, 4 ulps of |ref| + S / sqrt(K),
    and one of |ref| for every 16 terms, which a matrix unit that truncates always takes to the same side.
    """
    problem, weights, x = inputs.problem, held_weights(inputs, rounded), inputs.x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        reference: F64 = x @ weights.T
        size = np.abs(x) @ np.abs(weights).T
    slack = np.where(np.isfinite(size), problem.k * 2.0**-23 * size, 0.0)
    with np.errstate(invalid="ignore"):
        low, high = round_to(reference - slack, problem.dtype), round_to(reference + slack, problem.dtype)
    right_nan = np.isnan(ours) & np.isnan(reference)
    right_inf = np.isinf(ours) & ((ours == low) | (ours == high))
    finite = np.isfinite(ours) & (np.isfinite(low) | np.isfinite(high))
    both = np.isfinite(ours) & np.isfinite(reference)
    distance = np.abs(np.where(both, ours, 0.0) - np.where(both, reference, 0.0))
    exact = np.where(np.isfinite(reference), reference, 0.0)
    far = both & (distance > slack + ulp(np.abs(exact) + slack, problem.dtype) / 2)
    bad = far | ~(right_nan | right_inf | finite)
    if bad.any():
        m, n = (int(i) for i in np.argwhere(bad)[0])
        return (
            f"{int(bad.sum())} of {bad.size} elements are past one rounding of the fp64 reference, first m={m} n={n}: "
            f"{ours[m, n]!s}, not {reference[m, n]!s}"
        )
    judged = both & np.isfinite(round_to(exact, problem.dtype))
    wandering = np.where(np.isfinite(size), size, 0.0) / np.sqrt(problem.k)
    apart = 2.0**-23 * ((4 + problem.k / 16) * np.abs(exact) + 4 * wandering)
    allowed = norm_error(round_to(exact, problem.dtype), exact, judged, size)
    allowed += 2 * norm_error(exact + apart, exact, judged, size)
    error = norm_error(ours, exact, judged, size)
    return None if error <= allowed else f"norm error {error:.3g} is past rounding ({allowed:.3g})"


def rounded_sum(parts: F32, dtype: DType) -> NDArray[Any]:
    """Parts [parts, M, N] added in fp32 in their order, and rounded once: stored bits."""
    total = np.zeros(parts.shape[1:], np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for part in parts:
            total = total + part
        return to_bits(total.astype(np.float64), dtype)


def same_values(a: NDArray[Any], b: NDArray[Any], dtype: DType) -> bool:
    """Bit for bit, but for which NaN it is."""
    wide: tuple[F64, F64] = (from_bits(a, dtype), from_bits(b, dtype))
    nan = [np.isnan(each) for each in wide]
    return bool(np.array_equal(nan[0], nan[1]) and np.array_equal(a[~nan[0]], b[~nan[1]]))
