"""Random problems through the simulator, launched as a random device's host code does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upstream_patch.correctness import Case
from upstream_patch.correctness.cover import SimCase, launched
from upstream_patch.correctness.simulated import run_sim_case
from upstream_patch.kernels.tuning import DEVICE_CLASSES
from upstream_patch.simulate import ORDERS, SUMS, Placement

Draw = Callable[..., Case]


def draw_launch(draw_case: Draw, data: st.DataObject) -> SimCase:
    case = draw_case(data, 70, 1400)
    capability = data.draw(st.sampled_from(sorted(DEVICE_CLASSES)), label="device")
    at_end = data.draw(st.booleans(), label="at the end of a page")
    sizes = 2, 4, 2 if case.problem.mode == "affine" else 1, 2  # of an element of x, w, scales, biases
    offsets = tuple(size * data.draw(st.integers(0, 9), label="offset") for size in sizes)
    where = Placement(at_end=True) if at_end else Placement(offsets=offsets)  # type: ignore[arg-type]
    first, second = data.draw(st.permutations(ORDERS), label="orders")[:2]
    sums = data.draw(st.sampled_from(SUMS), label="sums")
    made = launched(case.seed, capability, case.problem, where)
    return replace(made, distribution=case.distribution, order=first, other_order=second, sums=sums)


@pytest.mark.needs_simulator
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_a_random_problem_is_right(draw_case: Draw, data: st.DataObject) -> None:
    assert run_sim_case(draw_launch(draw_case, data)).failures == ()
