"""The tests that the series adds to MLX: against the simulator here, and able to fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]'")
from upstream_patch import ops, ops_metal  # noqa: E402
from upstream_patch.correctness.simulated_fast import SimulatedMetalKernel  # noqa: E402
from upstream_patch.measure.m5 import mlx_tests  # noqa: E402
from upstream_patch.problem import Problem  # noqa: E402
from upstream_patch.routing_metal import M5, MetalRoute, route  # noqa: E402

AFFORDABLE = 4096
"""Columns of w; what is wider takes the simulator seconds."""


def thinned(shapes: Sequence[Any], formats: Sequence[Any], dtypes: Sequence[Any]) -> Iterator[Any]:
    """Each shape once, with a few formats and dtypes in turn: most of the time goes into compiling."""
    rest = list(product(formats, dtypes))
    few = rest[:: 7 if len(rest) > 6 else 3]
    for number, shape in enumerate(shapes):
        fitting = [each for each in few[number % len(few) :] + few if shape[2] % each[0][1] == 0]
        if shape[1] <= AFFORDABLE:
            yield shape, *fitting[0]


def shapes_of(test: str) -> list[tuple[int, ...]]:
    """The shapes that a test of the file lists."""
    text = f"class T:\n{mlx_tests.FILE.read_text(encoding='utf-8')}"
    (method,) = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef) and each.name == test]
    (found,) = [
        each.value for each in method.body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "shapes"
    ]
    listed: list[tuple[int, ...]] = ast.literal_eval(found)
    return listed


class Simulated:
    """mlx.core, but that its GPU is an M5 whose quantized matmuls of our routes the simulator runs."""

    def __init__(self) -> None:
        self.metal = SimpleNamespace(is_available=lambda: True)
        self.wrong = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    def default_device(self) -> Any:
        return mx.gpu

    def quantized_matmul(self, x: Any, w: Any, scales: Any, biases: Any, *rest: Any, **more: Any) -> Any:
        """Other routes than ours are those of an exact kernel: sums in fp32, rounded once."""
        if ops_metal._plan_of(x, w, scales, biases, *_format(*rest, **more)).kernel is not None:
            y = ops_metal.quantized_matmul(x, w, scales, biases, *rest, **more)
        else:
            wide = [each.astype(mx.float32) for each in (x, scales, biases)]
            y = ops.stock_quantized_matmul(wide[0], w, *wide[1:], *rest, **more).astype(x.dtype)
        return y + self.wrong * y if self.wrong else y


def _format(transpose: bool = True, group_size: int = 64, bits: int = 4) -> tuple[int, int]:
    assert transpose
    return group_size, bits


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    monkeypatch.setattr(ops_metal, "gpu", lambda: M5)
    monkeypatch.setattr(ops, "_on_gpu", lambda stream: True)
    monkeypatch.setattr(ops_metal, "_plans", {})
    monkeypatch.setattr(mx.fast, "metal_kernel", SimulatedMetalKernel)
    made = (ops_metal._compiled, ops_metal._copy, ops_metal._sum)
    for each in made:
        each.cache_clear()
    yield Simulated()
    for each in made:
        each.cache_clear()


def test_the_shapes_are_what_their_comments_say() -> None:
    found: dict[tuple[int, ...], MetalRoute] = {}
    for m, n, k in shapes_of("test_qmm_mid_m"):
        found[m, n, k] = route(Problem(m=m, n=n, k=k), M5)
    parts = {shape: each.parts if each.staged else 0 for shape, each in found.items()}
    assert parts == {
        **{(8, 2048, 512): 2, (8, 2048, 768): 3, (16, 1024, 1024): 4, (9, 2048, 1152): 3},
        **{(15, 1024, 512): 0, (7, 4096, 512): 0, (32, 512, 512): 2, (33, 512, 512): 2},
        **{(16, 1024, 256): 1, (40, 128, 448): 1, (40, 128, 576): 0, (40, 128, 1728): 0},
        **{(40, 8192, 512): 2, (40, 8256, 512): 1, (65, 128, 512): 2, (128, 128, 512): 2, (257, 64, 512): 2},
    }
    assert route(Problem(m=9, n=2048, k=1152, group_size=128), M5).parts == 1


def test_lines_are_as_long_as_mlx_has_them() -> None:
    lines = mlx_tests.FILE.read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 88
    assert lines[0] == "    def test_qmm_mid_m(self):"


@pytest.mark.needs_metal_front
def test_they_pass_in_the_simulator(simulated: Simulated) -> None:
    assert mlx_tests.run(mlx_tests.case(simulated, thinned)) == (2, [])
    names = {kernel.name for kernel in (ops_metal._sum(), ops_metal._copy()) if kernel.launches}
    assert names == {"upstream_patch_sum_of_parts", "upstream_patch_copy"}


def test_a_wrong_product_fails_and_another_backend_skips(simulated: Simulated) -> None:
    def few(shapes: Sequence[Any], *_: Any) -> Iterator[Any]:
        yield (7, 4096, 512), (4, 64), mx.float16

    simulated.wrong = 1e-3
    count, wrong = mlx_tests.run(mlx_tests.case(simulated, few))
    assert count == 2
    assert len(wrong) == 1 and "test_qmm_mid_m" in wrong[0] and "not less than" in wrong[0]
    (skipped,) = mlx_tests.run(mlx_tests.case(mx, lambda *_: iter(())))[1]
    assert skipped.endswith("test_qmm_mid_m): skipped, These are routes of the Metal backend")
