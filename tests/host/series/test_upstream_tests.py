"""The tests that the series adds to MLX: pass on the installed wheel, fail where the change is missing."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]'")
from upstream_patch.series import load  # noqa: E402


def run(module: Any, change: str = "cuda") -> unittest.TestResult:
    """As a method of a test class whose file imports ``mx`` and ``product``, as MLX's does."""
    names: dict[str, Any] = {"mx": module, "product": product, "unittest": unittest}
    lines = next(edit.lines for edit in load(change).edits if edit.file.endswith("test_quantized.py"))
    exec(f"class TestQuantized(unittest.TestCase):\n{lines}", names)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(names["TestQuantized"]).run(result)
    return result


class OnCuda:
    """mlx.core, but that its default device is a CUDA GPU; ``changed`` gets (y, M) of every quantized matmul."""

    def __init__(self, changed: Callable[[Any, int], Any], capability: int = 9) -> None:
        self.cuda = SimpleNamespace(is_available=lambda: True)
        self.changed = changed
        self.capability = capability
        self.rows: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    def default_device(self) -> Any:
        return mx.gpu

    def device_info(self) -> dict[str, Any]:
        return {"compute_capability_major": self.capability}

    def quantized_matmul(self, x: Any, w: Any, scales: Any, biases: Any, *rest: Any) -> Any:
        wide = (a.astype(mx.float32) for a in (x, scales, biases))
        x_wide, scales_wide, biases_wide = wide
        y = mx.quantized_matmul(x_wide, w, scales_wide, biases_wide, *rest).astype(x.dtype)
        self.rows.append(x.shape)
        return self.changed(y, x.size // x.shape[-1])


def same(y: Any, m: int) -> Any:
    return y


def another_kernel_below_eight(y: Any, m: int) -> Any:
    """As the base: few rows take a kernel that rounds differently."""
    return y if m >= 8 else mx.where(y.abs() < 0.05, y * (1 + 2**-7), y)


def test_it_passes_on_the_installed_wheel() -> None:
    result = run(mx)
    assert (result.testsRun, result.failures, result.errors, result.skipped) == (1, [], [], [])


def test_it_passes_where_a_row_has_the_same_bits_in_any_batch() -> None:
    module = OnCuda(same)
    result = run(module)
    assert (result.failures, result.errors) == ([], [])
    rows = {shape[:-1] for shape in module.rows}
    assert {(m,) for m in (2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32)} <= rows
    assert {(m, 1) for m in (2, 7, 8, 9, 16, 17)} <= rows


@pytest.mark.parametrize(("capability", "fails"), [(9, True), (12, True), (7, False)])
def test_it_fails_on_the_base_for_few_rows_only(capability: int, fails: bool) -> None:
    result = run(OnCuda(another_kernel_below_eight, capability))
    assert result.errors == []
    failed = {str(test).split("shape=(")[1].split(",")[0] for test, _ in result.failures}
    assert failed == ({"2", "3", "4", "5", "6", "7"} if fails else set())


def test_a_wrong_result_fails_everywhere() -> None:
    assert run(OnCuda(lambda y, m: y + 0.01, 7)).failures


class Batched(OnCuda):
    """mlx.core on a CUDA GPU, as far as a batch of ``[B, 1, K]`` goes: ``taken`` gets its activations and result."""

    def __init__(self, taken: Callable[[Any, Any], Any]) -> None:
        super().__init__(same)
        self.taken = taken

    def quantized_matmul(self, x: Any, *rest: Any) -> Any:
        y = super().quantized_matmul(x, *rest)
        return y if x.ndim == 2 else self.taken(x, y)


def refused(x: Any, y: Any) -> Any:
    """As the base: an entry is a block in z."""
    if x.shape[0] > 65535:
        raise RuntimeError("invalid argument")
    return y


def test_the_test_of_folding_passes_on_the_wheel_and_where_rows_are_rows() -> None:
    result = run(mx, "folding")
    assert (result.testsRun, result.failures, result.errors, result.skipped) == (1, [], [], [])
    module = Batched(lambda x, y: y)
    result = run(module, "folding")
    assert (result.failures, result.errors) == ([], [])
    assert {shape for shape in module.rows if len(shape) == 3} == {(8, 1, 128), (33, 1, 128), (65536, 1, 128)}


@pytest.mark.parametrize(
    ("taken", "fails"),
    [
        (refused, ["65536"]),
        (lambda x, y: y[::-1], ["8", "33", "65536"]),
        (lambda x, y: mx.where(mx.arange(y.shape[0]).reshape(-1, 1, 1) < 65535, y, 0), ["65536"]),
    ],
)
def test_the_test_of_folding_fails_on_the_base_and_where_rows_are_mixed_up(taken: Any, fails: list[str]) -> None:
    result = run(Batched(taken), "folding")
    assert [str(test).split("B=")[1].rstrip(")") for test, _ in (*result.errors, *result.failures)] == fails
