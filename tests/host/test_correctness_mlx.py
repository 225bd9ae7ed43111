"""The harness on mlx's CPU backend: forms are what they say, and stock MLX goes through as if it were ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

import upstream_patch
from upstream_patch.correctness import (
    Case,
    MlxArms,
    answer,
    check,
    complaints,
    matrix,
    norm_error,
    run_case,
    run_matrix,
    to_mlx,
)
from upstream_patch.correctness.case import FORMS, LAYOUTS, Form
from upstream_patch.correctness.forms import Bits, Operands, one_row, operands, output_bits, with_margins
from upstream_patch.errors import MissingTool
from upstream_patch.floating import ELEMENTS, SCALES
from upstream_patch.problem import DType, Layout, Mode, Problem
from upstream_patch.reference import from_bits, make_inputs, unpack

mx: Any = pytest.importorskip("mlx.core")


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


class StockTwice:
    """Both arms are mx.quantized_matmul: what is left is the harness, its operands and its reference."""

    def prepare(self, case: Case, given: Any) -> tuple[Operands, Any]:
        return operands(case, given.inputs), given

    def route(self, case: Case) -> None:
        return None

    def kernels(self, case: Case) -> list[str]:
        return []

    def _call(self, given: Operands) -> Bits:
        return output_bits(given.case, mx.quantized_matmul(*given.arguments, **given.keywords))

    def stock(self, prepared: tuple[Operands, Any]) -> Bits:
        return self._call(prepared[0])

    def ours(self, prepared: tuple[Operands, Any], repeats: int) -> list[Bits]:
        return [self._call(prepared[0]) for _ in range(repeats)]

    def ours_over(self, prepared: tuple[Operands, Any], fills: Sequence[float]) -> list[Bits]:
        return [self._call(prepared[0]) for _ in fills]

    def ours_rows(self, prepared: tuple[Operands, Any], rows: int) -> list[Bits]:
        return [self._call(one_row(prepared[0], prepared[1].inputs, m)) for m in range(rows)]


def values(case: Case, given: Operands, y: Any) -> np.ndarray[Any, Any]:
    return from_bits(output_bits(case, y), case.problem.dtype)


@pytest.mark.parametrize("dtype", get_args(DType))
@pytest.mark.parametrize("form", FORMS)
def test_stock_is_right_in_every_form(form: Form, dtype: DType) -> None:
    case = Case("form", Problem(m=4, n=64, k=192, dtype=dtype), form=form, route="any")
    result = run_case(case, StockTwice(), repeats=2)
    assert complaints(result, 2) == []
    # mlx's CPU kernel sums in the dtype; f32 is what shows that form and reference are one problem
    assert result.check.norm_error < {"bf16": 4e-2, "f16": 4e-3, "f32": 1e-6}[dtype]
    # operands of another problem must not pass: the reference is not fitted to whatever came out
    other = answer(Case("form", case.problem, form=form, seed=1))
    given = operands(case, other.inputs)
    y = values(case, given, mx.quantized_matmul(*given.arguments, **given.keywords))
    assert norm_error(y, answer(case).reference, np.isfinite(y)) > 0.5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: Layout) -> None:
    problem = Problem(m=3, n=65, k=128, layout=layout)
    inputs = make_inputs(problem, 0)
    x, w, scales, biases = to_mlx(inputs, problem)
    assert x.shape == problem.x_shape and x.dtype == scales.dtype == biases.dtype == mx.bfloat16
    assert w.dtype == mx.uint32
    np.testing.assert_array_equal(np.array(x.astype(mx.float32)).reshape(3, 128), inputs.x)
    np.testing.assert_array_equal(np.array(scales.astype(mx.float32)), inputs.scales)
    result = run_case(Case("layout", problem, route="any"), StockTwice(), repeats=1)
    assert complaints(result, 1) == []


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_numbers(form: Form) -> None:
    case = Case("form", Problem(m=4, n=64, k=192, dtype="f16"), form=form, route="any")
    inputs = answer(case).inputs
    given = operands(case, inputs)
    x = np.array(given.x.astype(mx.float32)).reshape(-1, 192)
    np.testing.assert_array_equal(x[:4], inputs.x)
    arrays = [given.w, *(array.astype(mx.float32) for array in (given.scales, given.biases))]
    for array, wanted in zip(arrays, (inputs.packed, inputs.scales, inputs.biases), strict=True):
        rows, columns = wanted.shape
        np.testing.assert_array_equal(np.array(array).reshape(-1, columns)[:rows], wanted)
    row = one_row(given, inputs, 2)
    np.testing.assert_array_equal(np.array(row.x.astype(mx.float32)).reshape(-1, 192)[0], inputs.x[2])


def test_margins_are_poison() -> None:
    wide = np.array(with_margins(mx.zeros((2, 4), dtype=mx.bfloat16), 3).astype(mx.float32))
    assert np.isnan(wide[:3]).all() and np.isnan(wide[5:]).all() and (wide[3:5] == 0).all()
    words = np.array(with_margins(mx.zeros((2, 4), dtype=mx.uint32), 3))
    assert (words[:3] == 2**32 - 1).all() and len(words) == 8


def test_every_quantization_of_the_matrix_has_a_right_reference() -> None:
    seen = set()
    for case in sorted(matrix(), key=lambda case: case.problem.m * case.problem.n * case.problem.k):
        p = case.problem
        key = (p.bits, p.group_size, p.mode, p.dtype, case.form, p.batch > 1 and p.layout)
        if key in seen or p.m * p.batch > 1000:
            continue
        seen.add(key)
        assert complaints(run_case(replace(case, route="other"), StockTwice(), repeats=1), 1) == []
    assert len(seen) > 100


@pytest.mark.parametrize("form", [form for form in FORMS if form != "not_transposed"])
def test_a_row_alone_is_the_row_in_every_memory_form(form: Form) -> None:
    case = Case("row", Problem(m=4, n=34, k=128), form=form, route="any")
    assert run_case(case, StockTwice(), repeats=1).rows_equal_alone


def test_both_arms_refusing_alike_is_no_answer() -> None:
    class Refuses(StockTwice):
        def _call(self, given: Operands) -> Bits:
            raise ValueError("[quantized_matmul] no")

    result = run_case(Case("refused", Problem(m=1, n=8, k=64), route="any"), Refuses())
    assert not result.check.passed and result.check.bound.endswith("cannot run it: ValueError: [quantized_matmul] no")

    class RefusesElsewise(Refuses):
        def ours(self, prepared: tuple[Operands, Any], repeats: int) -> list[Bits]:
            raise ValueError("no, thanks")

    result = run_case(Case("refused", Problem(m=1, n=8, k=64), route="any"), RefusesElsewise())
    assert not result.check.passed and "raised ValueError: no, thanks" in result.check.bound


def test_the_stock_route_may_be_as_bad_as_stock_and_our_kernel_may_not() -> None:
    problem = Problem(m=4, n=256, k=4096)
    case = Case("stock", problem)
    inputs = make_inputs(problem, 0)
    given = operands(case, inputs)
    reference = inputs.reference()
    stock = values(case, given, mx.quantized_matmul(*given.arguments, **given.keywords))

    def judge(ours: np.ndarray[Any, Any], our_kernel: bool) -> Any:
        return check(problem, ours, reference, stock, magnitude=inputs.magnitude(), our_kernel=our_kernel)

    assert judge(stock, False).bound == "within 1.1x of stock, like stock past the cap 0.005"
    assert not judge(stock, True).passed
    assert not judge(reference + 1.3 * (stock - reference), False).passed
    nothing = check(problem, 0 * stock, reference, 0 * stock, magnitude=inputs.magnitude(), our_kernel=False)
    assert not nothing.passed and nothing.norm_error == nothing.stock_norm_error == 1
    for lost in (np.nan, np.inf):
        same = np.where(np.arange(problem.n) % 2, stock, lost)
        found = check(problem, same, reference, same, magnitude=inputs.magnitude(), our_kernel=False)
        assert found.bound.startswith("NaN or Inf out of place")
    one_off = stock.copy()
    one_off[3, 200] += 4 * np.abs(stock - reference).max()
    assert "element past" in judge(one_off, False).bound


class Ops:
    """Stands in for ``upstream_patch.ops`` on a CPU: the real arms, with a right or a faulty operation behind them."""

    def __init__(self, skip_last: bool = False) -> None:
        self.skip_last = skip_last
        self.fills: list[float | None] = []

    stock_quantized_matmul = staticmethod(mx.quantized_matmul)

    def route_of(self, problem: Problem) -> str:
        fits = problem.m <= 32 and problem.dtype != "f32"
        return "small_m" if fits else "stock"

    def kernel_symbol(self, problem: Problem) -> str:
        return "small_m_stand_in"

    def require_cuda(self) -> None:
        raise MissingTool("no CUDA GPU", "doctor")

    def small_m_call(
        self,
        x: Any,
        w: Any,
        scales: Any,
        biases: Any,
        *,
        group_size: int = 64,
        bits: int = 4,
        mode: Mode = "affine",
        init_value: float | None = None,
    ) -> Any:
        self.fills.append(init_value)
        exact = x.astype(mx.float32)
        if mode == "affine":
            scales, biases = (array.astype(mx.float32) for array in (scales, biases))
            weights = mx.dequantize(w, scales, biases, group_size=group_size, bits=bits)
        else:
            # mlx's own needs an even number of groups, and takes E8M0's NaN for 2^128
            q = unpack(np.array(w).reshape(-1, w.shape[-1]), bits)
            groups = SCALES[mode][np.array(scales).reshape(-1, scales.shape[-1])]
            values = ELEMENTS[mode][q] * np.repeat(groups, group_size, axis=1)
            weights = mx.array(values.astype(np.float32)).reshape(*w.shape[:-1], -1)
        y = (exact[..., None, :] * weights[..., None, :, :]).sum(axis=-1).astype(x.dtype)
        if self.skip_last and init_value is not None:
            y[..., -1] = init_value
        return y

    def quantized_matmul(self, x: Any, w: Any, scales: Any, biases: Any, **keywords: Any) -> Any:
        rows = x.size // x.shape[-1] // (w.shape[0] if w.ndim == 3 else 1)
        transpose = keywords.pop("transpose")
        if transpose and x.dtype != mx.float32 and rows <= 32:
            return self.small_m_call(x, w, scales, biases, **keywords)
        return mx.quantized_matmul(x, w, scales, biases, transpose=transpose, **keywords)


def one_of_each() -> list[Case]:
    """The smallest case of every name, form, mode, distribution, layout and dtype of the matrix."""
    kinds: dict[tuple[str, ...], Case] = {}
    for case in sorted(matrix(), key=lambda c: c.problem.m * c.problem.n * c.problem.k, reverse=True):
        if case.problem.m * case.problem.batch < 1000:
            p = case.problem
            kinds[case.name, case.form, p.mode, case.distribution, p.layout, p.dtype, str(p.batch > 1)] = case
    return list(kinds.values())


@pytest.mark.parametrize("skip_last", [False, True])
def test_the_real_arms(monkeypatch: pytest.MonkeyPatch, skip_last: bool) -> None:
    stand_in = Ops(skip_last)
    monkeypatch.setitem(sys.modules, "upstream_patch.ops", stand_in)
    monkeypatch.setattr(upstream_patch, "ops", stand_in, raising=False)
    cases = one_of_each()[:: 3 if skip_last else 1]
    for case in cases:
        found = complaints(run_case(case, MlxArms(), repeats=2), 2)
        if skip_last and case.route == "small_m":
            assert any("an element is not written" in line for line in found)
        else:
            assert found == [], case.id
    hooked = sum(case.route == "small_m" for case in cases)
    assert len([fill for fill in stand_in.fills if fill is not None and np.isnan(fill)]) == hooked > 20
    with pytest.raises(MissingTool, match="no CUDA GPU"):
        run_matrix()
