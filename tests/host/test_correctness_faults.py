"""The harness on a numpy pair: a right kernel passes everything, and each planted fault is caught by what should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from upstream_patch.correctness import Answer, Case, answer, complaints, run_case, run_cases
from upstream_patch.correctness.cases import DISTINCT_ROWS
from upstream_patch.problem import DType, Layout, Problem
from upstream_patch.reference import (
    DISTRIBUTIONS,
    F64,
    Distribution,
    Inputs,
    make_inputs,
    pack,
    round_to,
)
from upstream_patch.reference import from_bits as values_of

Array = np.ndarray[Any, Any]


def bits_of(values: F64, dtype: DType) -> Array:
    """The inverse of ``from_bits``."""
    rounded = round_to(values, dtype).astype(np.float32)
    if dtype == "bf16":
        return (rounded.view(np.uint32) >> 16).astype(np.uint16)
    return rounded.astype(np.float16).view(np.uint16) if dtype == "f16" else rounded.view(np.uint32)


def fp32_kernel(inputs: Inputs) -> F64:
    """A right kernel: fp32 weights and sums, every row by itself. [M, N], not yet rounded to the dtype."""
    p = inputs.problem
    weights = inputs.weights().astype(np.float32).reshape(p.batch, p.n, p.k)
    with np.errstate(invalid="ignore", over="ignore"):
        rows = [(weights[i // p.m] * row).sum(axis=1, dtype=np.float32) for i, row in enumerate(inputs.x)]
    return np.stack(rows).astype(np.float64)


@dataclass
class NumpyArms:
    """``ours`` computes the right kernel on tampered inputs, then tampers with the output."""

    on_inputs: Callable[[Inputs], Inputs] = lambda inputs: inputs
    on_output: Callable[[F64, int], F64] = lambda y, call: y
    unwritten: tuple[int, int] | None = None
    took: str | None = "small_m"
    calls: int = 0

    def prepare(self, case: Case, given: Answer) -> Inputs:
        return given.inputs

    def route(self, case: Case) -> str | None:
        return self.took

    def kernels(self, case: Case) -> list[str]:
        return ["numpy"]

    def stock(self, prepared: Inputs) -> Array:
        return bits_of(fp32_kernel(prepared), prepared.problem.dtype)

    def _call(self, inputs: Inputs, fill: float | None) -> Array:
        self.calls += 1
        dtype = inputs.problem.dtype
        y = bits_of(self.on_output(fp32_kernel(self.on_inputs(inputs)), self.calls), dtype)
        if self.unwritten is not None:
            # like a caching allocator: the block of a call holds what the last such call left, here the right answer
            held = self.stock(inputs) if fill is None else bits_of(np.full(y.shape, fill), dtype)
            y[self.unwritten] = held[self.unwritten]
        return y

    def ours(self, prepared: Inputs, repeats: int) -> list[Array]:
        return [self._call(prepared, None) for _ in range(repeats)]

    def ours_over(self, prepared: Inputs, fills: Sequence[float]) -> list[Array]:
        return [self._call(prepared, fill) for fill in fills]

    def ours_rows(self, prepared: Inputs, rows: int) -> list[Array]:
        return [self._call(prepared.row(m), None) for m in range(rows)]


SMALL = Case("small", Problem(m=5, n=33, k=192))
REPEATS = 3


def lines(case: Case, arms: NumpyArms) -> str:
    return "\n".join(complaints(run_case(case, arms, REPEATS), REPEATS))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_right_kernel_passes(distribution: Distribution, dtype: DType) -> None:
    for m, n, k in ((1, 1, 64), (16, 129, 1024)):
        case = Case("right", Problem(m=m, n=n, k=k, dtype=dtype), distribution)
        assert lines(case, NumpyArms()) == ""


@pytest.mark.parametrize("layout", ["mk", "1mk", "b1k"])
def test_a_right_kernel_passes_on_a_batch_of_weights(layout: Layout) -> None:
    assert lines(Case("right", Problem(m=9, n=33, k=320, batch=3, layout=layout)), NumpyArms()) == ""


def test_a_row_that_depends_on_its_batch_is_found_in_any_entry() -> None:
    last = Case("right", Problem(m=3, n=33, k=320, batch=3))
    arms = NumpyArms(on_output=lambda y, call: y * np.where(np.arange(len(y)) == 8, 1 + 2.0**-9, 1)[:, None])
    assert "differs from the same row alone" in lines(last, arms)


def flip_nibble(inputs: Inputs) -> Inputs:
    q = inputs.q.copy()
    q[17, 100] ^= 8
    return replace(inputs, packed=pack(q, inputs.problem.bits))


def swap_groups(inputs: Inputs) -> Inputs:
    scales = inputs.scales.copy()
    scales[:, :2] = scales[:, 1::-1]
    return replace(inputs, scales=scales)


def swap_rows(y: F64, call: int) -> F64:
    return y[::-1]


def drop_tail(y: F64, call: int) -> F64:
    y = y.copy()
    y[:, -1] = 0
    return y


def leak_nan(y: F64, call: int) -> F64:
    return np.where(np.isnan(y).any(), np.nan, y)


def hide_nan(y: F64, call: int) -> F64:
    return np.nan_to_num(y, posinf=0, neginf=0)


def saturate(y: F64, call: int) -> F64:
    return np.clip(y, -65504, 65504)


def flip_inf(y: F64, call: int) -> F64:
    stored = round_to(y, "f16")
    return np.where(np.isinf(stored), -stored, y)


def truncate(y: F64, call: int) -> F64:
    return (y.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


INPUT_FAULTS = [
    (flip_nibble, "normal", "element past its rounding bound", "n=17 (tile 1, its column 1)"),
    (flip_nibble, "one_hot", "element past its rounding bound", "1 of 4224 elements; first at m=4 n=17"),
    (swap_groups, "group_scales", "element past its rounding bound", "first at m=0 n=0"),
]


@pytest.mark.parametrize(("fault", "distribution", "kind", "where"), INPUT_FAULTS)
def test_wrong_weights_are_caught(fault: Any, distribution: Distribution, kind: str, where: str) -> None:
    # seed 6 of 16 rows: the one-hot positions are 96 to 111, row 4 is position 100
    case = Case("fault", Problem(m=16, n=264, k=256), distribution, seed=6)
    found = lines(case, NumpyArms(on_inputs=fault))
    assert kind in found and where in found


OUTPUT_FAULTS = [
    (swap_rows, "normal", "bf16", "element past its rounding bound"),
    (drop_tail, "normal", "bf16", "5 of 165 elements; first at m=0 n=32"),
    (leak_nan, "nan_row", "bf16", "NaN or Inf out of place"),
    (hide_nan, "nan_row", "bf16", "NaN or Inf out of place"),
    (hide_nan, "inf_row", "f16", "NaN or Inf out of place"),
    (saturate, "large", "f16", "NaN or Inf out of place"),
    (flip_inf, "large", "f16", "NaN or Inf out of place"),
    (truncate, "normal", "bf16", "element past its rounding bound"),
]


@pytest.mark.parametrize(("fault", "distribution", "dtype", "kind"), OUTPUT_FAULTS)
def test_wrong_outputs_are_caught(fault: Any, distribution: Distribution, dtype: DType, kind: str) -> None:
    case = Case("fault", Problem(m=5, n=33, k=192, dtype=dtype), distribution)
    assert kind in lines(case, NumpyArms(on_output=fault))


def test_an_unwritten_element_that_held_the_right_answer() -> None:
    result = run_case(SMALL, NumpyArms(unwritten=(0, 32)), REPEATS)
    assert result.check.passed and result.repeats_equal == REPEATS and not result.written
    assert "an element is not written" in complaints(result, REPEATS)[0]


def test_an_unwritten_element_where_nan_is_right() -> None:
    # row 2 is NaN: one fill value alone could not tell
    case = replace(SMALL, distribution="nan_row")
    assert not run_case(case, NumpyArms(unwritten=(2, 0)), REPEATS).written


def test_a_result_that_changes_between_calls() -> None:
    arms = NumpyArms(on_output=lambda y, call: y * (1 + 2.0**-9 * (call == 3)))
    result = run_case(SMALL, arms, REPEATS)
    assert result.check.passed and result.repeats_equal == REPEATS - 1
    assert "2 of 3 repetitions" in complaints(result, REPEATS)[0]


def test_a_row_that_depends_on_its_batch() -> None:
    arms = NumpyArms(on_output=lambda y, call: y * (1 + 2.0**-9 * (len(y) > 1)))
    found = complaints(run_case(SMALL, arms, REPEATS), REPEATS)
    assert any("differs from the same row alone" in line for line in found)


def test_the_wrong_route_and_a_kernel_that_raises() -> None:
    assert "took route stock, not small_m" in lines(SMALL, NumpyArms(took="stock"))
    assert "took route small_m, not other" in lines(replace(SMALL, route="other"), NumpyArms())

    def explode(inputs: Inputs) -> Inputs:
        raise RuntimeError("Unable to load kernel")

    bodies = run_cases([SMALL, SMALL], lambda: NumpyArms(on_inputs=explode))
    assert [case.check.passed for case in bodies.cases] == [False, False]
    assert "raised RuntimeError: Unable to load kernel" in bodies.cases[0].check.bound


def test_a_refusal_shared_with_stock_is_a_failed_environment() -> None:
    class Refuses(NumpyArms):
        def stock(self, prepared: Inputs) -> Array:
            raise RuntimeError("Failed to compile kernel:\n cannot open file")

    def explode(inputs: Inputs) -> Inputs:
        raise RuntimeError("Failed to compile kernel:\n cannot open file")

    both = run_case(SMALL, Refuses(on_inputs=explode), REPEATS)
    assert not both.check.passed and not both.passed
    assert "this environment cannot run it: RuntimeError: Failed to compile kernel: cannot open" in both.check.bound
    ours = run_case(SMALL, Refuses(), REPEATS)
    assert complaints(ours, REPEATS) == [] and ours.check.stock_norm_error is None
    assert ours.check.bound.endswith("; stock unavailable: RuntimeError: Failed to compile kernel: cannot open file")
    wrong = run_case(SMALL, Refuses(on_output=drop_tail), REPEATS)
    assert not wrong.check.passed and "stock unavailable: RuntimeError" in wrong.check.bound


def swap_last_tiles(y: F64, call: int) -> F64:
    y = y.copy()
    y[:, -32:] = np.roll(y[:, -32:], 16, axis=1)
    return y


def test_rows_of_weights_in_turn_are_a_reference_for_every_column() -> None:
    case = Case("turns", Problem(m=3, n=2000, k=64), distinct=DISTINCT_ROWS)
    given = answer(case)
    np.testing.assert_allclose(given.inputs.reference(), given.reference, rtol=1e-13)
    np.testing.assert_array_equal(given.inputs.packed[DISTINCT_ROWS:], given.inputs.packed[: 2000 - DISTINCT_ROWS])
    assert lines(case, NumpyArms()) == ""
    assert "first at m=0 n=1968" in lines(case, NumpyArms(on_output=swap_last_tiles))


def test_progress_counts_every_case() -> None:
    seen: list[tuple[int, int]] = []
    run_cases([SMALL, SMALL], NumpyArms, lambda done, total, name: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_from_bits_is_what_the_arms_store() -> None:
    y = fp32_kernel(make_inputs(SMALL.problem, 0))
    np.testing.assert_array_equal(values_of(bits_of(y, "bf16"), "bf16"), round_to(y, "bf16"))


class Expensive(NumpyArms):
    """Stock is a tile kernel that is slow to compile."""

    def stock(self, prepared: Inputs) -> Array:
        asked.append(prepared.problem.bits)
        return super().stock(prepared)


asked: list[int] = []


def test_stock_s_tile_kernel_of_another_width_runs_only_where_rounding_does_not_explain_ours() -> None:
    usual = Case("usual", Problem(m=9, n=33, k=192))
    other = Case("other", Problem(m=9, n=33, k=192, bits=5))
    few_rows = Case("few rows", Problem(m=7, n=33, k=192, bits=6))
    for case in (usual, other, few_rows):
        assert complaints(run_case(case, Expensive(), REPEATS), REPEATS) == []
    assert asked == [4, 6]
    assert run_case(other, Expensive(), REPEATS).check.stock_norm_error is None
    asked.clear()
    wrong = run_case(other, Expensive(on_output=drop_tail), REPEATS)
    assert not wrong.check.passed and asked == [5]
