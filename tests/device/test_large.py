"""Weights past 4 GiB and more groups than a 32-bit index counts, of few distinct rows, on a CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from upstream_patch import machine
from upstream_patch.correctness.errors import check
from upstream_patch.correctness.forms import to_mlx
from upstream_patch.kernels.tuning import Format
from upstream_patch.problem import Problem
from upstream_patch.reference import from_bits, make_inputs

pytestmark = pytest.mark.needs_cuda

DISTINCT = 1031
"""A prime: where a column's bytes start goes through every alignment, and N ends inside a tile."""
K = 4096
NEEDED_BYTES = 40 << 30
"""The weights below take 24 GiB and 18 GiB."""


def columns_to_check(n: int, groups: int, row_bytes: int) -> list[int]:
    """The first columns, those where the bytes of w pass 4 GiB and the groups 2^31, and the last."""
    ends = (DISTINCT, 2**32 // row_bytes + DISTINCT // 2, 2**31 // groups + DISTINCT // 2, n)
    return [column for end in ends for column in range(end - DISTINCT, end)]


@pytest.mark.parametrize("form", [Format(2, 32), Format(4, 16, "nvfp4")], ids=["b2_g32", "nvfp4"])
@pytest.mark.parametrize("m", [7, 17])
def test_weights_that_no_32_bit_index_reaches(form: Format, m: int) -> None:
    import mlx.core as mx

    from upstream_patch.ops import small_m_call

    gpu = machine.probe().gpu
    if gpu is None or gpu.memory_bytes is None or gpu.memory_bytes < NEEDED_BYTES:
        pytest.skip(f"the GPU has less memory than {NEEDED_BYTES >> 30} GiB")
    groups = K // form.group
    copies = 2**31 // groups // DISTINCT + 2
    few = Problem(m=m, n=DISTINCT, k=K, bits=form.bits, group_size=form.group, mode=form.mode)
    n = copies * DISTINCT
    assert few.model_copy(update={"n": n}).weight_bytes > 2**32 and n * groups > 2**31 + DISTINCT
    inputs = make_inputs(few, seed=m)
    x, *distinct = to_mlx(inputs, few)
    weights: list[Any] = []
    for array in distinct:
        if array is not None:
            weights.append(mx.tile(array, (copies, 1)))
            mx.eval(weights[-1])
            assert mx.array_equal(weights[-1][-DISTINCT:], array).item(), "MLX did not repeat the rows"
    y = small_m_call(x, *weights, group_size=form.group, bits=form.bits, mode=form.mode)
    chosen = columns_to_check(n, groups, K * form.bits // 8)
    bits = np.array(mx.take(y.view(mx.uint16), mx.array(chosen, mx.uint32), axis=1))
    del y, weights
    mx.clear_cache()
    of_distinct = inputs.columns([column % DISTINCT for column in chosen])
    verdict = check(
        of_distinct.problem,
        from_bits(bits, few.dtype),
        of_distinct.reference(),
        None,
        magnitude=of_distinct.magnitude(),
        removed=of_distinct.removed(),
        seed=m,
        columns=chosen,
    )
    assert verdict.passed, verdict.bound
