"""Floating modes and batches of weights: what reaches our kernel, what MLX is left, and how the kernel reads shapes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]'")
import upstream_patch  # noqa: E402
from upstream_patch import kernels, ops  # noqa: E402
from upstream_patch.kernels import fast  # noqa: E402
from upstream_patch.kernels.tuning import FORMATS, SmallM  # noqa: E402
from upstream_patch.problem import FLOATING  # noqa: E402

MODES = list(FLOATING)


def ours(*arguments: Any, **more: Any) -> Any:
    call: Any = upstream_patch.quantized_matmul
    return call(*arguments, **more)


def stock(*arguments: Any, **more: Any) -> Any:
    call: Any = ops.stock_quantized_matmul
    return call(*arguments, **more)


Launches = list[dict[str, Any]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """What our kernel is called with on an H200 that launches nothing."""
    launched: Launches = []

    def compiled(variant: kernels.Variant, batch: bool) -> Callable[..., list[Any]]:
        def kernel(stream: Any = None, **arguments: Any) -> list[Any]:
            if stream is not None and stream != mx.gpu:
                raise ValueError("[custom_kernel] Only supports the GPU.")
            launched.append({"variant": variant, "batch": batch, **arguments})
            return [mx.zeros(arguments["output_shapes"][0], arguments["output_dtypes"][0])]

        return kernel

    monkeypatch.setattr(ops, "_device", lambda: ((9, 0), 132))
    monkeypatch.setattr(ops, "_compiled", compiled)
    monkeypatch.setattr(ops, "_plans", {})
    monkeypatch.setattr(ops, "_latest", {})
    return launched


def weights(mode: str, n: int = 48, k: int = 512, entries: int = 0) -> Any:
    """w and scales, and biases where the mode has them; ``entries`` of them, if any."""
    made = mx.quantize(mx.random.normal((n, k), key=mx.random.key(n)), mode=mode)
    parts = [part if part.dtype in (mx.uint32, mx.uint8) else part.astype(mx.bfloat16) for part in made]
    return tuple(mx.stack([part] * entries) if entries else part for part in parts)


def x_of(*shape: int, dtype: Any = None) -> Any:
    return mx.random.normal(shape, key=mx.random.key(1)).astype(dtype or mx.bfloat16)


def alike(*arguments: Any, **more: Any) -> None:
    """Ours raises what MLX raises, or gives what MLX gives."""
    try:
        wanted = stock(*arguments, **more)
    except Exception as error:
        with pytest.raises(type(error)) as raised:
            ours(*arguments, **more)
        # a TypeError ends with the call's arguments as they reached MLX, where ours are spelled out
        assert str(raised.value).partition("Invoked with")[0] == str(error).partition("Invoked with")[0]
    else:
        assert mx.array_equal(ours(*arguments, **more), wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("mode", MODES)
def test_floating_modes_take_the_kernel_with_defaults_and_without(launches: Launches, mode: str, dtype: str) -> None:
    x, (w, s), (bits, group) = x_of(4, 512, dtype=getattr(mx, dtype)), weights(mode), FLOATING[mode]
    ours(x, w, s, mode=mode)
    ours(x, w, s, None, True, group, bits, "".join([mode[:2], mode[2:]]))
    ours(x, w, scales=s, bits=bits, mode=mode)
    assert [launch["variant"].tuning.format for launch in launches] == [(bits, group, mode)] * 3
    assert launches[0]["output_shapes"] == [(4, 48)] and launches[0]["output_dtypes"] == [x.dtype]
    assert [len(launch["inputs"]) for launch in launches] == [3] * 3
    ops.small_m_call(x, w, s, group_size=group, bits=bits, mode=mode, init_value=7.0)
    assert launches[3]["init_value"] == 7.0


@pytest.mark.parametrize(
    "more",
    [
        {"mode": "mxfp4", "group_size": 64},
        {"mode": "mxfp4", "bits": 8},
        {"mode": "mxfp4", "bits": 4.0},
        {"mode": "mxfp4", "group_size": True},
        {"mode": "mxfp4", "group_size": 0},
        {"mode": "nvfp4"},
        {"mode": "mxfp8"},
        {"mode": "affine"},
        {"mode": "mxfp5"},
        {"mode": None},
        {"mode": np.array(["mxfp4"])},
        {"mode": "mxfp4", "transpose": False},
        {"mode": "mxfp4", "transpose": 1},
        {"mode": "mxfp4", "stream": mx.cpu},
        {"mode": "mxfp4", "group_size": []},
        {},
    ],
    ids=repr,
)
def test_other_arguments_are_mlxs_to_judge(launches: Launches, more: dict[str, Any]) -> None:
    x, given = x_of(4, 512), weights("mxfp4")
    usual: list[dict[str, Any]] = [{}, {"group_size": 32, "bits": 4}]
    for explicit in usual:
        ours(x, *given, mode="mxfp4", **explicit)
    launches.clear()
    for _ in range(2):  # what the first call leaves behind must not answer the second
        alike(x, *given, **more)
    assert not launches


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x, w, s: (x.astype(mx.float32), w, s), "float32"),
        (lambda x, w, s: (mx.repeat(x, 9, axis=0), w, s), "36 rows"),
        (lambda x, w, s: (x, w.astype(mx.int32), s), "words"),
        (lambda x, w, s: (x, w, s.astype(mx.bfloat16)), "scales that are no codes"),
        (lambda x, w, s: (x, w, s[:40]), "too few scales"),
        (lambda x, w, s: (x[:, :256], w, s), "another K"),
        (lambda x, w, s: (x, w, s, s), "biases"),
        (lambda x, w, s: ([1.0], w, s), "no array"),
        (lambda x, w, s: (x[0, 0], w, s), "a scalar"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_arrays_are_mlxs_to_judge(launches: Launches, change: Any, why: str) -> None:
    x, given = x_of(4, 512), weights("mxfp4")
    ours(x, *given, mode="mxfp4")
    launches.clear()
    for _ in range(2):
        alike(*change(x, *given), mode="mxfp4")
    assert not launches, why


@pytest.mark.parametrize("mode", ["affine", *MODES])
@pytest.mark.parametrize(
    ("shape", "rows"),
    [((3, 4, 512), 4), ((3, 32, 512), 32), ((1, 3, 4, 512), 4), ((3, 1, 512), 1), ((8, 3, 1, 512), 8)],
)
def test_a_batch_of_weights_takes_the_kernel(launches: Launches, mode: str, shape: tuple[int, ...], rows: int) -> None:
    x, given = x_of(*shape), weights(mode, entries=3)
    y = ours(x, *given, mode=mode)
    assert y.shape == stock(x, *given, mode=mode).shape == (*shape[:-1], 48)
    (launch,) = launches
    assert launch["batch"] and launch["grid"][1:] == (-(-rows // 16), 3)


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
@pytest.mark.parametrize(
    "shape",
    [(4, 512), (512,), (2, 3, 4, 512), (33, 3, 1, 512), (3, 33, 512), (1, 4, 512), (2, 4, 512), (8, 1, 1, 512)],
)
def test_other_batches_are_mlxs(launches: Launches, mode: str, shape: tuple[int, ...]) -> None:
    alike(x_of(*shape), *weights(mode, entries=3), mode=mode)
    four_axes: Any = [part[None] for part in weights(mode, entries=3)]
    alike(x_of(3, 4, 512), *four_axes, mode=mode)
    assert not launches


def test_weights_of_one_entry_are_rows_times_that(launches: Launches) -> None:
    given = weights("mxfp4", entries=1)
    for shape, rows in (((1, 20, 512), 20), ((5, 1, 1, 512), 5)):
        assert ours(x_of(*shape), *given, mode="mxfp4").shape == (*shape[:-1], 48)
        assert launches[-1]["grid"][1:] == (-(-rows // 16), 1)


def test_a_wide_decode_batch_is_folded_for_stock(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    real: Any = ops.stock_quantized_matmul

    def noted(x: Any, *rest: Any, **more: Any) -> Any:
        seen.append(x.shape)
        return real(x, *rest, **more)

    x, given = x_of(64, 1, 512), weights("mxfp4", n=128)
    wanted = real(x, *given, mode="mxfp4")
    monkeypatch.setattr(ops, "stock_quantized_matmul", noted)
    assert ours(x, *given, mode="mxfp4").shape == wanted.shape
    assert seen == [(64, 512)] and not launches


def test_a_launch_that_fails_on_a_gpu_is_not_hidden(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Any:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(ops, "_compiled", lambda variant, batch: refuse)
    monkeypatch.setattr(ops, "_on_gpu", lambda stream: True)
    with pytest.raises(ValueError, match="a fault of ours"):
        ours(x_of(4, 512), *weights("mxfp4"), mode="mxfp4")


def test_under_a_transformation_floating_modes_are_mlxs(launches: Launches) -> None:
    given = weights("mxfp4")
    with upstream_patch.installed():
        mx.grad(lambda x: mx.quantized_matmul(x, *given, mode="mxfp4").sum())(x_of(4, 512))
        assert not launches
        mx.quantized_matmul(x_of(4, 512), *given, mode="mxfp4")
    assert len(launches) == 1


# --- what the kernel makes of the shapes: the body's own text, compiled for the CPU

_PROBE = """
#define __shared__
#define __align__(n)
struct Probe {{
  const void* w; const void* scales; const void* biases; const void* x; void* out;
  int m, n, k; long long x_row, x_batch, out_row, out_batch;
}};
static Probe probe;
struct Kernel {{
  Kernel(Probe given, char*) {{ probe = given; }}
  void run() {{}}
}};
static char memory[1];
extern "C" void call(const int* x_shape, int x_ndim, const int* w_shape, int w_ndim, long long* sizes) {{
  const void *x = nullptr, *w = nullptr, *scales = nullptr, *biases = nullptr;
  void* out = nullptr;
  {body}
  const long long found[] = {{probe.m, probe.n, probe.k, probe.x_row, probe.x_batch, probe.out_row, probe.out_batch}};
  for (int i = 0; i < 7; ++i) sizes[i] = found[i];
}}
"""


@pytest.fixture(scope="module", params=[False, True])
def sizes_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    import subprocess

    from upstream_patch.machine import find_cxx

    found = find_cxx()
    if found is None:
        pytest.skip("no C++ compiler")
    body = fast.body(kernels.Variant("bf16", SmallM(8, 4, 2, 2)), request.param)
    body = re.sub(r"extern __shared__.*", "char* shared = memory;", body)
    folder: Path = tmp_path_factory.mktemp("body")
    (folder / "body.cpp").write_text(_PROBE.format(body=body))
    options = "-std=c++17 -shared -fPIC -nostdlib -fno-sanitize=all -o body.so body.cpp"  # zig's libraries take long
    subprocess.run([*found.command, *options.split()], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "body.so"))

    def sizes(x: tuple[int, ...], w: tuple[int, ...]) -> tuple[int, ...]:
        out = (ctypes.c_longlong * 7)()
        library.call((ctypes.c_int * len(x))(*x), len(x), (ctypes.c_int * len(w))(*w), len(w), out)
        return tuple(out)

    return request.param, sizes


def test_the_body_reads_rows_strides_and_entries_off_the_shapes(sizes_of: Any) -> None:
    batch, sizes = sizes_of
    shape: tuple[int, ...]
    if not batch:
        for shape in ((20, 512), (4, 5, 512), (20, 1, 512)):
            m, n, k, x_row, _, out_row, _ = sizes(shape, (48, 64))
            assert (m, n, k, x_row, out_row) == (20, 48, 512, 512, 48)
        assert sizes((512,), (48, 64))[:4] == (1, 48, 512, 512)
        return
    for shape in ((3, 4, 512), (1, 3, 4, 512)):
        assert sizes(shape, (3, 48, 64)) == (4, 48, 512, 512, 4 * 512, 48, 4 * 48)
    assert sizes((8, 3, 1, 512), (3, 48, 64)) == (8, 48, 512, 3 * 512, 512, 3 * 48, 48)
    assert sizes((5, 1, 1, 512), (1, 48, 64))[:4] == (5, 48, 512, 512)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_the_body_passes_the_biases_that_a_format_has(form: Any) -> None:
    variant = kernels.Variant("f16", SmallM(8, 4, 2, 2, form))
    assert ("biases" in fast.input_names(variant)) == ("biases" in fast.body(variant, False)) == form.affine
    assert f"QmmSmallM<__half, upstream_patch::{'Affine<' if form.affine else form.mode.capitalize()}" in fast.header(
        variant
    )
