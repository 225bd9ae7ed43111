"""What stands around the matrix on a CUDA device; ``upstream-patch correctness`` runs and records its cases."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from upstream_patch import kernels
from upstream_patch.correctness import (
    Case,
    MlxArms,
    answer,
    complaints,
    matrix,
    matrix_here,
    run_case,
)
from upstream_patch.correctness.case import DTYPES
from upstream_patch.errors import MissingTool
from upstream_patch.kernels.tuning import FORMATS, USUAL
from upstream_patch.machine import cuda_device

pytestmark = pytest.mark.needs_cuda


def _cases() -> list[Case]:
    """Of this device; where there is none, those of an H200, which are then skipped."""
    try:
        return matrix_here()
    except (MissingTool, ImportError):
        return matrix()


CASES = _cases()


@pytest.mark.parametrize("case", CASES[:: len(CASES) // 16], ids=lambda case: case.id)
def test_case(case: Case) -> None:
    assert complaints(run_case(case, MlxArms())) == []


def test_the_cases_launch_every_usual_instance_of_this_device_and_some_of_each_format() -> None:
    found = cuda_device()
    assert found is not None
    launched = {symbol for case in CASES for symbol in MlxArms().kernels(case)}
    (major, minor), _ = found
    arch = f"sm_{major}{minor}"
    for variant in kernels.variants(arch, [USUAL]):
        assert any(symbol.startswith(variant.name) for symbol in launched), variant.name
    # of the others, all of them only in the full matrix
    for dtype, form, rows in product(DTYPES, FORMATS, (8, 16)):
        names = [v.name for v in kernels.variants(arch, [form]) if (v.dtype, v.tuning.rows) == (dtype, rows)]
        assert any(symbol.startswith(name) for symbol in launched for name in names), names


def test_our_kernel_overwrites_whatever_the_output_held() -> None:
    arms = MlxArms()
    case = CASES[0]
    prepared = arms.prepare(case, answer(case))
    filled = arms.ours_over(prepared, (float("nan"), 7.0))
    np.testing.assert_array_equal(filled[0], filled[1])


def test_the_fill_reaches_the_memory_of_an_output() -> None:
    """What the sentinel rests on: a kernel that leaves its output alone shows the fill in every element."""
    mx: Any = pytest.importorskip("mlx.core")
    idle = mx.fast.cuda_kernel(
        name="leaves_its_output_alone", input_names=["x"], output_names=["y"], source="if (x[0] > 1e30f) y[0] = 0;"
    )
    (y,) = idle(
        inputs=[mx.zeros((4,))],
        output_shapes=[(1000,)],
        output_dtypes=[mx.float32],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
        init_value=7.0,
    )
    np.testing.assert_array_equal(np.array(y), np.full(1000, 7.0, np.float32))
