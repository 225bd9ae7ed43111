"""Dispatch, errors and install(), without a GPU: the CUDA device and the kernel launch are stood in for."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]'")
import upstream_patch  # noqa: E402
from upstream_patch import ops  # noqa: E402
from upstream_patch.kernels.tuning import AFFINE  # noqa: E402


class Cuda:
    """An H200 that launches nothing: the kernel's arguments are kept, and zeros come out."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []

    def compiled(self, variant: Any, batch: bool) -> Any:
        def kernel(stream: Any = None, **arguments: Any) -> list[Any]:
            if stream is not None and stream != mx.gpu:
                raise ValueError("[custom_kernel] Only supports the GPU.")
            self.launches.append({"variant": variant, "batch": batch, **arguments})
            pairs = zip(arguments["output_shapes"], arguments["output_dtypes"], strict=True)
            return [mx.zeros(shape, dtype) for shape, dtype in pairs]

        return kernel


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    device = Cuda()
    monkeypatch.setattr(ops, "_device", lambda: ((9, 0), 132))
    monkeypatch.setattr(ops, "_compiled", device.compiled)
    monkeypatch.setattr(ops, "_plans", {})
    monkeypatch.setattr(ops, "_latest", {})
    yield device
    upstream_patch.uninstall()


def weights(n: int, k: int, dtype: Any = None, bits: int = 4, group_size: int = 64) -> tuple[Any, Any, Any]:
    """Affine ones."""
    packed, scales, biases = mx.quantize(mx.random.normal((n, k), key=mx.random.key(n)), group_size, bits)
    return packed, scales.astype(dtype or mx.bfloat16), biases.astype(dtype or mx.bfloat16)


def x_of(*shape: int, dtype: Any = None) -> Any:
    return mx.random.normal(shape, key=mx.random.key(1)).astype(dtype or mx.bfloat16)


@pytest.mark.parametrize(
    "shape", [(512,), (1, 512), (32, 512), (1, 32, 512), (32, 1, 512), (2, 8, 512), (2, 2, 2, 512)]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_over_all_leading_axes_take_the_kernel(cuda: Cuda, shape: tuple[int, ...], dtype: str) -> None:
    kind = getattr(mx, dtype)
    y = upstream_patch.quantized_matmul(x_of(*shape, dtype=kind), *weights(48, 512, kind))
    assert y.shape == (*shape[:-1], 48)
    assert y.dtype == kind
    (launch,) = cuda.launches
    assert launch["grid"][0] == 3 * launch["threadgroup"][0], "three tiles of 16 columns"
    assert launch["grid"][1:] == (2 if 32 in shape else 1, 1), "blocks of 16 rows"
    assert not launch["batch"]


@pytest.mark.parametrize(("bits", "group_size", "mode"), AFFINE)
def test_every_width_and_group_size_runs_its_own_kernel(cuda: Cuda, bits: int, group_size: int, mode: str) -> None:
    given = weights(48, 512, bits=bits, group_size=group_size)
    upstream_patch.quantized_matmul(x_of(4, 512), *given, bits=bits, group_size=group_size)
    (launch,) = cuda.launches
    assert launch["variant"].tuning.format == (bits, group_size, mode)


def test_defaults_and_explicit_arguments_are_the_same(cuda: Cuda) -> None:
    x, (w, s, b) = x_of(4, 512), weights(48, 512)
    upstream_patch.quantized_matmul(x, w, s, b)
    upstream_patch.quantized_matmul(x, w, s, b, True, 64, 4, "affine")
    upstream_patch.quantized_matmul(x, w, scales=s, biases=b, transpose=True, group_size=64, bits=4, mode="affine")
    assert len(cuda.launches) == 3


@pytest.mark.parametrize(
    ("x", "given", "more"),
    [
        (x_of(33, 512), weights(48, 512), {}),
        (x_of(4, 512, dtype=mx.float32), weights(48, 512, mx.float32), {}),
        (x_of(4, 512, dtype=mx.float16), weights(48, 512, mx.bfloat16), {}),
        (x_of(4, 48), weights(48, 512), {"transpose": False}),
        (x_of(0, 512), weights(48, 512), {}),
        (x_of(4, 512), weights(48, 512), {"stream": mx.cpu}),
    ],
    ids=["33 rows", "float32", "mixed dtypes", "not transposed", "no rows", "on the CPU"],
)
def test_what_the_kernel_does_not_take_goes_to_mlx(cuda: Cuda, x: Any, given: Any, more: dict[str, Any]) -> None:
    y = upstream_patch.quantized_matmul(x, *given, **more)
    assert not cuda.launches
    wanted = ops.stock_quantized_matmul(x, *given, **more)
    assert y.shape == wanted.shape
    if y.size:  # MLX's CPU backend divides by zero when it evaluates an empty product
        assert mx.array_equal(y, wanted, equal_nan=True)


def test_a_wide_decode_batch_is_folded_for_stock(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def stock(x: Any, *rest: Any, **more: Any) -> Any:
        seen.append(x.shape)
        return real(x, *rest, **more)

    real = ops.stock_quantized_matmul
    monkeypatch.setattr(ops, "stock_quantized_matmul", stock)
    x, given = x_of(64, 1, 512), weights(128, 512)
    y = upstream_patch.quantized_matmul(x, *given)
    assert seen == [(64, 512)]
    assert y.shape == (64, 1, 128)
    assert mx.allclose(y, real(x, *given), atol=0.1)


def test_install_reaches_mlx_nn_and_uninstall_undoes_it(cuda: Cuda) -> None:
    nn: Any = import_module("mlx.nn")

    layer = nn.QuantizedLinear(512, 48, bias=False)
    layer.set_dtype(mx.bfloat16)
    before = {name: getattr(mx, name) for name in ("quantized_matmul", "grad", "value_and_grad", "vjp", "jvp", "vmap")}
    with upstream_patch.installed():
        upstream_patch.install()
        layer(x_of(4, 512))
        assert len(cuda.launches) == 1
    assert {name: getattr(mx, name) for name in before} == before
    upstream_patch.install()
    with upstream_patch.installed():
        pass
    layer(x_of(4, 512))
    assert len(cuda.launches) == 2, "an inner block leaves the outer install in place"
    upstream_patch.uninstall()
    upstream_patch.uninstall()
    layer(x_of(4, 512))
    assert len(cuda.launches) == 2


def test_function_transformations_take_mlx(cuda: Cuda) -> None:
    given = weights(48, 512)

    def loss(x: Any) -> Any:
        return mx.quantized_matmul(x, *given).sum()

    x = x_of(4, 512)
    with upstream_patch.installed():
        gradient = mx.grad(loss)(x)
        value, again = mx.value_and_grad(loss)(x)
        mx.vjp(loss, [x], [mx.array(1.0)])
        with pytest.raises(RuntimeError, match="QuantizedMatmul::vmap"):  # MLX's own answer
            mx.vmap(lambda row: mx.quantized_matmul(row, *given))(x)
        with pytest.raises(ZeroDivisionError):
            mx.grad(lambda x: 1 / 0)(x)
        assert not cuda.launches
        mx.quantized_matmul(x, *given)
        assert len(cuda.launches) == 1, "the depth is back at zero, after an error too"
    assert mx.array_equal(gradient, again)
    assert value.shape == ()


def test_a_shapeless_compilation_takes_mlx_and_another_one_ours(cuda: Cuda) -> None:
    given, xs = weights(48, 512), [x_of(m, 512) for m in (3, 4, 9)]
    mx.eval(given, xs)

    def product(x: Any) -> Any:
        return mx.quantized_matmul(x, *given)

    with upstream_patch.installed():
        shapeless = mx.compile(product, shapeless=True)
        assert [shapeless(x).shape for x in xs] == [(3, 48), (4, 48), (9, 48)]
        assert not cuda.launches
        assert mx.compile(product)(xs[1]).shape == (4, 48)
        assert len(cuda.launches) == 1
    assert mx.compile(product)(xs[0]).shape == (3, 48)
    assert len(cuda.launches) == 1


def test_the_same_shapes_in_other_dtypes_are_another_plan(cuda: Cuda) -> None:
    x, brain, half = x_of(4, 512), weights(48, 512), weights(48, 512, mx.float16)
    mixed = (brain[0], brain[1], half[2])
    for _ in range(2):
        assert upstream_patch.quantized_matmul(x, *brain).dtype == mx.bfloat16
        assert upstream_patch.quantized_matmul(x.astype(mx.float16), *half).dtype == mx.float16
        assert upstream_patch.quantized_matmul(x, *mixed).dtype == ops.stock_quantized_matmul(x, *mixed).dtype
    assert [launch["variant"].dtype for launch in cuda.launches] == ["bf16", "f16"] * 2


def test_a_transformation_in_one_thread_does_not_touch_another(cuda: Cuda) -> None:
    given, inside, done = weights(48, 512), Event(), Event()

    def loss(x: Any) -> Any:
        inside.set()
        assert done.wait(10)
        return mx.quantized_matmul(x, *given).sum()

    with upstream_patch.installed():
        trainer = Thread(target=lambda: mx.grad(loss)(x_of(4, 512)))
        trainer.start()
        assert inside.wait(10)
        upstream_patch.quantized_matmul(x_of(4, 512), *given)
        done.set()
        trainer.join()
    assert len(cuda.launches) == 1


def test_what_the_launch_refuses_on_a_gpu_is_not_hidden(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Any:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(ops, "_compiled", lambda variant, batch: refuse)
    monkeypatch.setattr(ops, "_on_gpu", lambda stream: True)
    with pytest.raises(ValueError, match="a fault of ours"):
        upstream_patch.quantized_matmul(x_of(4, 512), *weights(48, 512))


@pytest.mark.parametrize("stream", [None, mx.cpu, mx.gpu, mx.Device(mx.gpu), mx.Device(mx.cpu), "gpu", 3])
def test_which_streams_are_a_gpus(stream: Any) -> None:
    expected = mx.default_device() == mx.Device(mx.gpu) if stream is None else stream in (mx.gpu, mx.Device(mx.gpu))
    assert ops._on_gpu(stream) is expected


def test_what_only_looks_like_an_array_is_refused_by_mlx(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(inputs: list[Any], **_: Any) -> Any:
        assert not all(isinstance(each, mx.array) for each in inputs)
        raise TypeError("incompatible function arguments")

    monkeypatch.setattr(ops, "_compiled", lambda variant, batch: typed)
    x: Any = SimpleNamespace(shape=(4, 512), dtype=mx.bfloat16)
    with pytest.raises(TypeError, match="quantized_matmul"):
        upstream_patch.quantized_matmul(x, *weights(48, 512))


def test_the_folded_route_keeps_shapeless_compilation(cuda: Cuda) -> None:
    given = weights(128, 512)
    compiled = mx.compile(lambda x: upstream_patch.quantized_matmul(x, *given), shapeless=True)
    for rows in (64, 80):
        x = x_of(rows, 1, 512)
        mx.eval(x, *given)
        assert compiled(x).shape == (rows, 1, 128)


def test_plans_are_bounded(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_MOST_PLANS", 3)
    given = weights(48, 512)
    for rows in range(1, 8):
        upstream_patch.quantized_matmul(x_of(rows, 512), *given)
    assert max(len(ops._plans), len(ops._latest)) <= 3
    assert len(cuda.launches) == 7


def test_the_kernel_hook_refuses_what_the_kernel_does_not_take(cuda: Cuda) -> None:
    with pytest.raises(ValueError, match="does not take"):
        ops.small_m_call(x_of(33, 512), *weights(48, 512))
    ops.small_m_call(x_of(4, 512), *weights(48, 512), init_value=1.0)
    assert cuda.launches[0]["init_value"] == 1.0


def test_without_cuda_everything_is_mlx() -> None:
    x, given = x_of(4, 512), weights(48, 512)
    assert mx.array_equal(upstream_patch.quantized_matmul(x, *given), ops.stock_quantized_matmul(x, *given))
