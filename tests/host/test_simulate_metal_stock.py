"""MLX's own Metal kernels in the simulator: a part of the cover, every planted fault, every deleted barrier."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from upstream_patch.correctness import metal_plants, metal_simulated
from upstream_patch.correctness.metal_cover import (
    ALL,
    CASES,
    SEED,
    SPACES,
    SQUARE,
    MetalCase,
    cases_of,
    metal_cover,
    uncovered_pairs,
)
from upstream_patch.correctness.metal_plants import ROUTES, find_metal_plants, shown
from upstream_patch.correctness.metal_simulated import kernels_of, run_metal_case
from upstream_patch.correctness.simulation import compile_kernels
from upstream_patch.correctness.stock_metal import held_weights, judge
from upstream_patch.errors import UserError
from upstream_patch.problem import Problem
from upstream_patch.reference import make_inputs, round_to, ulp
from upstream_patch.simulate import ORDERS, Kernel, Placement, Run
from upstream_patch.simulate.metal.launches import How, run_accumulate, run_matmul
from upstream_patch.simulate.metal.mutations import EQUIVALENT, PLANTS, mutable_kernel, without_each_barrier
from upstream_patch.simulate.metal.stock import (
    FAMILY,
    LAYOUTS,
    Quantization,
    Route,
    make_operands,
    stock_kernel,
)

SOME = (Quantization(4, 64, "bf16"), Quantization(3, 32, "f16"), Quantization(1, 128, "f32"))


def test_the_cover_has_every_quantization_and_every_pair() -> None:
    cases = metal_cover()
    assert len(cases) == sum(CASES.values())
    for route in SPACES:
        assert uncovered_pairs(route) == 0
    nax = [case for case in cases if case.route == "nax"]
    wanted = set(product((1, 2, 3, 4, 5, 6, 8), (32, 64, 128), ("bf16", "f16", "f32")))
    assert {(q.bits, q.group_size, q.dtype) for q in (case.quantization for case in nax)} == wanted
    assert {(c.problem.n % 64 == 0, bool(c.layout.shape), c.tile) for c in nax} == set(
        product((True, False), (True, False), (32, 64))
    )
    assert {case.layout.name for case in nax} == {layout.name for layout in LAYOUTS}
    assert len(ALL) == 63
    for a, b in (("bits", "group_size"), ("bits", "dtype"), ("group_size", "dtype")):
        assert {(getattr(q, a), getattr(q, b)) for q in SQUARE} == {(getattr(q, a), getattr(q, b)) for q in ALL}
    assert cases == metal_cover()
    assert cases != metal_cover(seed=1)


@pytest.mark.needs_metal_front
@pytest.mark.parametrize("seed", [SEED, 1])
def test_the_cover_launches_every_instance_that_is_compiled(seed: int) -> None:
    cases = metal_cover(seed=seed)
    compiled = {(kernel.name, call) for kernel in kernels_of(cases) for call in kernel.instances}
    assert len(compiled) == 63 * 8 + 21 * 11
    launched = {
        (stock_kernel(FAMILY[case.route], case.quantization).name, instance.call)
        for case in cases
        for instance in case.instances
    }
    assert launched == compiled


@pytest.mark.parametrize("route", ROUTES)
def test_full_is_the_whole_cross_of_what_it_says(route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    space = replace(SPACES[route], m=SPACES[route].m[:2], n=SPACES[route].n[:3])
    monkeypatch.setitem(SPACES, route, space)
    cases = cases_of(route, full=True)
    of_code = {(c.quantization, c.problem.m, c.problem.n, c.tile, c.layout) for c in cases}
    assert of_code == set(product(ALL, space.m, space.n, space.tiles, space.layouts))
    assert len(cases) == max(len(of_code), CASES[route])
    steps = {c.problem.k // max(c.problem.group_size, 32) for c in cases}
    assert len(steps) >= len(space.k)
    assert {c.order for c in cases} == set(ORDERS)


def some_cases() -> list[MetalCase]:
    """A dozen from three libraries of one family and one of the other."""
    cases = metal_cover()
    nax = [case for case in cases if case.route == "nax" and case.quantization in SOME]
    vector = [case for case in cases if case.route != "nax" and case.quantization == SQUARE[10]]
    return [*nax[::4], *vector[::4]]


@pytest.mark.needs_metal_front
@pytest.mark.parametrize("case", some_cases(), ids=lambda case: case.id)
def test_a_part_of_the_cover(case: MetalCase) -> None:
    assert run_metal_case(case).failures == ()


@pytest.mark.needs_metal_front
def test_what_must_not_matter_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit of another tile's output, or of the sum of split K's parts, is a failure."""
    known = (*SOME, SQUARE[10])
    plain = [case for case in metal_cover() if case.quantization in known and case.distribution == "normal"]
    cases = {case.route: case for case in plain}
    real: dict[str, Callable[..., Run]] = {"run_matmul": run_matmul, "run_accumulate": run_accumulate}

    def changed(name: str, only: int) -> Callable[..., Run]:
        calls = iter(range(9))

        def call(*arguments: Any, **how: Any) -> Run:
            result = real[name](*arguments, **how)
            if next(calls) == only:
                result.outputs[0].reshape(-1)[0] ^= 1
            return result

        return call

    monkeypatch.setattr(metal_simulated, "run_matmul", changed("run_matmul", 1))
    assert "the schedule, the tile, or what" in run_metal_case(cases["nax"]).failures[0]
    monkeypatch.setattr(metal_simulated, "run_accumulate", changed("run_accumulate", 0))
    assert "is not that of fp32 in their order" in run_metal_case(cases["splitk"]).failures[0]


@pytest.mark.needs_metal_front
def test_a_library_is_shared_by_the_cases_of_one_quantization() -> None:
    assert len(kernels_of(metal_cover())) == len(ALL) + len(SQUARE)
    assert {case.route for case in some_cases()} == set(ROUTES)


@pytest.mark.needs_metal_front
def test_every_planted_fault_and_every_deleted_barrier_is_reported() -> None:
    compile_kernels(list(metal_plants.kernels()))
    found = find_metal_plants()
    assert found.failures == ()
    assert found.cases == len(PLANTS) + 2 + 8


@pytest.mark.needs_metal_front
@pytest.mark.parametrize("route", ROUTES)
def test_every_barrier_is_deleted_once_and_the_proofs_fit(route: Route) -> None:
    kernel = mutable_kernel(route)
    barriers = without_each_barrier(route, kernel)
    assert len(barriers) == {"nax": 3, "wide": 0, "splitk": 9 + 3}[route]
    for barrier in barriers:
        (file,) = [name for name, text in barrier.kernel.files.items() if text != kernel.files[name]]
        pairs = zip(kernel.files[file].split("\n"), barrier.kernel.files[file].split("\n"), strict=True)
        changed = [(i, a) for i, (a, b) in enumerate(pairs, 1) if a != b]
        assert [i for i, _ in changed] == [barrier.line]
        assert re.search("(threadgroup|simdgroup)_barrier", changed[0][1])
    assert all(len(proof) > 40 for proof in EQUIVALENT.values())


@pytest.mark.needs_metal_front
@pytest.mark.parametrize("route", ["nax", "splitk"])
def test_without_an_equivalent_barrier_there_is_no_fault_and_the_same_bits(route: Route) -> None:
    _, wanted = shown(route, mutable_kernel(route))
    equivalent = [b for b in without_each_barrier(route, mutable_kernel(route)) if b.proof is not None]
    assert len(equivalent) == {"nax": 1, "splitk": 4}[route]
    for barrier, order in product(equivalent, ORDERS):
        how: How = {"order": order, "seed": 5}
        kind, got = shown(route, barrier.kernel, how)
        assert kind is None
        assert wanted is not None and got is not None
        assert np.array_equal(got, wanted)


@pytest.mark.needs_metal_front
def test_a_blind_checker_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metal_plants.shown

    def blind(route: Route, kernel: Kernel, how: How | None = None) -> object:
        kind, bits = real(route, kernel, how)
        return (None if kind in ("race", "unwritten read") else kind), bits

    monkeypatch.setattr(metal_plants, "shown", blind)
    failures = find_metal_plants().failures
    assert len([line for line in failures if "nothing is reported when the barrier" in line]) == 2 + 8
    assert any("a barrier without a fence is not found" in line for line in failures)


@pytest.mark.needs_metal_front
def test_a_plant_that_does_not_fit_the_headers_is_an_error() -> None:
    plant = replace(PLANTS[0], signature="void no_such_function(")
    with pytest.raises(UserError, match=r"no `void no_such_function\(`: the mutations fit those of MLX 0\.32\.4"):
        plant.apply(mutable_kernel("nax"))
    with pytest.raises(UserError, match="is 0 times in"):
        replace(PLANTS[0], signature="", old="no such text").apply(mutable_kernel("nax"))


def test_one_rounding_is_allowed_and_not_more() -> None:
    inputs = make_inputs(Problem(m=3, n=40, k=128, bits=1, dtype="bf16"), 1)
    weights = held_weights(inputs, True)
    assert np.array_equal(weights, round_to(inputs.weights(), "bf16"))
    assert not np.array_equal(held_weights(inputs, False), weights)
    exact = inputs.x.astype(np.float64) @ weights.T
    right = round_to(exact, "bf16")
    assert judge(inputs, right, True) is None
    wrong = right.copy()
    wrong[1, 7] *= 1 + 2.0**-7
    assert "1 of 120 elements are past one rounding of the fp64 reference, first m=1 n=7" in str(
        judge(inputs, wrong, True)
    )
    for never in (np.nan, np.inf, -np.inf):
        wrong[1, 7] = never
        assert judge(inputs, wrong, True) is not None
    assert "norm error" in str(judge(inputs, exact + 0.49 * ulp(exact, "bf16"), True))


def test_sums_in_fp32_may_wander_and_no_further() -> None:
    inputs = make_inputs(Problem(m=3, n=40, k=128, bits=4, dtype="f32"), 1)
    weights, x = held_weights(inputs, True), inputs.x.astype(np.float64)
    exact, size = x @ weights.T, np.abs(x) @ np.abs(weights).T
    wandering = 2.0**-23 * ((4 + 128 / 16) * np.abs(exact) + 4 * size / np.sqrt(128))
    assert judge(inputs, round_to(exact + wandering, "f32"), True) is None
    assert "norm error" in str(judge(inputs, round_to(exact + 3 * wandering, "f32"), True))


@pytest.mark.needs_metal_front
def test_nan_x_gives_nan_in_its_row_only() -> None:
    operands = make_operands(Problem(m=33, n=64, k=64), seed=2, distribution="nan_row")
    result = run_matmul("nax", operands, 64, Placement())
    assert result.report.faults == ()
    bad = np.isnan((result.outputs[0][0].astype(np.uint32) << 16).view(np.float32))
    assert list(np.flatnonzero(bad.all(axis=1))) == list(np.flatnonzero(bad.any(axis=1))) == [16]
