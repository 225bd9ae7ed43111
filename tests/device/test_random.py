"""Random problems on a CUDA device: any format, dtype, M, N, K, layout, batch, data and memory form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from upstream_patch.correctness import Case, MlxArms, complaints, run_case

pytestmark = pytest.mark.needs_cuda
REPEATS = 3


class OursAlone(MlxArms):
    """The fp64 reference judges: MLX takes half a minute to compile a kernel of its own for many rows, here any."""

    def stock(self, prepared: Any) -> Any:
        raise LookupError("not asked")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_random_problem_is_right(draw_case: Callable[..., Case], data: st.DataObject) -> None:
    case = draw_case(data, 700, 6000)
    assert complaints(run_case(case, OursAlone(), REPEATS), REPEATS) == []
