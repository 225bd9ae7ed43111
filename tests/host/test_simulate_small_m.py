"""The small-M kernel in the simulator: a part of the cover, every planted fault, every deleted barrier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from upstream_patch import kernels
from upstream_patch.correctness import cover as covering
from upstream_patch.correctness import simulated
from upstream_patch.correctness.bug_cases import bug_cases
from upstream_patch.correctness.cover import (
    CASES,
    PER_TURN,
    all_picks,
    bug_launches,
    cover,
    device_launches,
    instance_launches,
    long_launches,
    turn_of,
    turning_launches,
    uncovered_pairs,
)
from upstream_patch.correctness.errors import why_wrong
from upstream_patch.correctness.schedule import FILLS
from upstream_patch.correctness.simulated import find_plants, run_sim_case
from upstream_patch.errors import UserError
from upstream_patch.kernels import Variant
from upstream_patch.kernels.tuning import DEVICE_CLASSES, FORMATS, MAX_ROWS, USUAL, Format, SmallM
from upstream_patch.problem import Problem
from upstream_patch.reference import distributions, make_inputs
from upstream_patch.routing import takes_small_m
from upstream_patch.simulate import Kernel, Placement, run_small_m, small_m_kernel
from upstream_patch.simulate.mutations import (
    ACTIVATIONS,
    EQUIVALENT,
    MXFP8,
    NVFP4,
    PLANTS,
    RAGGED,
    REGULAR,
    STREAMS,
    THREE_BITS,
    without_each_barrier,
)
from upstream_patch.simulate.small_m import EXCUSED, FILE, excused_lines

VARIANT = Variant("bf16", SmallM(8, 4, 2, 2))


def test_the_cover_has_every_instance_and_every_pair() -> None:
    cases = cover()
    assert len(cases) == CASES >= 2500
    taken = {case.variant(case.problem.m) for case in cases}
    assert taken >= set(kernels.variants(formats=[USUAL]))
    formats = {(v.tuning.format, v.dtype, v.tuning.rows) for v in taken}
    assert formats == {(form, dtype, rows) for form in FORMATS for dtype in ("bf16", "f16") for rows in (8, 16)}
    assert {case.problem.m for case in cases} == set(range(1, MAX_ROWS + 1))
    batched = {(c.problem.mode, c.problem.layout, c.problem.m > 16) for c in cases if c.problem.batch > 1}
    assert len(batched) == 4 * 2 * 2
    assert {c.distribution for c in cases if c.problem.mode == "nvfp4"} == set(distributions("nvfp4"))
    assert uncovered_pairs() == 0
    assert cases == cover()
    assert cases != cover(seed=1)
    assert {picks.device.shared_per_block for picks in all_picks()} == {99 * 1024, 163 * 1024, 227 * 1024}
    odd = [case for case in cases if case.problem.group_size == 32 and case.problem.k % 64]
    assert len(odd) > 100
    assert {case.problem.k % 64 for case in cases if case.problem.group_size == 16} == {0, 16, 32, 48}
    assert {c.placement.offsets[2] % 2 for c in cases if c.problem.mode != "affine"} == {0, 1}


@pytest.mark.needs_simulator
@pytest.mark.parametrize("case", cover()[:: CASES // 40], ids=lambda case: case.id)
def test_a_part_of_the_cover(case: covering.SimCase) -> None:
    assert run_sim_case(case).failures == ()


def test_every_instance_of_every_device_class_is_launched_in_full_and_by_turns() -> None:
    cases = instance_launches()
    assert [case.variant(case.problem.m) for case in cases] == list(kernels.variants())
    assert {case.problem.m for case in cases} == set(range(1, 17))
    for case in cases:
        tuning, p = case.variant(case.problem.m).tuning, case.problem
        assert takes_small_m(p, (9, 0))
        assert p.n == 16 * tuning.tiles + 1 and p.k == 256 * tuning.warps + p.group_size
    every = turning_launches()
    assert every == [*cases, *bug_launches()]
    turns = [turn_of(every, turn) for turn in range(-(-len(every) // PER_TURN))]
    assert [case for turn in turns for case in turn] == every
    assert turn_of(every, len(turns) + 3) == turns[3]
    assert {len(turn) for turn in turns[:-1]} == {PER_TURN} and turns[-1]


def test_the_reported_inputs_are_simulated() -> None:
    wanted = [c for c in bug_cases(full=False) if c.route == "small_m" and c.form in ("plain", "margins")]
    wanted = [c for c in wanted if c.problem.batch < 9]
    key = [(c.problem.id, c.distribution, c.seed) for c in wanted]
    assert sorted((c.problem.id, c.distribution, c.seed) for c in bug_launches()) == sorted(key)
    assert {c.problem.k for c in bug_launches()} >= {16, 32, 48, 96, 160, 224, 528, 544, 608}


@pytest.mark.needs_simulator
@pytest.mark.parametrize("case", instance_launches()[::400], ids=lambda case: case.id)
def test_some_instances(case: covering.SimCase) -> None:
    assert run_sim_case(case).failures == ()


def test_every_device_class_has_a_launch_of_its_own() -> None:
    cases = device_launches()
    assert [case.picks.name for case in cases] == [device.name for device in DEVICE_CLASSES.values()]
    assert any(case.blocks < 129 for case in cases)


def test_long_launches_have_three_passes_over_k_in_full_and_in_partial_batches() -> None:
    seen = set()
    for case in long_launches():
        tuning = case.variant(case.problem.m).tuning
        groups, tiles = case.problem.k // 64, case.problem.n // 16
        assert case.problem.n % 16 == 0
        assert groups % 8 == 0
        assert case.placement == Placement()
        seen.add((case.picks.name, tuning.rows, -(-groups // (4 * case.warps)), tiles >= tuning.tiles, tuning.tiles))
    for picks in all_picks():
        for rows in (8, 16):
            assert {passes for name, r, passes, *_ in seen if (name, r) == (picks.name, rows)} == {3, 4}
    assert {full for *_, full, batch in seen if batch > 1} == {True, False}


@pytest.mark.needs_simulator
def test_a_wait_that_only_a_third_pass_needs_is_missed_where_one_is_there() -> None:
    kernel = small_m_kernel(Variant("bf16", SmallM(8, 16, 2, 4)))
    late = kernel.edited("only in pass 0", FILE, "if (count < kStages) {", "if (count < kStages && phase.pass == 0) {")
    inputs = make_inputs(Problem(m=3, n=16, k=14336, dtype="bf16"), 1)
    where = Placement()
    variant = Variant("bf16", SmallM(8, 16, 2, 4))
    assert run_small_m(variant, 1, inputs, kernel=kernel, shared_limit=232448, placement=where).report.faults == ()
    (fault,) = run_small_m(variant, 1, inputs, kernel=late, shared_limit=232448, placement=where).report.faults
    assert fault.kind == "race"


@pytest.mark.needs_simulator
def test_every_planted_fault_and_every_deleted_barrier_is_reported() -> None:
    found = find_plants()
    assert found.failures == ()
    assert found.cases == sum(len(plant.on) for plant in PLANTS) + 2 * 6
    assert {on for plant in PLANTS for on in plant.on} == {REGULAR, RAGGED, MXFP8, NVFP4, THREE_BITS}


@pytest.mark.needs_simulator
@pytest.mark.parametrize(
    "entry",
    [
        (True, "__syncthreads(); // the partial sums of every warp are there"),
        (False, "__syncwarp(); // the chunk is whole, and every lane has left the slot that is filled next"),
    ],
)
def test_a_barrier_that_is_needed_is_no_equivalent(monkeypatch: pytest.MonkeyPatch, entry: tuple[bool, str]) -> None:
    monkeypatch.setitem(EQUIVALENT, entry, "a proof of more than twenty letters")
    (failure,) = find_plants().failures
    assert failure.startswith(f"no equivalent: race (in_order) when the barrier of {FILE}:")


@pytest.mark.needs_simulator
def test_other_bits_are_no_equivalent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that shows no fault in any order, of a kernel that rounds elsewhere."""
    real = simulated._run_broken

    def changed(kernel: Kernel, on: int, *given: Any, **how: Any) -> Any:
        inputs, run = real(kernel, on, *given, **how)
        if "copy_async_wait" in kernel.name and how.get("order") == "random":
            run.outputs[0][0, 0] ^= 1
        return inputs, run

    monkeypatch.setattr(simulated, "_run_broken", changed)
    failures = find_plants().failures
    assert len(failures) == len(EQUIVALENT)
    assert all(failure.startswith("no equivalent: other bits (random) when") for failure in failures)


def test_every_barrier_of_the_kernel_is_deleted_once() -> None:
    kernel = small_m_kernel(VARIANT)
    text = kernel.files["smxx_qmm_small_m.cuh"]
    barriers = without_each_barrier(kernel)
    assert len(barriers) == text.count("__syncthreads()") + text.count("__syncwarp()") + text.count("copy_async_wait<")
    for barrier in barriers:
        changed = barrier.kernel.files["smxx_qmm_small_m.cuh"]
        lines = [i for i, (a, b) in enumerate(zip(text.split("\n"), changed.split("\n"), strict=True), 1) if a != b]
        assert lines == [barrier.line]
    assert {line for _, line in EQUIVALENT} <= {barrier.text for barrier in barriers}


def test_a_barrier_of_any_file_and_kind_is_deleted_once() -> None:
    kernel = small_m_kernel(VARIANT)
    more = {STREAMS: "__barrier_sync_count(1, 64);\n", ACTIVATIONS: "if (a) __syncwarp(0xF);\n"}
    files = {file: more.get(file, "") + text for file, text in kernel.files.items()}
    found = without_each_barrier(replace(kernel, files=files))
    own = {barrier.file: barrier for barrier in found if barrier.file in more}
    assert len(found) == len(without_each_barrier(kernel)) + 2
    assert {(barrier.file, barrier.line) for barrier in own.values()} == {(STREAMS, 1), (ACTIVATIONS, 1)}
    firsts = {file: barrier.kernel.files[file].partition("\n")[0] for file, barrier in own.items()}
    assert firsts == {STREAMS: "", ACTIVATIONS: "if (a) "}
    files[STREAMS] = "if (__syncthreads_or(a)) return;\n" + files[STREAMS]
    with pytest.raises(UserError, match=r"^streams\.cuh has a barrier that is no statement"):
        without_each_barrier(replace(kernel, files=files))


@pytest.mark.needs_simulator
@pytest.mark.parametrize("on", [0, 1])
def test_a_blind_checker_is_noticed(monkeypatch: pytest.MonkeyPatch, on: int) -> None:
    real: Callable[..., str | None] = simulated._found

    def blind(kernel: Kernel, where: int, odd_x: bool = False) -> str | None:
        kind = real(kernel, where, odd_x)
        return None if kind == "race" and where == on else kind

    monkeypatch.setattr(simulated, "_found", blind)
    assert any("blind checker: a wait for one group too few is not found" in line for line in find_plants().failures)


def test_a_plant_that_does_not_fit_the_kernel_is_an_error() -> None:
    kernel = small_m_kernel(VARIANT)
    with pytest.raises(UserError, match="is 0 times in"):
        kernel.edited("x", "smxx_qmm_small_m.cuh", "no such text", "")
    with pytest.raises(UserError, match="is 2 times in"):
        kernel.edited("x", "smxx_qmm_small_m.cuh", "__syncthreads();", "")


def test_every_excused_line_is_there_once() -> None:
    assert len(excused_lines(small_m_kernel(VARIANT))) == len(EXCUSED)


EXCUSED_ON = {
    "load_shared_4(at + (i == 1 ? second : 4 * i))": (Format(3, 64), "bf16", SmallM(8, 4, 2, 8, Format(3, 64))),
    "load_shared_words_16(at)": (Format(8, 64), "f16", SmallM(8, 4, 2, 2, Format(8, 64))),
    "load_shared_8(at)": (USUAL, "bf16", SmallM(8, 4, 2, 2)),
    "load_shared_4(at + 4 * i)": (Format(2, 64), "bf16", SmallM(8, 4, 2, 8, Format(2, 64))),
}
"""An instance that reads at the line what nobody wrote."""


@pytest.mark.needs_simulator
@pytest.mark.parametrize("text", EXCUSED)
def test_an_excused_line_reads_what_nobody_wrote_and_the_output_does_not_depend_on_it(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, dtype, tuning = EXCUSED_ON[text]
    kernel = small_m_kernel(Variant(dtype, tuning))
    problem = Problem.model_validate(
        {"m": 3, "n": 33, "k": 832, "bits": form.bits, "group_size": form.group, "mode": form.mode, "dtype": dtype}
    )
    inputs = make_inputs(problem, 1)
    runs = [run_small_m(Variant(dtype, tuning), 1, inputs, shared_limit=232448, fill=fill) for fill in FILLS]
    for run in runs:
        assert run.report.faults == ()
        assert (run.outputs[0] == runs[0].outputs[0]).all()
    assert why_wrong(inputs, runs[0].outputs[0]) is None
    monkeypatch.delitem(EXCUSED, text)
    (fault,) = run_small_m(Variant(dtype, tuning), 1, inputs, shared_limit=232448).report.faults
    assert (fault.kind, fault.file) == ("unwritten read", FILE)
    assert text in kernel.files[FILE].split("\n")[(fault.line or 0) - 1]
