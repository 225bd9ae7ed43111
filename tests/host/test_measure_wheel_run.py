"""The order of the wheel build's run, and that every arm is timed with the routes that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.correctness import Case
from upstream_patch.errors import UserError
from upstream_patch.measure import checked, inputs
from upstream_patch.measure.wheel import decode, run, timing
from upstream_patch.problem import Problem
from upstream_patch.records.schema import CaseResult, Check, CorrectnessBody, WheelDecode
from upstream_patch.series.wheel import Counts, MlxLibrary

CHECK = Check(passed=True, norm_error=0.001, max_ulp=0.5, bound="within bounds", columns=4)
MODULE = "qmm_small_m_bfloat16_affine_b4_g64_r8_w4_s2_t1"


class FakeHook:
    """Enabled or not; each call through ``enabled`` is one evaluation of our kernel."""

    last_module = MODULE

    def __init__(self) -> None:
        self.on = False
        self.taken = 0

    def enable(self, on: bool = True) -> None:
        self.on = on

    @contextmanager
    def enabled(self) -> Iterator[None]:
        self.on, self.taken = True, self.taken + 1
        yield
        self.on = False

    def counts(self) -> Counts:
        return Counts(self.taken, 0, 0)


def test_every_arm_is_timed_with_its_own_routes(ready: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is a fake one that takes 10 us with the hook enabled and 20 us without, whatever the arm's name."""
    pytest.importorskip("mlx.core")
    problem, hook = Problem(m=2, n=64, k=64), FakeHook()
    _, device = ready()
    submit = device.submit

    def by_hook(batch: Sequence[Any]) -> None:
        submit([10.0 if hook.on else 20.0] * len(batch))

    def check_row(given: Problem, x: Any, weights: inputs.Weights, *, ours: inputs.Matmul, **_: Any) -> Check:
        for triple in [weights.copies[0], *weights.copies]:
            assert inputs.call(ours, given, x, triple).shape == (2, 64)
        return CHECK

    monkeypatch.setattr(device, "submit", by_hook)
    monkeypatch.setattr(timing, "MlxDevice", lambda: device)
    monkeypatch.setattr(timing, "expected_module", lambda given: MODULE)
    monkeypatch.setattr(checked, "check_row", check_row)
    monkeypatch.setattr(inputs, "cold_copies", lambda given, l2: 3)
    (row,), left_out = timing.run_rows(hook, 1, [problem])  # type: ignore[arg-type]
    assert left_out == []
    assert (row.problem, row.copies, row.module, len(row.wheel_us)) == (problem, 3, MODULE, timing.ROUNDS)
    for times, wanted in ((row.stock_us, 20), (row.runtime_us, 20), (row.aa_us, 20), (row.wheel_us, 10)):
        assert min(times) == pytest.approx(wanted, rel=0.02)
        assert max(times) == pytest.approx(wanted, rel=0.02)
    assert not hook.on


def result(case: Case, passed: bool = True) -> CaseResult:
    return CaseResult(
        case=case.label,
        problem=case.problem,
        seed=case.seed,
        check=CHECK.model_copy(update={"passed": passed}),
        repeats_equal=20,
        rows_equal_alone=True,
        written=True,
        kernels=[MODULE],
    )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A GPU host in whose place fakes stand; what they do is in the dict."""
    mlx = MlxLibrary(tmp_path / "mlx")
    mlx.path.parent.mkdir(parents=True)
    mlx.path.write_bytes(b"library")
    given: dict[str, Any] = {"passed": True, "rows": ([], ["left out: one"]), "ahead": []}
    cases = [Case("rows", Problem(m=m, n=8, k=64)) for m in (1, 2, 3)]
    decoded = WheelDecode(
        batch=1, steps=2, stock_s=[2.0] * 3, wheel_s=[1.0] * 3, runtime_s=[1.0] * 3, same_as_runtime=True
    )

    def rows(*_: Any) -> Any:
        if isinstance(given["rows"], Exception):
            raise given["rows"]
        return given["rows"]

    fakes: dict[str, Any] = {
        "find_mlx_library": lambda: mlx,
        "matrix_here": lambda: cases,
        "WheelArms": lambda built: built,
        "run_case": lambda case, arms: result(case, given["passed"]),
        "run_cases": lambda chosen, arms, progress, processes: CorrectnessBody(cases=[result(case) for case in chosen]),
        "compile_ahead": given["ahead"].extend,
        "conditions": lambda label: [f"{label}: fine"],
        "load": lambda built, mlx: None,
        "run_rows": rows,
        "decode": lambda built, mlx: decode.Decoded([decoded], Counts(7, 1, 2), {"CUDA_X": "1"}),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(run, name, fake)
    monkeypatch.setattr(inputs, "last_level_cache", lambda machine: 1)
    return given


def test_all_of_it_is_in_the_body(machine: dict[str, Any], tmp_path: Path) -> None:
    body = run.run_wheel(tmp_path / "built.so")
    assert [case.problem.m for case in body.cases] == [1, 2, 3]
    assert body.notes == ["before: fine", "left out: one", "after: fine"]
    assert (body.calls, len(body.decode), bool(body.model)) == ({"small_m": 7, "folded": 1, "stock": 2}, 1, True)
    assert {case.problem.m for case in machine["ahead"]} >= {1, 16, 32, decode.PROMPT}
    assert run.failures(body) == []
    assert (body.every, body.decode_environment) == (1, {"CUDA_X": "1"})
    part = run.run_wheel(tmp_path / "built.so", every=2)
    assert (len(part.cases), part.planned, part.every) == (2, 3, 2)


def test_too_few_cases_for_a_record_are_not_run(machine: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 of 3 cases are too few for a record here: --every 1 at most"):
        run.run_wheel(tmp_path / "built.so", every=2, least_cases=2.7)
    assert machine["ahead"] == []


def test_decoding_can_be_left_out(machine: dict[str, Any], tmp_path: Path) -> None:
    body = run.run_wheel(tmp_path / "built.so", decoding=False)
    assert (body.decode, body.model, body.calls) == ([], {}, {})


def test_a_wrong_first_case_ends_it_at_once(machine: dict[str, Any], tmp_path: Path) -> None:
    machine["passed"] = False
    with pytest.raises(UserError, match="the first case is wrong, nothing else was tried: rows 64x8"):
        run.run_wheel(tmp_path / "built.so")
    assert machine["ahead"] == []


def test_the_matrix_is_kept_when_something_later_fails(machine: dict[str, Any], tmp_path: Path) -> None:
    machine["rows"] = UserError("no memory")
    body = run.run_wheel(tmp_path / "built.so")
    assert len(body.cases) == 3
    assert run.failures(body) == ["rows or decoding stopped: no memory"]
