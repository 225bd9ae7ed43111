"""Our staged Metal kernels in the simulator: a part of the cover, every planted fault, what the shapes must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from typing import Any, get_args

import numpy as np
import pytest

from upstream_patch.correctness import staged_cover as covering
from upstream_patch.correctness import staged_plants, staged_simulated
from upstream_patch.correctness.simulation import compile_kernels
from upstream_patch.correctness.staged_cover import (
    CASES,
    FORMS,
    QUANTIZATIONS,
    USUAL,
    WHOLE,
    StagedCase,
    staged_cover,
    uncovered_pairs,
)
from upstream_patch.correctness.staged_plants import find_staged_plants, shown
from upstream_patch.correctness.staged_simulated import ascending, kernels_of, mean_error, run_staged_case
from upstream_patch.correctness.stock_metal import judge
from upstream_patch.kernels.metal import IMPLEMENTATION, Staged, instances, path_of, sources
from upstream_patch.problem import Problem
from upstream_patch.reference import from_bits, round_to
from upstream_patch.simulate import ORDERS, SUMS, Kernel, Placement, Run, SimulatorCompileError
from upstream_patch.simulate.library import build
from upstream_patch.simulate.metal.launches import How, run_accumulate
from upstream_patch.simulate.metal.source import Instance, metal_kernel
from upstream_patch.simulate.metal.staged import accumulate_kernel, run_staged
from upstream_patch.simulate.metal.staged_mutations import EQUIVALENT, PLANTS, Launch, mutable_kernel
from upstream_patch.simulate.metal.stock import Quantization, make_operands

SOME = (Quantization(5, 64, "bf16"), Quantization(4, 32, "f16"))


def test_the_cover_has_every_pair() -> None:
    cases = staged_cover()
    assert len(cases) == CASES
    assert uncovered_pairs() == 0
    launched = [instance for case in cases for instance in case.instances]
    for a, b in combinations(("bits", "group_size", "dtype", "bm", "batched", "split"), 2):
        pairs = {(getattr(one, a), getattr(one, b)) for one in instances()}
        assert {(getattr(one, a), getattr(one, b)) for one in launched} == pairs
    assert {case.sums for case in cases} == set(SUMS)
    assert {order for case in cases for order in (case.order, case.other_order)} == set(ORDERS)
    assert {(case.problem.m, case.form.parts) for case in cases} == set(product(USUAL.m, (1, 2, 3, 4)))
    assert {64, 128} <= {case.problem.k for case in cases}
    texts = [case for case in cases if case.from_text]
    assert {(c.problem.bits, bool(c.form.layout.shape), c.form.parts > 1) for c in texts} == set(
        product((1, 2, 3, 4, 5, 6, 8), (False,), (False, True))
    ) | {(bits, True, False) for bits in (1, 2, 3, 4, 5, 6, 8)}
    assert all(case.placement.offsets[0] % 8 == 0 for case in cases)
    assert cases == staged_cover()
    assert cases != staged_cover(seed=1)


def test_parts_of_k_are_whole_steps_and_whole_groups() -> None:
    for case in staged_cover():
        part, rest = divmod(case.problem.k, case.form.parts)
        assert rest == part % max(64, case.problem.group_size) == 0


def test_full_is_the_whole_cross_of_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    space = replace(WHOLE, m=WHOLE.m[:4], k=WHOLE.k[:2])
    monkeypatch.setattr(covering, "WHOLE", space)
    cases = staged_cover(full=True)
    of_code = {(c.quantization, c.problem.m, c.problem.n) for c in cases}
    assert of_code == set(product(QUANTIZATIONS, space.m, space.n))
    assert len(cases) == len(of_code) * 2 + 21
    assert {case.form for case in cases} == set(FORMS)
    assert {instance for case in cases for instance in case.instances} == set(instances())


def some_cases() -> list[StagedCase]:
    """Of two quantizations, and one of what mx.fast compiles."""
    chosen = [case for case in staged_cover() if case.quantization in SOME]
    return [*chosen[::4], next(case for case in chosen if case.from_text and case.form.parts > 1)]


@pytest.mark.needs_metal_front
@pytest.mark.parametrize("case", some_cases(), ids=lambda case: case.id)
def test_a_part_of_the_cover(case: StagedCase) -> None:
    assert run_staged_case(case).failures == ()


@pytest.mark.needs_metal_front
def test_what_must_not_matter_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit of another tile's output, of the stock kernel's, or of the sum of the parts, is a failure."""
    cases = [replace(c, distribution="normal", from_text=False) for c in staged_cover() if c.quantization in SOME]
    whole = next(case for case in cases if case.form.parts == 1)
    parts = next(replace(case, sums="ascending") for case in cases if case.form.parts > 1)

    def said(case: StagedCase, name: str, only: int, change: Callable[[Any], None]) -> str:
        real, calls = getattr(staged_simulated, name), iter(range(9))

        def call(*arguments: Any, **how: Any) -> Run:
            result: Run = real(*arguments, **how)
            if next(calls) == only:
                change(result.outputs[0].reshape(-1))
            return result

        with monkeypatch.context() as patched:
            patched.setattr(staged_simulated, name, call)
            return " ".join(run_staged_case(case).failures)

    def flip(values: Any) -> None:
        values.view(np.uint16)[0] ^= 1

    def double(values: Any) -> None:
        values[-1] *= 2

    assert "the schedule, the tile, or what" in said(whole, "run_staged", 1, flip)
    assert "not the bits of MLX's own kernel" in said(whole, "run_matmul", 0, flip)
    assert "sum of the parts: not that of fp32 in their order" in said(parts, "run_accumulate", 0, flip)
    assert said(parts, "run_matmul", 1, flip).count("not the bits of MLX's own kernel") == 1
    assert run_staged_case(parts).failures == ()
    monkeypatch.setattr(staged_simulated, "ascending", lambda inputs: ascending(inputs) * np.float32(1 + 2.0**-20))
    assert "part 0 is not the model's bits" in " ".join(run_staged_case(parts).failures)
    monkeypatch.setattr(staged_simulated, "STEP", 128)
    assert "barriers, not" in " ".join(run_staged_case(replace(whole, sums="exact")).failures)


@pytest.mark.needs_metal_front
def test_a_library_is_shared_by_the_cases_of_one_quantization() -> None:
    names = [kernel.name for kernel in kernels_of(staged_cover())]
    assert len(names) == len(set(names)) == 2 * len(USUAL.quantizations) + 7 + 2


@pytest.mark.needs_metal_front
def test_every_planted_fault_is_found_and_what_is_harmless_is_not() -> None:
    compile_kernels(list(staged_plants.kernels()))
    found = find_staged_plants()
    assert found.failures == ()
    assert found.cases == len(PLANTS) + len(EQUIVALENT)
    assert {plant.launch for plant in PLANTS} == set(get_args(Launch))


@pytest.mark.needs_metal_front
def test_a_blind_checker_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = staged_plants.shown

    def blind(launch: Launch, kernel: Kernel, how: How | None = None) -> object:
        kind, bits = real(launch, kernel, how)
        return (None if kind in ("race", "unwritten read") else kind), bits

    monkeypatch.setattr(staged_plants, "shown", blind)
    failures = find_staged_plants().failures
    races = [plant for plant in PLANTS if {"race", "unwritten read"} & set(plant.kinds)]
    assert len(failures) == len(races) == 8
    assert "blind checker: one tile is not found, not race (staged kernel)" in failures


@pytest.mark.needs_metal_front
@pytest.mark.parametrize("order", ORDERS)
def test_an_equivalent_change_shows_no_fault_and_the_same_bits_in_every_order(order: Any) -> None:
    wanted = staged_plants.wanted("whole")
    for change in EQUIVALENT:
        kind, bits = shown("whole", change.apply(), {"order": order, "seed": 3})
        assert kind is None
        assert bits is not None and np.array_equal(bits, wanted)


@pytest.mark.needs_metal_front
@pytest.mark.parametrize("seed", range(4))
def test_without_its_barrier_the_kernel_races_in_every_order(seed: int) -> None:
    changed = PLANTS[0].apply()
    for order in ORDERS:
        assert shown("whole", changed, {"order": order, "seed": seed})[0] in ("race", "unwritten read")


@pytest.mark.needs_metal_front
def test_x_off_by_two_bytes_and_a_byte_less_of_threadgroup_memory_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = make_operands(Problem(m=8, n=64, k=128), seed=1)
    instance = Staged(4, 64, "bf16")
    off = run_staged(instance, operands, where=Placement(offsets=(2, 0, 0, 0)))
    assert off.report.faults[0].kind == "misaligned"
    assert run_staged(instance, operands, where=Placement(offsets=(8, 4, 2, 2))).report.faults == ()
    monkeypatch.setattr(Staged, "shared_bytes", 18_431)
    short = run_staged(instance, operands)
    assert "18432" in str(short.report.faults[0])


REFUSED = {
    "bfloat16_t, float, 64, 4, 16": "ignores an odd number",
    "bfloat16_t, float, 64, 4, 128": "four simdgroups must share",
    "bfloat16_t, float, 64, 4, 64, 32": "32 values for each of 128 lanes",
    "bfloat16_t, float, 64, 4, 64, 64, 128": "32 values for each of 128 lanes",
    "bfloat16_t, float, 16, 4, 64": "must lie in one group",
    "bfloat16_t, float, 64, 7, 64": "bits must be 1 to 6, or 8",
    "float, float, 64, 4, 64": "do not fit threadgroup memory",
}


@pytest.mark.needs_metal_front
@pytest.mark.parametrize("arguments", REFUSED)
def test_a_shape_that_would_go_wrong_does_not_compile(arguments: str) -> None:
    kind = arguments.split(",", maxsplit=1)[0]
    text = f"""#include "{path_of(IMPLEMENTATION)}"
[[kernel]] void refused(
    const device uint32_t* w [[buffer(0)]], const device {kind}* x [[buffer(1)]], device float* y [[buffer(2)]],
    uint3 tid [[threadgroup_position_in_grid]], uint lid [[thread_index_in_threadgroup]],
    uint simd_gid [[simdgroup_index_in_threadgroup]]) {{
  threadgroup metal::vec<{kind}, 4> Ws[9000];
  qmm_t_nax_staged_impl<{arguments}>(w, x, x, x, y, Ws, 64, 64, 64, 0, 64, tid, lid, simd_gid);
}}
"""
    own = {**sources(), "refused.h": text}
    with pytest.raises(SimulatorCompileError) as error:
        build(metal_kernel("refused", [Instance("refused")], headers=["refused.h"], own=own))
    assert REFUSED[arguments] in error.value.log


@pytest.mark.needs_metal_front
def test_a_float_does_not_become_a_bfloat_unasked() -> None:
    path = path_of(IMPLEMENTATION)
    kernel = mutable_kernel("whole")
    cast = "static_cast<T>(float(code & kMask) * float(scale) + float(bias))"
    changed = kernel.edited("no cast", path, cast, "float(code & kMask) * float(scale) + float(bias)")
    with pytest.raises(SimulatorCompileError) as error:
        build(changed)
    assert "implicit conversion" in error.value.log


@pytest.mark.needs_metal_front
@pytest.mark.parametrize(("m", "n", "k", "parts"), [(16, 256, 1024, 4), (22, 128, 2048, 2)])
def test_parts_add_no_more_than_a_rounding_where_mlx_would_split(m: int, n: int, k: int, parts: int) -> None:
    """Mean error of a narrow projection; in the cover it is checked of every case of parts with usual values."""
    operands = make_operands(Problem(m=m, n=n, k=k), seed=5)
    partial = run_staged(Staged(4, 64, "bf16", 32, split=True), operands, parts).outputs[0]
    summed = run_accumulate(operands.problem, partial, kernel=accumulate_kernel("bf16")).outputs[0]
    assert mean_error(operands.batch[0], from_bits(summed, "bf16")) <= 1.1
    halves = round_to(round_to(partial.astype(np.float64), "bf16").sum(axis=0), "bf16")
    assert mean_error(operands.batch[0], halves) > 1.1


@pytest.mark.needs_metal_front
def test_parts_that_cancel_keep_what_16_bits_would_lose() -> None:
    """The second part is the first one's negative, but for the biases' last bit."""
    operands = make_operands(Problem(m=8, n=64, k=512), seed=2)
    (inputs,) = operands.x
    half, groups = 256, 256 // 64
    biases = inputs.biases.copy()
    biases[:, groups:] = biases[:, :groups] * (1 + 2.0**-7)
    x, packed, scales = inputs.x.copy(), inputs.packed.copy(), inputs.scales.copy()
    x[:, half:] = -x[:, :half]
    packed[:, half * 4 // 32 :] = packed[:, : half * 4 // 32]
    scales[:, groups:] = scales[:, :groups]
    rounded = round_to(biases.astype(np.float64), "bf16").astype(np.float32)
    cancelling = replace(inputs, x=x, packed=packed, scales=scales, biases=rounded)
    operands = replace(operands, x=(cancelling,), w=(cancelling,))
    partial = run_staged(Staged(4, 64, "bf16", 32, split=True), operands, 2).outputs[0]
    summed = run_accumulate(operands.problem, partial, kernel=accumulate_kernel("bf16")).outputs[0]
    assert judge(cancelling, from_bits(summed, "bf16"), True) is None
    halves = round_to(partial.astype(np.float64), "bf16").sum(axis=0)
    assert "past one rounding" in str(judge(cancelling, round_to(halves, "bf16"), True))
