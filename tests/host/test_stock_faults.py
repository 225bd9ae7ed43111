"""The two faults of stock's Metal kernels that reports of their own are about."""

from __future__ import annotations

import json
import re

import pytest

from upstream_patch.cli import main
from upstream_patch.correctness.stock_faults import (
    HEAD,
    SIZE,
    SMALL,
    as_int32,
    row_offset,
    run_tile,
    tile_kernel,
    tile_product,
)
from upstream_patch.problem import Problem

NAX = "mlx/backend/metal/kernels/quantized_nax.h"
EDGE = SMALL.n // 64 - 1


def test_offsets_in_32_bits() -> None:
    assert row_offset(HEAD, 1) == 64 * 16384
    assert [as_int32(each) for each in (0, SIZE - 1, SIZE, SIZE + 5, 2 * SIZE - 1, 2 * SIZE)] == [
        *(0, SIZE - 1, -SIZE, -SIZE + 5, -1, 0),
    ]
    assert row_offset(SMALL, EDGE) == SIZE


@pytest.mark.needs_metal_front
def test_what_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["upstream-patch", "reproduce", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    found = {each["id"]: each["value"] for each in json.loads(capsys.readouterr().out)}
    overflow = r"overflow at quantized_nax\.h:\d+: signed multiplication overflows"
    said = {name: found.pop(f"weight_offset.{name}.simulated") for name in ("last_tile", "first_tile_past_2_31")}
    assert all(re.fullmatch(overflow, each) for each in said.values()), said
    assert found == {
        "seen_on": "no GPU has shown these faults yet, only the simulator has, on MLX's own text",
        "weight_offset.problem": "16384x250112.b8.g64.bf16.M1",
        "weight_offset.weights": 4_097_835_008,
        "weight_offset.wrong_columns": 250112 - 131072,
        "weight_offset.last_tile.offset": 4_096_786_432,
        "weight_offset.last_tile.offset_in_32_bits": -198_180_864,
        "weight_offset.tile_before.simulated": "right",
        "fragment_tile.1x1.largest_output": 0.0,
        "fragment_tile.1x1.largest_error": 253.0,
        "fragment_tile.1x2.largest_output": 356.0,
        "fragment_tile.1x2.largest_error": 0.0,
    }


@pytest.mark.needs_metal_front
def test_a_product_of_64_bits_puts_the_offset_right() -> None:
    stock = tile_kernel(SMALL)
    fixed = stock.edited("64 bits", NAX, "wl += y_col * K_w;", "wl += y_col * static_cast<int64_t>(K_w);", 0)
    assert run_tile(SMALL, EDGE, fixed) is None
    # and what is called right is compared with the reference
    wrong = stock.edited("a row further", NAX, "wl += y_col * K_w;", "wl += (y_col + 1) * K_w;", 0)
    assert run_tile(SMALL.model_copy(update={"n": 128}), 0, wrong) is not None


@pytest.mark.needs_metal_front
def test_the_offset_is_right_wherever_it_fits() -> None:
    for problem in (Problem(m=1, n=4096, k=64), Problem(m=3, n=4096, k=128, bits=3, group_size=128, dtype="f16")):
        assert [run_tile(problem, tile) for tile in (0, 1, 63)] == [None] * 3
    assert tile_product(1, 2)[1] == 0.0
