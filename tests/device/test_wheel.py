"""The series' host code in the installed MLX; ``upstream-patch wheel run`` runs and records the matrix through it."""

from __future__ import annotations

from typing import Any

import pytest

from upstream_patch.correctness import complaints, matrix, run_case
from upstream_patch.measure.wheel.arms import WheelArms, cases_of

pytestmark = [pytest.mark.needs_cuda, pytest.mark.needs_cuda_wheel]
CASES = cases_of(matrix())[:: len(cases_of(matrix())) // 8]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Any) -> None:
    assert complaints(run_case(case, WheelArms())) == []


def test_decode_batches_are_folded_for_stock() -> None:
    mx: Any = pytest.importorskip("mlx.core")
    arms = WheelArms()
    w, scales, biases = mx.quantize(mx.random.normal((256, 512)).astype(mx.bfloat16), group_size=64, bits=4)
    x = mx.random.normal((40, 1, 512)).astype(mx.bfloat16)  # more rows than our kernel takes
    flat = mx.quantized_matmul(x.reshape(40, 512), w, scales, biases)
    mx.eval(flat)
    before = arms.hook.counts()
    with arms.hook.enabled():
        y = mx.quantized_matmul(x, w, scales, biases)
        mx.eval(y)
    after = arms.hook.counts()
    assert (after.small_m - before.small_m, after.folded - before.folded, after.stock - before.stock) == (0, 1, 1)
    assert y.shape == (40, 1, 256)
    assert mx.array_equal(y.reshape(40, 256), flat).item()
    assert mx.array_equal((y + 0).reshape(40, 256), flat).item()
