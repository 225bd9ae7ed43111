"""Every format: a right kernel passes the matrix's check, and faults that a kernel of it may have do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from upstream_patch.correctness import Case, answer, check, matrix
from upstream_patch.kernels.tuning import AFFINE, FLOATING, FORMATS, USUAL, Format, format_of
from upstream_patch.problem import DType, Problem
from upstream_patch.records.schema import Check
from upstream_patch.reference import F64, Distribution, Inputs, distributions, make_inputs, pack, round_to


def problem_of(form: Format, **sizes: Any) -> Problem:
    return Problem(bits=form.bits, group_size=form.group, mode=form.mode, **sizes)


def same(inputs: Inputs) -> Inputs:
    return inputs


def fp32_kernel(inputs: Inputs) -> F64:
    """A right kernel: fp32 weights and sums. [M, N], not yet rounded to the dtype."""
    p = inputs.problem
    weights = inputs.weights().astype(np.float32).reshape(p.batch, p.n, -1)
    x = inputs.x.reshape(p.batch, p.m, 1, -1)
    with np.errstate(invalid="ignore", over="ignore"):
        products = (weights[:, None] * x).sum(axis=3, dtype=np.float32)
    return np.asarray(products.reshape(-1, p.n), np.float64)


def judged(
    case: Case, on_inputs: Callable[[Inputs], Inputs] = same, on_output: Callable[[F64], F64] = lambda y: y
) -> Check:
    given, p = answer(case), case.problem
    ours = round_to(on_output(fp32_kernel(on_inputs(given.inputs))), p.dtype)
    return check(p, ours, given.reference, None, magnitude=given.magnitude, removed=given.removed, seed=case.seed)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(
    ("form", "distribution"),
    [(form, name) for form in (*FLOATING, USUAL) for name in distributions(form.mode)],
)
def test_a_right_kernel_passes(form: Format, distribution: Distribution, dtype: DType) -> None:
    for batch in (1, 2):
        verdict = judged(Case("right", problem_of(form, m=9, n=33, k=320, dtype=dtype, batch=batch), distribution))
        assert verdict.passed, verdict.bound


def one_group_late(inputs: Inputs) -> Inputs:
    """Each group is scaled as the one before it."""
    return scaled(inputs, np.roll(np.arange(inputs.scales.shape[1]), 1))


def half_groups(inputs: Inputs) -> Inputs:
    """Scales taken for groups twice as long."""
    return scaled(inputs, np.arange(inputs.scales.shape[1]) // 2)


def scaled(inputs: Inputs, group: Any) -> Inputs:
    return replace(inputs, scales=inputs.scales[:, group], biases=inputs.biases[:, group])


def unmasked_tail(inputs: Inputs) -> Inputs:
    """K is not masked at its end: the last group of x meets the first of the next row of weights as well."""
    q, k = inputs.q, inputs.problem.k
    longer = inputs.problem.model_copy(update={"k": k + inputs.problem.group_size})
    width = inputs.problem.group_size
    after = np.roll(q, -1, axis=0)[:, :width]
    next_group = [np.concatenate([a, np.roll(a, -1, axis=0)[:, :1]], axis=1) for a in (inputs.scales, inputs.biases)]
    x = np.concatenate([inputs.x, inputs.x[:, -width:]], axis=1)
    packed = pack(np.concatenate([q, after], axis=1), inputs.problem.bits)
    return replace(inputs, problem=longer, x=x, packed=packed, scales=next_group[0], biases=next_group[1])


def lost_signs(inputs: Inputs) -> Inputs:
    bits = inputs.problem.bits
    return replace(inputs, packed=pack(inputs.q & np.uint8(2 ** (bits - 1) - 1), bits))


def subnormals_of_elements_lost(inputs: Inputs) -> Inputs:
    least = np.uint8(2 if inputs.problem.bits == 4 else 8)
    magnitude = inputs.q & np.uint8(2 ** (inputs.problem.bits - 1) - 1)
    return replace(inputs, packed=pack(np.where(magnitude < least, np.uint8(0), inputs.q), inputs.problem.bits))


def least_scale_is_zero(inputs: Inputs) -> Inputs:
    """An exponent put where it belongs, and the subnormal ones forgotten."""
    least = 2.0**-6 if inputs.problem.mode == "nvfp4" else 2.0**-126
    return replace(inputs, scales=np.where(np.abs(inputs.scales) < least, np.float32(0), inputs.scales))


def nan_scales_are_numbers(inputs: Inputs) -> Inputs:
    return replace(inputs, scales=np.nan_to_num(inputs.scales, nan=480.0))


def other_entry(inputs: Inputs) -> Inputs:
    """Every entry of a batch multiplies the weights of the first."""
    row = np.arange(len(inputs.packed)) % inputs.problem.n
    return replace(inputs, packed=inputs.packed[row], scales=inputs.scales[row], biases=inputs.biases[row])


FAULTS = [
    (one_group_late, "normal", FLOATING, 1),
    (half_groups, "group_scales", FLOATING, 1),
    (unmasked_tail, "normal", FLOATING, 1),
    (lost_signs, "normal", FLOATING, 1),
    (subnormals_of_elements_lost, "normal", FLOATING, 1),
    (least_scale_is_zero, "scale_ends", FLOATING, 1),
    (nan_scales_are_numbers, "nan_codes", FLOATING, 1),
    (other_entry, "normal", FLOATING, 3),
    (other_entry, "normal", (USUAL,), 3),
    (one_group_late, "normal", AFFINE, 1),
    (unmasked_tail, "normal", AFFINE, 1),
]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("fault", "distribution", "forms", "batch"), FAULTS)
def test_faults_of_a_format_are_caught(
    fault: Any, distribution: Distribution, forms: Sequence[Format], batch: int, dtype: DType
) -> None:
    for form in forms:
        k = 5 * form.group if form.affine else 80 * form.group // 16
        if fault is least_scale_is_zero and dtype == "f16" and form.mode != "nvfp4":
            continue  # 2^-127 times anything is 0 in f16
        case = Case("fault", problem_of(form, m=3, n=129, k=k, dtype=dtype, batch=batch), distribution)
        assert judged(case).passed
        found = judged(case, on_inputs=fault)
        wanted = "NaN or Inf out of place" if distribution == "nan_codes" else "element past its rounding bound"
        assert not found.passed and found.bound.startswith(wanted), (form, found.bound)


MANY = 1 << 21
"""Products: larger cases of the matrix would take long here."""


def cases_of_the_matrix() -> list[Case]:
    """Of each name and format, the smallest that ordinary data and more than one group make a fault of a group show."""
    found: dict[tuple[str, Format], Case] = {}
    for case in sorted(matrix(), key=lambda case: case.problem.n * case.problem.k * case.problem.m):
        p = case.problem
        usual = case.route == "small_m" and case.distribution == "normal" and case.distinct is None
        if usual and p.k > p.group_size and p.n > 1 and p.m * p.batch * p.n * p.k <= MANY:
            found.setdefault((case.name, format_of(p)), case)
    return list(found.values())


@pytest.mark.parametrize("fault", [one_group_late, unmasked_tail])
def test_the_matrix_catches_faults_of_a_group_by_every_name_and_format(fault: Callable[[Inputs], Inputs]) -> None:
    cases = cases_of_the_matrix()
    assert {(case.name, format_of(case.problem)) for case in cases} >= {
        *product(("formats", "format_memory", "mlx_3444", "mlx_1577"), FORMATS),
        *product(("rows", "n_off_tile", "k_off_tile", "corner", "margins", "odd_offset", "weight_batch"), [USUAL]),
    }
    for case in cases:
        found = judged(case, on_inputs=fault)
        assert not found.passed and found.bound.startswith("element past its rounding bound"), (case.id, found.bound)


@pytest.mark.parametrize("form", [Format(4, 32, "mxfp4"), Format(8, 32, "mxfp8"), Format(8, 64)])
def test_what_is_lost_beside_a_huge_x_is_no_rounding(form: Format) -> None:
    """A row whose largest x meets weights of about 0, so that nothing is left of the answer."""
    problem = problem_of(form, m=1, n=16, k=256, dtype="bf16")
    inputs = make_inputs(problem, 0)
    inputs.x[0, 0] = 2.0**60
    scales = inputs.scales.copy()
    scales[:, 0] *= 2.0**-100
    biases = inputs.biases.copy()
    biases[:, 0] *= 2.0**-100
    given = replace(inputs, scales=scales, biases=biases)
    nothing = np.zeros((1, 16))
    found = check(problem, nothing, given.reference(), None, magnitude=given.magnitude(), removed=given.removed())
    assert not found.passed, found.bound


def swap_row_blocks(y: F64) -> F64:
    """Rows past 16 are those of the first block."""
    return y[np.arange(len(y)) % 16]


def drop_tail(y: F64) -> F64:
    return np.where(np.arange(y.shape[1]) == y.shape[1] - 1, 0.0, y)


def sums_of_16_bits(y: F64) -> F64:
    return round_to(y, "bf16") * (1 + 2.0**-8)


@pytest.mark.parametrize("form", [USUAL, *FLOATING])
def test_wrong_outputs_are_caught(form: Format) -> None:
    case = Case("fault", problem_of(form, m=19, n=33, k=192))
    assert judged(case).passed
    assert "rows 16, 17, 18, columns" in judged(case, on_output=swap_row_blocks).bound
    assert "19 of 627 elements; first at m=0 n=32" in judged(case, on_output=drop_tail).bound
    assert "element past its rounding bound" in judged(case, on_output=sums_of_16_bits).bound
