"""The Metal path of ``quantized_matmul``, without a Mac: MLX's custom kernels are stood in for, by a list or the
simulator."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]'")
import upstream_patch  # noqa: E402
from upstream_patch import ops, ops_metal  # noqa: E402
from upstream_patch.correctness.simulated_fast import KernelFault, SimulatedMetalKernel  # noqa: E402
from upstream_patch.errors import UserError  # noqa: E402
from upstream_patch.kernels.metal import Staged  # noqa: E402
from upstream_patch.problem import Problem  # noqa: E402
from upstream_patch.routing_metal import M5, route  # noqa: E402


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An M5, as far as dispatch can see; its kernels are compiled anew."""
    monkeypatch.setattr(ops_metal, "gpu", lambda: M5)
    monkeypatch.setattr(ops, "_on_gpu", lambda stream: stream is None)
    monkeypatch.setattr(ops_metal, "_plans", {})
    for each in (ops_metal.chosen, ops_metal._compiled, ops_metal._copy, ops_metal._sum):
        each.cache_clear()
    yield
    upstream_patch.uninstall()
    for each in (ops_metal.chosen, ops_metal._compiled, ops_metal._copy, ops_metal._sum):
        each.cache_clear()


@pytest.fixture
def launched(mac: None, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every launch: the kernel's making and its call; zeros come out."""
    found: list[dict[str, Any]] = []

    def metal_kernel(**made: Any) -> Any:
        def kernel(**call: Any) -> list[Any]:
            found.append(made | call)
            pairs = zip(call["output_shapes"], call["output_dtypes"], strict=True)
            return [mx.zeros(shape, dtype) for shape, dtype in pairs]

        return kernel

    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
    return found


def operands(m: tuple[int, ...], n: tuple[int, ...], k: int, dtype: Any, bits: int, group: int) -> list[Any]:
    """x [*m, k] and weights [*n, k]."""
    w, scales, biases = mx.quantize(mx.random.normal((*n, k), key=mx.random.key(1)), group, bits)
    return [mx.random.normal((*m, k)).astype(dtype), w, scales.astype(dtype), biases.astype(dtype)]


def names(launched: list[dict[str, Any]]) -> list[str]:
    return [each["name"].rpartition("_")[0] if "affine" in each["name"] else each["name"] for each in launched]


def test_a_split_problem_is_three_launches(launched: list[dict[str, Any]]) -> None:
    x, w, s, b = operands((2, 5), (2048,), 2048, mx.bfloat16, 4, 64)
    y = upstream_patch.quantized_matmul(x, w, s, b)
    assert (y.shape, y.dtype) == ((2, 5, 2048), mx.bfloat16)
    copy, matmul, total = launched
    staged = Staged(4, 64, "bf16", 32, split=True)
    assert names(launched) == ["upstream_patch_copy", staged.host_name, "upstream_patch_sum_of_parts"]
    assert (copy["grid"], copy["threadgroup"], copy["ensure_row_contiguous"]) == ((10 * 2048, 1, 1), (256, 1, 1), False)
    assert (matmul["grid"], matmul["threadgroup"]) == ((32 * 128, 1, 4), (128, 1, 1))
    assert matmul["output_shapes"] == [(4, 2, 5, 2048)] and matmul["output_dtypes"] == [mx.float32]
    assert [each.shape for each in matmul["inputs"][:4]] == [w.shape, s.shape, b.shape, x.shape]
    assert [each.item() for each in matmul["inputs"][4:]] == [2048, 2048, 10, 512, 10 * 2048]
    assert {each.dtype for each in matmul["inputs"][4:]} == {mx.int32}
    assert [each.item() for each in total["inputs"][1:]] == [4, 10 * 2048]
    assert total["grid"] == (10 * 2048, 1, 1) and total["template"] == [("T", mx.bfloat16)]
    upstream_patch.quantized_matmul(x, w, s, b, True, 64, 4, "affine")
    assert names(launched[3:]) == names(launched[:3])


@pytest.mark.parametrize(
    ("m", "n", "k", "kernel", "grid", "sizes"),
    [
        ((16,), (4096,), 256, Staged(4, 64, "f16", 32), (64 * 128, 1, 1), [256, 4096, 16]),
        ((40,), (17408,), 64, Staged(4, 64, "f16", 64), (272 * 128, 1, 1), [64, 17408, 40]),
        ((3, 40), (3, 128), 64, Staged(4, 64, "f16", 64, batched=True), (2 * 128, 1, 3), [64, 128, 40]),
        ((1, 3, 70), (3, 128), 64, Staged(4, 64, "f16", 64, batched=True), (2 * 128, 2, 3), [64, 128, 70]),
    ],
)
def test_the_launch_of_an_unsplit_problem(
    m: Any, n: Any, k: int, kernel: Staged, grid: Any, sizes: list[int], launched: list[dict[str, Any]]
) -> None:
    y = ops_metal.quantized_matmul(*operands(m, n, k, mx.float16, 4, 64))
    assert (y.shape, y.dtype) == ((*m, n[-1]), mx.float16)
    assert names(launched) == ["upstream_patch_copy", kernel.host_name]
    assert launched[1]["grid"] == grid and launched[1]["output_shapes"] == [(*m, n[-1])]
    assert [each.item() for each in launched[1]["inputs"][4:]] == sizes


@pytest.mark.parametrize(
    ("given", "more"),
    [
        (operands((7,), (4096,), 256, mx.bfloat16, 4, 64), {}),
        (operands((8,), (1024,), 512, mx.bfloat16, 4, 64), {}),
        (operands((40,), (256,), 512, mx.float32, 4, 64), {}),
        (operands((40,), (200,), 512, mx.bfloat16, 4, 64), {}),
        (operands((40,), (256,), 512, mx.bfloat16, 4, 32), {"group_size": 32, "stream": mx.cpu}),
        (operands((40,), (512,), 512, mx.bfloat16, 4, 64), {"transpose": False}),
        (operands((16, 1), (16, 128), 64, mx.bfloat16, 4, 64), {}),
        ([*operands((40,), (512,), 4096, mx.bfloat16, 4, 64)[:3], None], {}),
    ],
    ids=[
        "7 rows",
        "few outputs",
        "float32",
        "N off the tile",
        "on the CPU",
        "not transposed",
        "a row a matrix",
        "no biases",
    ],
)
def test_the_rest_is_stock(given: list[Any], more: dict[str, Any], launched: list[Any]) -> None:
    try:
        wanted = ops.stock_quantized_matmul(*given, **more)
    except (ValueError, RuntimeError, TypeError) as error:
        with pytest.raises(type(error)) as found:
            ops_metal.quantized_matmul(*given, **more)
        assert str(found.value) == str(error)
    else:
        assert mx.array_equal(ops_metal.quantized_matmul(*given, **more), wanted)
    assert launched == []


def test_wrong_arguments_raise_what_mlx_raises(launched: list[Any]) -> None:
    x, w, s, b = operands((16,), (4096,), 512, mx.bfloat16, 4, 64)
    for wrong in ([x, w, s, b, True, 64, 3], [x[:, :256], w, s, b], ["x", w, s, b], [x, w, s, b, True, 64.0, 4]):
        with pytest.raises((ValueError, TypeError)) as stock:
            ops.stock_quantized_matmul(*wrong)
        with pytest.raises(type(stock.value)) as found:
            ops_metal.quantized_matmul(*wrong)
        assert str(found.value).splitlines()[0] == str(stock.value).splitlines()[0]
    assert launched == []


@pytest.mark.parametrize(("m", "taken"), [(2**19 - 1, True), (2**19, False)])
def test_more_elements_of_x_than_a_grid_has_threads_are_stock(m: int, taken: bool, mac: None) -> None:
    """2**31 of them: the copy of x could not be launched."""
    problem = Problem(m=m, n=64, k=4096)
    assert ops_metal.route_of(problem) is not None
    assert (ops_metal._plan(problem, (m, 4096)).kernel is not None) is taken


def test_installed_on_a_mac_and_out_of_the_way_of_derivatives(launched: list[Any]) -> None:
    x, w, s, b = operands((16,), (4096,), 512, mx.bfloat16, 4, 64)
    with upstream_patch.installed():
        assert mx.quantized_matmul is ops_metal.quantized_matmul
        mx.quantized_matmul(x, w, s, b)
        assert len(launched) == 3
        mx.grad(lambda x: mx.quantized_matmul(x, w, s, b).sum())(x)
        assert len(launched) == 3
    assert mx.quantized_matmul is ops.stock_quantized_matmul


def test_elsewhere_the_path_of_cuda_is_taken_itself() -> None:
    ops_metal.chosen.cache_clear()
    assert ops_metal.gpu() is None
    assert upstream_patch.quantized_matmul is ops.quantized_matmul
    with upstream_patch.installed():
        assert mx.quantized_matmul is ops.quantized_matmul
    assert ops_metal.route_of(Problem(m=16, n=4096, k=4096)) is None


@pytest.mark.parametrize(
    ("architecture", "macos", "found"),
    [("applegpu_g17s", "26.2", True), ("applegpu_g17g", "26.1", False), ("applegpu_g16s", "26.3.1", False)],
)
def test_the_gpu_is_known_by_architecture_and_system(
    architecture: str, macos: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"architecture": architecture})
    monkeypatch.setattr(platform, "mac_ver", lambda: (macos, ("", "", ""), "arm64"))
    ops_metal.gpu.cache_clear()
    try:
        assert (ops_metal.gpu() is not None) is found
    finally:
        ops_metal.gpu.cache_clear()


def test_the_kernel_itself_copies_nothing_and_falls_back_to_nothing(launched: list[dict[str, Any]]) -> None:
    x, w, s, b = operands((16,), (4096,), 512, mx.bfloat16, 4, 64)
    ops_metal.staged_call(x, w, s, b, group_size=64, bits=4)
    assert len(launched) == 2 and launched[0]["inputs"][3] is x
    with pytest.raises(ValueError, match="do not take"):
        ops_metal.staged_call(x[:7], w, s, b, group_size=64, bits=4)


SIMULATED = [
    ((16,), (1024,), 1024, "bfloat16", 4, 64),
    ((9,), (2048,), 128, "float16", 3, 32),
    ((3, 33), (3, 64), 128, "bfloat16", 6, 128),
]


@pytest.mark.needs_metal_front
@pytest.mark.parametrize(("m", "n", "k", "dtype", "bits", "group"), SIMULATED)
def test_the_launches_compute_the_product(
    m: Any, n: Any, k: int, dtype: str, bits: int, group: int, mac: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.fast, "metal_kernel", SimulatedMetalKernel)
    x, w, s, b = operands(m, n, k, getattr(mx, dtype), bits, group)
    y = ops_metal.quantized_matmul(x, w, s, b, True, group, bits)
    exact = mx.dequantize(w, s.astype(mx.float32), b.astype(mx.float32), group, bits)
    weights = np.array(exact.astype(x.dtype).astype(mx.float32)).astype(np.float64)
    wanted = np.array(x.astype(mx.float32)).astype(np.float64) @ np.swapaxes(weights, -1, -2)
    error = np.abs(np.array(y.astype(mx.float32)) - wanted)
    assert error.max() < 2.0 ** (-8 if dtype == "bfloat16" else -10) * np.abs(wanted).max()
    assert route(Problem(m=m[-1], n=n[-1], k=k, bits=bits, group_size=group, batch=m[0] if m[1:] else 1), M5).staged


def test_what_the_stand_in_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = SimulatedMetalKernel("k", ["x"], ["y"], "y[0] = x[0];")
    one: dict[str, Any] = {"output_shapes": [(1,)], "output_dtypes": [mx.float32]}
    with pytest.raises(UserError, match="unequal size"):
        kernel(inputs=[mx.zeros((9,))], grid=(9, 1, 1), threadgroup=(2, 1, 1), **one)


@pytest.mark.needs_metal_front
def test_a_fault_of_a_kernel_is_raised() -> None:
    body = "y[thread_position_in_grid.x] = x[thread_position_in_grid.x + 1];"
    kernel = SimulatedMetalKernel("past", ["x"], ["y"], body)
    with pytest.raises(KernelFault, match="out of bounds"):
        kernel(
            inputs=[mx.zeros((4096 // 4,))],
            grid=(1024, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[(1024,)],
            output_dtypes=[mx.float32],
        )
