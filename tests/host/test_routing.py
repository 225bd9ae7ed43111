"""Routes, stock's as read from MLX 0.32.4 and as seen on an H200, and ours."""

from __future__ import annotations

from typing import Any

import pytest

from upstream_patch.kernels.tuning import FORMATS
from upstream_patch.problem import Problem
from upstream_patch.routing import Capability, route, stock_route

H200: Capability = (9, 0)
GB10: Capability = (12, 1)
T4: Capability = (7, 5)


def problem(m: int, n: int = 4096, k: int = 4096, **more: Any) -> Problem:
    return Problem.model_validate({"m": m, "n": n, "k": k, **more})


@pytest.mark.parametrize("device", [H200, GB10])
@pytest.mark.parametrize(
    ("m", "layout", "expected"),
    [
        (1, "mk", "qmv"),
        (7, "mk", "qmv"),
        (8, "mk", "qmm_sm80"),
        (16, "1mk", "qmm_sm80"),
        (7, "b1k", "qmv"),
        (8, "b1k", "qmm_sm80"),
    ],
)
def test_stock_changes_kernels_at_8_rows(device: Capability, m: int, layout: str, expected: str) -> None:
    assert stock_route(problem(m, layout=layout), device) == expected


@pytest.mark.parametrize(
    ("given", "device", "expected"),
    [
        (problem(16, n=4000), H200, "qmm_naive"),  # N % 128
        (problem(16, dtype="f32"), H200, "qmm_naive"),
        (problem(16, bits=3), H200, "qmm_naive"),
        (problem(16, bits=8), GB10, "qmm_sm80"),
        (problem(16), T4, "qmm_naive"),
        (problem(3, k=96, group_size=32), H200, "qmv"),  # K % 64, below 8 rows
        (problem(16, k=96, group_size=32), H200, "qmv"),  # no tile kernel takes it
        (problem(1, k=64), H200, "qmv"),
        (problem(2, k=64), H200, "qmm_sm90"),  # one group spans K
        (problem(4, mode="mxfp4", group_size=32), GB10, "fp_qmv"),
        (problem(4, mode="mxfp4", group_size=32), H200, "qmv"),
        (problem(16, mode="mxfp4", group_size=32), GB10, "qmm_sm80"),
    ],
)
def test_stock_predicates(given: Problem, device: Capability, expected: str) -> None:
    assert stock_route(given, device) == expected


@pytest.mark.parametrize("layout", ["mk", "1mk", "b1k"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_ours_takes_1_to_16_rows(layout: str, dtype: str) -> None:
    for m in range(1, 17):
        assert route(problem(m, layout=layout, dtype=dtype), GB10) == "small_m"
    assert route(problem(17, dtype=dtype), GB10) == "stock"


@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_ours_takes_every_width_and_group_size(bits: int, group_size: int) -> None:
    assert route(problem(4, bits=bits, group_size=group_size), GB10) == "small_m"


@pytest.mark.parametrize(
    "more",
    [{"dtype": "f32"}, {"mode": "mxfp4", "group_size": 32}, {"m": 17}],
    ids=["f32", "mxfp4", "17 rows"],
)
def test_ours_leaves_the_rest(more: dict[str, Any]) -> None:
    assert route(problem(**({"m": 4} | more)), H200) == "stock"


def test_other_devices_keep_stock() -> None:
    assert route(problem(4), None) == "stock"
    assert route(problem(4), T4) == "stock"
    assert route(problem(4), (99, 0)) == "stock"


def test_a_wide_decode_batch_is_folded_where_stock_would_take_a_tile_kernel() -> None:
    assert route(problem(32, layout="b1k"), H200) == "stock_folded"
    assert route(problem(17, bits=8, layout="b1k"), H200) == "stock_folded"
    assert route(problem(7, dtype="f32", layout="b1k"), H200) == "stock"  # qmv reads per row either way
    assert route(problem(32, layout="mk"), H200) == "stock"
