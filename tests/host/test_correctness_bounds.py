"""The bounds: a right fp32 kernel is always inside, and what is not fp32 or not everywhere right is outside."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from upstream_patch.correctness import HARD_CAP, bounds, check, norm_error
from upstream_patch.correctness.errors import accumulation
from upstream_patch.problem import DType, Problem
from upstream_patch.reference import F64, Distribution, Inputs, make_inputs, round_to


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


def factored(inputs: Inputs, step: Callable[[F64], F64], keep: Callable[[F64], F64]) -> F64:
    """``16 + q`` summed 16 at a time in a group (``step`` rounds), scaled and summed over groups (``keep`` rounds)."""
    g = inputs.problem.group_size
    total = np.zeros((inputs.problem.m, inputs.problem.n))
    for group in range(inputs.problem.k // g):
        part = slice(group * g, group * g + g)
        q, x = 16.0 + inputs.q[:, part], inputs.x[:, part].astype(np.float64)
        scale, bias = (a[:, group].astype(np.float64) for a in (inputs.scales, inputs.biases))
        dot, sum_x = np.zeros_like(total), np.zeros((len(x), 1))
        for i in range(0, g, 16):
            dot = step(dot + x[:, i : i + 16] @ q[:, i : i + 16].T)
            sum_x = step(sum_x + x[:, i : i + 16].sum(axis=1, keepdims=True))
        total = keep(keep(total + scale * dot) + keep(bias - 16 * scale) * sum_x)
    return total


def towards_zero(values: F64) -> F64:
    """fp32 by truncation, the worst that a tensor core's adder is known to do."""
    with np.errstate(invalid="ignore"):
        mantissa, exponent = np.frexp(values)
        cut: F64 = np.ldexp(np.trunc(np.ldexp(mantissa, 24)), exponent - 24)
        return cut


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("distribution", ["normal", "group_scales", "one_hot", "coherent", "small", "large"])
def test_the_bounds_admit_a_truncating_factored_kernel(distribution: Distribution, dtype: DType) -> None:
    for k in (64, 4096, 14336):
        problem = Problem(m=4, n=65, k=k, dtype=dtype)
        inputs = make_inputs(problem, 1, distribution)
        reference, magnitude = inputs.reference(), inputs.magnitude()
        exact = factored(inputs, towards_zero, lambda v: round_to(v, "f32"))
        assert (np.abs(exact - reference) <= accumulation(problem) * magnitude).all()
        verdict = check(problem, round_to(exact, dtype), reference, None, magnitude=magnitude)
        assert verdict.passed, verdict.bound


@pytest.mark.parametrize("distribution", ["normal", "coherent"])
def test_a_16_bit_accumulator_is_caught(distribution: Distribution) -> None:
    problem = Problem(m=4, n=65, k=4096)
    inputs = make_inputs(problem, 1, distribution)
    ours = factored(inputs, lambda v: round_to(v, "f32"), lambda v: round_to(v, "bf16"))
    verdict = check(problem, ours, inputs.reference(), ours, magnitude=inputs.magnitude())
    assert not verdict.passed and verdict.max_ulp > 1


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_weights_rounded_to_16_bits_are_past_the_norm_bound(dtype: DType) -> None:
    problem = Problem(m=16, n=257, k=1024, dtype=dtype)
    inputs = make_inputs(problem, 0)
    ours = round_to(inputs.x.astype(np.float64) @ round_to(inputs.weights(), dtype).T, dtype)
    reference = inputs.reference()
    assert norm_error(ours, reference, np.isfinite(ours)) > bounds(problem, reference, inputs.magnitude()).norm
    assert not check(problem, ours, reference, None, magnitude=inputs.magnitude()).passed


def test_stated_sizes_of_the_accumulation_bound() -> None:
    got = [accumulation(Problem(m=1, n=1, k=k)) for k in (64, 4096, 14336)]
    np.testing.assert_allclose(got, [1.8e-6, 4.1e-6, 6.5e-6], rtol=0.02)


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
