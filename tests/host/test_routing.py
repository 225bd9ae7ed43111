"""Routes, stock's as read from MLX 0.32.4 and as seen on an H200, and ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upstream_patch.kernels.tuning import FORMATS
from upstream_patch.problem import Problem, parse_problem
from upstream_patch.records import facts, store
from upstream_patch.routing import CROSSOVER, Capability, largest_k, route, stock_route

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
        (problem(2, k=64, bits=6), H200, "qmm_sm90"),
        (problem(2, k=64, bits=3), H200, "qmv"),  # that kernel takes even widths only
        (problem(16, k=64, bits=5), H200, "qmm_naive"),
        (problem(4, mode="mxfp4", group_size=32), GB10, "fp_qmv"),
        (problem(4, mode="mxfp4", group_size=32), H200, "qmv"),
        (problem(16, mode="mxfp4", group_size=32), GB10, "qmm_sm80"),
    ],
)
def test_stock_predicates(given: Problem, device: Capability, expected: str) -> None:
    assert stock_route(given, device) == expected


@pytest.mark.parametrize("layout", ["mk", "1mk", "b1k"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_ours_takes_1_to_32_rows(layout: str, dtype: str) -> None:
    for m in range(1, 33):
        assert route(problem(m, layout=layout, dtype=dtype), GB10) == "small_m"
    assert route(problem(33, dtype=dtype), GB10) == "stock"


@pytest.mark.parametrize(("bits", "group_size", "mode"), FORMATS)
def test_ours_takes_every_format(bits: int, group_size: int, mode: str) -> None:
    assert route(problem(4, bits=bits, group_size=group_size, mode=mode), GB10) == "small_m"


def test_ours_takes_as_many_weights_as_a_grid_has_entries() -> None:
    assert route(problem(4, n=16, k=64, batch=65_535), H200) == "small_m"
    assert route(problem(4, n=16, k=64, batch=65_536), H200) == "stock"
    # only the batch of x is folded, never that of the weights
    assert route(problem(33, layout="b1k", batch=2), H200) == "stock"


@pytest.mark.parametrize(
    "more",
    [
        {"dtype": "f32"},
        {"mode": "mxfp4", "group_size": 64},
        {"m": 33},
        {"bits": 1},
        {"k": 4096 + 32},
        {"n": (1 << 30) + 1},
        {"k": 1 << 30},
        {"k": 3 << 27, "bits": 6},
    ],
    ids=["f32", "a group that mxfp4 has not", "33 rows", "1 bit", "half a group", "huge N", "huge K", "huge K, 6 bits"],
)
def test_ours_leaves_the_rest(more: dict[str, Any]) -> None:
    assert route(problem(**({"m": 4} | more)), H200) == "stock"


@pytest.mark.parametrize(("bits", "group_size", "mode"), FORMATS)
def test_ours_takes_rows_of_up_to_the_limit_of_their_bits(bits: int, group_size: int, mode: str) -> None:
    most = largest_k(bits) // group_size * group_size
    for k, expected in ((most, "small_m"), (most + group_size, "stock")):
        assert route(problem(4, k=k, bits=bits, group_size=group_size, mode=mode), GB10) == expected


def test_other_devices_keep_stock() -> None:
    assert route(problem(4), None) == "stock"
    assert route(problem(4), T4) == "stock"
    assert route(problem(4), (99, 0)) == "stock"


def test_a_wide_decode_batch_is_folded_where_stock_would_take_a_tile_kernel() -> None:
    assert route(problem(64, layout="b1k"), H200) == "stock_folded"
    assert route(problem(33, bits=8, layout="b1k"), H200) == "stock_folded"
    assert route(problem(7, dtype="f32", layout="b1k"), H200) == "stock"  # qmv reads per row either way
    assert route(problem(64, layout="mk"), H200) == "stock"


def test_the_crossover_is_what_the_records_say(root: Path) -> None:
    """Every timed row that our kernel takes and that stock does faster is named, with a chain in which it does not."""
    found = {fact.id: fact.value for fact in facts.derive(store.load_all(root / "evidence")) if not fact.stale}
    stem = "small_m.h200."
    slower: set[tuple[int, int, int]] = set()
    for name, verdict in found.items():
        if name.startswith(stem) and name.endswith(".verdict") and verdict == "SLOWER":
            of = parse_problem(name.removeprefix(stem).removesuffix(".verdict"))  # fails on a chain: none may be slower
            assert found[f"{stem}{of.id}.chain.verdict"] == "FASTER"
            slower.add((of.m, of.n, of.k))
    if any(name.startswith(stem) for name in found):  # none of a changed kernel
        assert slower == CROSSOVER[H200].slower_in_a_queue
    assert [capability for capability, crossover in CROSSOVER.items() if crossover.measured] == [H200]
