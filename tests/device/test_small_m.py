"""The matrix on a CUDA device, one test a case: our kernel and the routes around it through the installed mlx."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from upstream_patch.correctness import Case, MlxArms, answer, compile_ahead, complaints, matrix, run_case

pytestmark = pytest.mark.needs_cuda


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    compile_ahead(matrix())


@pytest.mark.parametrize("case", matrix(), ids=lambda case: case.id)
def test_case(case: Case) -> None:
    assert complaints(run_case(case, MlxArms())) == []


def test_our_kernel_overwrites_whatever_the_output_held() -> None:
    arms = MlxArms()
    case = matrix()[0]
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
