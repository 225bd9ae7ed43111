"""Arguments that our kernel does not take, in a process that has just run the same shapes through it: MLX answers."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="needs MLX: pip install 'mlx[cpu]'")
import upstream_patch  # noqa: E402
from upstream_patch import ops  # noqa: E402


class Size(enum.IntEnum):
    FOUR = 4
    GROUP = 64


class Mode(enum.StrEnum):
    AFFINE = "affine"


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What our kernel was called with, on an H200 that launches nothing; the shapes of this file have been through it.

    Every argument is then found by its value where values are compared: 4 == 4.0 == True + 3, as a key too.
    """
    launched: list[dict[str, Any]] = []

    def kernel(**arguments: Any) -> list[Any]:
        launched.append(arguments)
        return [mx.zeros(arguments["output_shapes"][0], arguments["output_dtypes"][0])]

    monkeypatch.setattr(ops, "_device", lambda: ((9, 0), 132))
    monkeypatch.setattr(ops, "_compiled", lambda variant, batch: kernel)
    monkeypatch.setattr(ops, "_plans", {})
    monkeypatch.setattr(ops, "_latest", {})
    usual: list[dict[str, Any]] = [{}, {"bits": 4}, {"group_size": 64}, {"bits": 4, "group_size": 64}]
    for more in usual:
        upstream_patch.quantized_matmul(x_of(4, 512), *weights(48, 512), **more)
    assert len(launched) == 4
    launched.clear()
    return launched


def weights(n: int, k: int, dtype: Any = None, bits: int = 4, group_size: int = 64) -> tuple[Any, Any, Any]:
    packed, scales, biases = mx.quantize(mx.random.normal((n, k), key=mx.random.key(n)), group_size, bits)
    return packed, scales.astype(dtype or mx.bfloat16), biases.astype(dtype or mx.bfloat16)


def x_of(*shape: int, dtype: Any = None) -> Any:
    return mx.random.normal(shape, key=mx.random.key(1)).astype(dtype or mx.bfloat16)


def alike(arguments: tuple[Any, ...], more: dict[str, Any]) -> None:
    """Ours raises what MLX raises, or gives what MLX gives."""
    try:
        wanted = ops.stock_quantized_matmul(*arguments, **more)
    except Exception as error:
        with pytest.raises(type(error)) as ours:
            upstream_patch.quantized_matmul(*arguments, **more)
        if len(arguments) > 2:
            # a TypeError ends with the call's arguments as they reached MLX, where ours are spelled out
            assert str(ours.value).partition("Invoked with")[0] == str(error).partition("Invoked with")[0]
    else:
        assert mx.array_equal(upstream_patch.quantized_matmul(*arguments, **more), wanted)


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ((x_of(4, 256), *weights(48, 512)), {}),
        ((x_of(4, 512), *weights(48, 512)), {"bits": 3}),
        ((x_of(4, 512), *weights(48, 512)), {"bits": 7}),
        ((x_of(4, 512), *weights(48, 512)), {"group_size": 48}),
        ((x_of(4, 512), *weights(48, 512)), {"mode": "int4"}),
        ((x_of(4, 512), weights(48, 512)[0], weights(48, 512)[1][:40], weights(48, 512)[2]), {}),
        ((x_of(4, 512), weights(48, 512)[0].astype(mx.int32), *weights(48, 512)[1:]), {}),
        ((x_of(4, 512), *weights(48, 512)[:2]), {}),
        (([1.0], *weights(48, 512)), {}),
        ((x_of(4, 512), *weights(48, 512)), {"bits": "4"}),
        ((x_of(4, 512), *weights(48, 512)), {"bits": 4.0}),
        ((x_of(4, 512), *weights(48, 512)), {"group_size": 0}),
        ((x_of(4, 512), *weights(48, 512)), {"group_size": False}),
        ((x_of(4, 512), *weights(48, 512)), {"group_size": 64.0}),
        ((x_of(4, 512), *weights(48, 512)), {"transpose": "no"}),
        ((x_of(4, 512), *weights(48, 512)), {"transpose": 1}),
        ((x_of(4, 512), *weights(48, 512)), {"group_size": []}),
        ((mx.array(1.0).astype(mx.bfloat16), *weights(48, 512)), {}),
        ((x_of(4, 512),), {}),
    ],
)
def test_wrong_arguments_raise_what_mlx_raises(
    launches: list[dict[str, Any]], arguments: tuple[Any, ...], more: dict[str, Any]
) -> None:
    with pytest.raises(Exception):  # noqa: B017 (whatever MLX raises)
        ops.stock_quantized_matmul(*arguments, **more)
    alike(arguments, more)
    assert not launches


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("bits", value) for value in (4.0, True, np.int64(4), Size.FOUR, np.float32(4), 4 + 0j, np.array(4))),
        *(("bits", value) for value in (mx.array(4), np.array([4]), "4", np.bool_(True))),
        *(("group_size", value) for value in (64.0, True, np.int64(64), Size.GROUP, np.float32(64), 64 + 0j)),
        *(("group_size", value) for value in (np.array(64), mx.array(64), np.array([64]))),
    ],
    ids=repr,
)
def test_a_number_of_another_type_is_mlxs_to_judge(launches: list[dict[str, Any]], name: str, value: Any) -> None:
    given = (x_of(4, 512), *weights(48, 512))
    for _ in range(2):  # what the first call leaves behind must not answer the second
        alike(given, {"group_size": 64, "bits": 4} | {name: value})
        assert not launches
    upstream_patch.quantized_matmul(*given, group_size=64, bits=4)
    assert len(launches) == 1, "the usual call still takes our kernel"


@pytest.mark.parametrize("kind", ["int32", "uint8", "float32", "bfloat16"])
def test_words_of_another_dtype_are_mlxs_to_judge(launches: list[dict[str, Any]], kind: str) -> None:
    w, scales, biases = weights(48, 512)
    alike((x_of(4, 512), w.astype(getattr(mx, kind)), scales, biases), {"group_size": 64, "bits": 4})
    assert not launches


@pytest.mark.parametrize("mode", [np.array(["a", "b"]), np.array(["affine"]), b"affine", None, mx.array(1), "mxfp4"])
def test_a_mode_that_is_none_is_mlxs_to_judge(launches: list[dict[str, Any]], mode: Any) -> None:
    alike((x_of(4, 512), *weights(48, 512)), {"group_size": 64, "bits": 4, "mode": mode})
    assert not launches


@pytest.mark.parametrize("mode", [Mode.AFFINE, np.str_("affine"), "".join(["aff", "ine"])])
def test_affine_in_another_string_takes_our_kernel(launches: list[dict[str, Any]], mode: str) -> None:
    upstream_patch.quantized_matmul(x_of(4, 512), *weights(48, 512), group_size=64, bits=4, mode=mode)
    assert len(launches) == 1
