"""The bounds: a right fp32 kernel is always inside, and what is not fp32 or not everywhere right is outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from upstream_patch.correctness import HARD_CAP, bounds, check, norm_error
from upstream_patch.correctness.errors import accumulation
from upstream_patch.kernels import offset as most_offset
from upstream_patch.kernels.tuning import DEVICE_CLASSES, FLOATING, SLICE, Format, format_of, small_m_launch
from upstream_patch.problem import DType, Problem
from upstream_patch.records.schema import Check
from upstream_patch.reference import (
    DISTRIBUTIONS,
    F32,
    F64,
    Distribution,
    Inputs,
    distributions,
    make_inputs,
    pack,
    round_to,
)


def test_a_bad_column_that_the_norm_hides() -> None:
    problem = Problem(m=16, n=4096, k=256)
    inputs = make_inputs(problem, 0)
    reference = inputs.reference()
    ours = round_to(reference, "bf16")
    ours[:, 4090] = round_to(reference[:, 4090] * 1.05, "bf16")
    stock = round_to(inputs.x.astype(np.float64) @ round_to(inputs.weights(), "bf16").T, "bf16")
    error, of_stock = (norm_error(y, reference, np.isfinite(y)) for y in (ours, stock))
    assert error < 1.1 * of_stock < HARD_CAP["bf16"]
    verdict = check(problem, ours, reference, stock, magnitude=inputs.magnitude(), seed=0)
    assert not verdict.passed and "columns 4090; error per row" in verdict.bound
    sampled = check(problem, ours[:, 4088:], reference[:, 4088:], None, seed=0, columns=range(4088, 4096))
    assert not sampled.passed and "n=4090 (tile 255, its column 10)" in sampled.bound


def towards_zero(values: F64, bits: int = 24) -> F64:
    """Cut to fp32, the worst that a tensor core's adder is known to do, or to the 11 bits of tf32."""
    with np.errstate(invalid="ignore"):
        mantissa, exponent = np.frexp(values)
        cut: F64 = np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits)
        return cut


def to_f32(values: F64) -> F64:
    return round_to(values, "f32")


def kernel(inputs: Inputs, step: Callable[[F64], F64] = towards_zero, keep: Callable[[F64], F64] = to_f32) -> F64:
    """What smxx_qmm_small_m.cuh computes, in its order; tensor-core steps end in ``step``, others in ``keep``.

    The output is not rounded to the dtype.
    """
    p, offset, g = inputs.problem, most_offset(inputs.problem), inputs.problem.group_size
    warps = small_m_launch(p.m, p.n, p.k, DEVICE_CLASSES[9, 0], 132, format_of(p)).tuning.warps
    few = SLICE // g
    x, scales, biases = (a.astype(np.float64) for a in (inputs.x, inputs.scales, inputs.biases))
    integers = (offset + inputs.q.astype(np.float64)).T
    total = np.zeros((p.m, p.n))
    for warp in range(warps):
        acc = np.zeros_like(total)
        for first in range(warp * few, p.k // g, warps * few):
            groups = range(first, min(first + few, p.k // g))
            steps = [[slice(k, k + 16) for k in range(group * g, group * g + g, 16)] for group in groups]
            sums = np.zeros((p.m, len(groups)))
            for i, parts in enumerate(steps):
                for part in parts:
                    sums[:, i] = step(sums[:, i] + x[:, part].sum(axis=1))
            high = towards_zero(sums, 11)
            for part_of_sum in (high, towards_zero(sums - high, 11)):
                acc = step(acc + part_of_sum @ (biases[:, groups] - offset * scales[:, groups]).T)
            for group, parts in zip(groups, steps, strict=True):
                dot = np.zeros_like(total)
                for part in parts:
                    dot = step(dot + x[:, part] @ integers[part])
                acc = keep(acc + scales[:, group] * dot)
        total = keep(total + acc)
    return total


def floating_kernel(inputs: Inputs) -> F64:
    """The same for floating-point weights: ``unscale`` of x (which is exact, but for the flush) left out."""
    p, g, nv = inputs.problem, inputs.problem.group_size, inputs.problem.mode == "nvfp4"
    warps = small_m_launch(p.m, p.n, p.k, DEVICE_CLASSES[9, 0], 132, format_of(p)).tuning.warps
    assert inputs.elements is not None
    x, scales = inputs.x.astype(np.float64), inputs.scales.astype(np.float64)
    elements = inputs.elements[inputs.q] * (np.repeat(scales, g, axis=1) if nv else 1)
    total = np.zeros((p.m, p.n))
    for warp in range(warps):
        acc = np.zeros_like(total)
        for first in range(warp * SLICE, p.k, warps * SLICE):
            part, dot = np.zeros_like(total), np.zeros_like(total)
            last = min(first + SLICE, p.k)
            for k in range(first, last, 16):
                dot = towards_zero(dot + x[:, k : k + 16] @ elements[:, k : k + 16].T)
                if not nv and ((k + 16) % g == 0 or k + 16 >= last):
                    part, dot = to_f32(part + scales[:, k // g] * dot), np.zeros_like(total)
            acc = to_f32(acc + (dot if nv else part))
        total = to_f32(total + acc)
    return total


FINITE = [name for name in DISTRIBUTIONS if name not in ("nan_row", "inf_row")]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("form", FLOATING, ids=lambda form: form.mode)
def test_the_bounds_admit_our_kernel_on_floating_point_weights(form: Format, dtype: DType) -> None:
    for k, name in [(k, name) for k in (64, 1024, 4096, 14336) for name in distributions(form.mode)]:
        if name in ("nan_row", "inf_row", "nan_codes"):
            continue
        bits, group, mode = form
        problem = Problem(m=4, n=65, k=k, bits=bits, group_size=group, mode=mode, dtype=dtype)
        inputs = make_inputs(problem, 1, name)
        judge(inputs, floating_kernel(inputs))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("distribution", FINITE)
def test_the_bounds_admit_our_kernel(distribution: Distribution, dtype: DType) -> None:
    for k in (64, 1024, 4096, 14336):
        inputs = make_inputs(Problem(m=4, n=65, k=k, dtype=dtype), 1, distribution)
        judge(inputs, kernel(inputs))


def judge(inputs: Inputs, exact: F64) -> None:
    """Inside both bounds before rounding to the dtype, passed after it, for each row alone too."""
    problem, reference, magnitude, removed = inputs.problem, inputs.reference(), inputs.magnitude(), inputs.removed()
    assert (np.abs(exact - reference) <= accumulation(problem) * magnitude).all()
    for rows in (slice(None), *(slice(m, m + 1) for m in range(problem.m))):
        ours = round_to(exact[rows], problem.dtype)
        verdict = check(problem, ours, reference[rows], None, magnitude=magnitude[rows], removed=removed[rows])
        assert verdict.passed, verdict.bound


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("codes", [0, 1, 15])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_bounds_admit_our_kernel_where_the_offset_is_nearly_all(codes: int, mixed: bool, dtype: DType) -> None:
    """One code everywhere, no biases; x of one sign, or one large value a group over small ones that the adder cuts."""
    rng = np.random.default_rng(codes)
    for k in (64, 4096, 14336):
        start = make_inputs(Problem(m=4, n=65, k=k, dtype=dtype), codes, "zero_codes")
        x = np.abs(start.x) + 1
        if mixed:
            x = round_to(rng.uniform(0.5, 1, x.shape) * 2.0**-8, dtype).astype(np.float32)
            x[:, ::64] = 1
        inputs = replace(start, packed=pack(np.full((65, k), codes, np.uint8), 4), x=round_to_f32(x, dtype))
        judge(inputs, kernel(inputs))


def round_to_f32(x: NDArray[np.floating], dtype: DType) -> F32:
    return round_to(x.astype(np.float64), dtype).astype(np.float32)


def test_zero_is_allowed_what_the_offset_leaves_and_no_more() -> None:
    inputs = make_inputs(Problem(m=4, n=65, k=1024), 1, "zero_codes")
    exact, magnitude, removed = kernel(inputs), inputs.magnitude(), inputs.removed()
    reference = np.zeros_like(exact)
    assert (inputs.reference() == 0).all() and (exact != 0).mean() > 0.5
    np.testing.assert_allclose(removed, magnitude, rtol=1e-12)

    def verdict(ours: F64) -> Check:
        return check(inputs.problem, round_to(ours, "bf16"), reference, None, magnitude=magnitude, removed=removed)

    # a kernel without the low part of the split is off by up to 2**-11 of S
    assert verdict(exact).passed and verdict(exact).norm_error < 1e-6 and verdict(exact).max_ulp == 0
    assert "element past" in verdict(exact + 2.0**-13 * magnitude).bound
    assert "norm error" in verdict(0.5 * accumulation(inputs.problem) * magnitude).bound


@pytest.mark.parametrize("distribution", ["normal", "coherent"])
def test_a_16_bit_accumulator_is_caught(distribution: Distribution) -> None:
    problem = Problem(m=4, n=65, k=4096)
    inputs = make_inputs(problem, 1, distribution)
    ours = kernel(inputs, to_f32, lambda v: round_to(v, "bf16"))
    verdict = check(problem, ours, inputs.reference(), ours, magnitude=inputs.magnitude())
    assert not verdict.passed and verdict.max_ulp > 1


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_weights_rounded_to_16_bits_are_past_the_norm_bound(dtype: DType) -> None:
    problem = Problem(m=16, n=257, k=1024, dtype=dtype)
    inputs = make_inputs(problem, 0)
    ours = round_to(inputs.x.astype(np.float64) @ round_to(inputs.weights(), dtype).T, dtype)
    reference = inputs.reference()
    limit = bounds(problem, reference, inputs.magnitude(), inputs.removed()).norm
    assert norm_error(ours, reference, np.isfinite(ours)) > limit
    assert limit < {"bf16": 1.8e-3, "f16": 2.4e-4}[dtype]
    assert not check(problem, ours, reference, None, magnitude=inputs.magnitude(), removed=inputs.removed()).passed


def test_stated_sizes_of_the_accumulation_bound() -> None:
    got = [accumulation(Problem(m=1, n=1, k=k)) for k in (64, 4096, 14336)]
    np.testing.assert_allclose(got, [2.8e-6, 3.34e-6, 6.02e-6], rtol=0.02)
    for (bits, group, mode), sizes in zip(
        FLOATING, ([2.26e-6, 4.95e-6], [4.89e-6, 1.47e-5], [2.26e-6, 4.95e-6]), strict=True
    ):
        made = [Problem(m=1, n=1, k=k, bits=bits, group_size=group, mode=mode) for k in (4096, 14336)]
        np.testing.assert_allclose([accumulation(problem) for problem in made], sizes, rtol=0.02)
        assert accumulation(made[0].model_copy(update={"k": 16})) > 2.0**-20  # what Inputs.magnitude() counts on


def test_overflow_may_round_either_way_only_at_the_threshold() -> None:
    problem = Problem(m=1, n=3, k=64, dtype="f16")
    edge = 65520.0
    reference = np.array([[edge * (1 + 1e-7), edge * (1 - 1e-7), 7e4]])
    magnitude = np.abs(reference)

    def passed(*ours: float) -> bool:
        return check(problem, np.array([ours]), reference, None, magnitude=magnitude).passed

    assert passed(np.inf, 65504, np.inf) and passed(65504, np.inf, np.inf)
    assert not passed(np.inf, 65504, 65504) and not passed(-np.inf, 65504, np.inf)


def test_inf_in_x_may_come_out_as_nan_and_an_overflow_may_not() -> None:
    problem = Problem(m=1, n=2, k=64, dtype="f16")
    reference = np.array([[np.inf, -np.inf]])
    nan = np.full((1, 2), np.nan)
    assert check(problem, nan, reference, None, magnitude=np.full((1, 2), np.inf)).passed
    assert not check(problem, nan, np.array([[1e6, -1e6]]), None, magnitude=np.full((1, 2), 1e6)).passed
    assert not check(problem, np.ones((1, 2)), reference, None, magnitude=np.full((1, 2), np.inf)).passed
    assert not check(problem, -reference, reference, None, magnitude=np.full((1, 2), np.inf)).passed


def test_as_good_as_stock_is_not_enough_past_the_cap() -> None:
    # K large and S as large as makes every element pass at 0.6% off, which is past the norm bound
    problem = Problem(m=2, n=500, k=14336)
    reference = np.random.default_rng(0).standard_normal((2, 500))
    magnitude = 0.01 / accumulation(problem) * np.abs(reference)

    def judge(off: float) -> tuple[bool, str]:
        stock = reference * (1 + off)
        verdict = check(problem, stock, reference, stock, magnitude=magnitude)
        return verdict.passed, verdict.bound

    assert judge(0.0045) == (True, "within 1.1x of stock, under the cap 0.005")
    passed, bound = judge(0.006)
    assert not passed and bound.startswith("norm error 0.006 past")


def test_zero_is_exact() -> None:
    problem = Problem(m=2, n=3, k=64)
    zero = np.zeros((2, 3))
    assert check(problem, zero, zero, zero, magnitude=zero).passed
    assert not check(problem, zero + 1e-30, zero, zero, magnitude=zero).passed


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        check(Problem(m=1, n=2, k=64), np.zeros((1, 2)), np.zeros((2, 1)), None)
