"""The ncu driver with a fake runner, and the report reader with a fake and with the real reading library."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.measure.checked import WrongResult
from upstream_patch.measure.ncu import OPTIONAL, REQUIRED, ProfilerFailed, profile
from upstream_patch.measure.ncu_report_reader import BadReport, Expected
from upstream_patch.measure.ncu_target import read_plan
from upstream_patch.measure.suites import Profiled, profile_plan
from upstream_patch.problem import Problem
from upstream_patch.records.keeping import Keeper
from upstream_patch.records.schema import Metric

METRICS = (*REQUIRED, *OPTIONAL)
M1 = Problem(m=1, n=4096, k=4096)
M8 = Problem(m=8, n=4096, k=4096)
LAUNCHES = [
    Expected(M1, "stock", "qmv_kernel"),
    Expected(M1, "ours", "small_m_x"),
    Expected(M8, "stock", "qmm_sm80_kernel"),
    Expected(M8, "ours", "small_m_x"),
]
NAMES = [launch.symbol for launch in LAUNCHES]


class FakeMetric:
    def __init__(self, value: Any, unit: str) -> None:
        self._value, self._unit = value, unit

    def has_value(self) -> bool:
        return self._value is not None

    def value(self) -> Any:
        return self._value

    def unit(self) -> str:
        return self._unit


class FakeAction:
    NameBase_FUNCTION = 1

    def __init__(self, name: str, **changed: Any) -> None:
        self._name = name
        self._values: dict[str, Any] = {metric: 10.0 for metric in METRICS}
        dims = {"grid": (132, 7, 1), "block": (512, 1, 1)}
        for axis, sizes in dims.items():
            self._values[f"launch__{axis}_size"] = float(sizes[0] * sizes[1] * sizes[2])
            self._values.update({f"launch__{axis}_dim_{c}": float(s) for c, s in zip("xyz", sizes, strict=True)})
        self._values |= {"dram__bytes_read.sum": 66.08e6, "gpu__time_duration.sum": 68900}
        self._values |= {key.replace("DOT", "."): value for key, value in changed.items()}

    def name(self, base: int) -> str:
        assert base == self.NameBase_FUNCTION
        return self._name

    def metric_by_name(self, name: str) -> FakeMetric | None:
        unit = "byte" if "bytes" in name else "ns" if "duration" in name else ""
        return FakeMetric(self._values[name], unit) if name in self._values else None


def _actions(names: Sequence[str] = NAMES) -> list[FakeAction]:
    return [FakeAction(name) for name in names]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> list[FakeAction]:
    """The launches the fake reading library finds, in one range; a test may change them."""
    actions = _actions()
    fake = types.ModuleType("ncu_report")
    vars(fake)["load_report"] = lambda _: [actions]
    monkeypatch.setitem(sys.modules, "ncu_report", fake)
    return actions


class Runner:
    """Plays ncu: says its version, writes a report, exports CSV."""

    def __init__(self, *, said: str = "", code: int = 0, writes: bool = True) -> None:
        self.said, self.code, self.writes = said, code, writes
        self.calls: list[list[str]] = []
        self.plan: Any = None

    def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.calls.append(list(arguments))
        if "--version" in arguments:
            said = (
                "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880) (public-release)"
            )
            return subprocess.CompletedProcess(arguments, 0, said, "")
        if "--import" in arguments:
            return subprocess.CompletedProcess(arguments, 0, '"ID","Kernel Name"\n"","byte"\n', "")
        self.plan = read_plan(Path(arguments[-1]))
        if self.writes:
            Path(arguments[arguments.index("-o") + 1]).write_bytes(b"report")
        return subprocess.CompletedProcess(arguments, self.code, self.said, "")


def _symbol(item: Profiled) -> str:
    return next(e.symbol for e in LAUNCHES if (e.problem, e.arm) == (item.problem, item.arm))


def _right(plan: Sequence[Profiled]) -> None:
    """Every operation of the plan is."""


def _profile(runner: Any, **kwargs: Any) -> Any:
    return profile("ncu-smoke", ncu="ncu", runner=runner, symbol=_symbol, **{"check": _right, **kwargs})


def test_one_run_measures_the_plan_and_keeps_the_raw_csv(report: list[FakeAction]) -> None:
    runner, steps = Runner(), list[tuple[int, int]]()
    keeper = Keeper([M1.weights_id])
    body = _profile(runner, progress=lambda a, b: steps.append((a, b)), keeper=keeper)
    assert body.ncu_version == "2025.3.1.0"
    assert [(launch.problem.m, launch.arm, launch.kernel) for launch in body.launches] == [
        (1, "stock", "qmv_kernel"),
        (1, "ours", "small_m_x"),
        (8, "stock", "qmm_sm80_kernel"),
        (8, "ours", "small_m_x"),
    ]
    first = body.launches[0]
    assert (first.grid, first.block) == ((132, 7, 1), (512, 1, 1))
    assert first.metrics["dram__bytes_read.sum"] == Metric(value=66.08e6, unit="byte")
    assert set(first.metrics) == set(METRICS)
    assert keeper.raw() == {"4096x4096.b4.g64.bf16.csv": b'"ID","Kernel Name"\n"","byte"\n'}
    assert runner.plan == list(profile_plan("ncu-smoke"))
    assert len(runner.calls) == 3
    assert steps == [(i, 5) for i in range(6)]


def test_a_wrong_operation_is_not_profiled(report: list[FakeAction]) -> None:
    def wrong(plan: Sequence[Profiled]) -> None:
        assert list(plan) == list(profile_plan("ncu-smoke"))
        raise WrongResult("M8 is wrong")

    runner = Runner()
    with pytest.raises(WrongResult, match="M8 is wrong"):
        _profile(runner, check=wrong)
    assert [call[1:] for call in runner.calls] == [["--version"]]


def test_the_arguments_leave_the_clocks_alone_and_name_every_kernel(report: list[FakeAction]) -> None:
    runner = Runner()
    _profile(runner)
    line = runner.calls[1]
    options = dict(pairwise(line))
    assert options["--clock-control"] == "none"
    assert options["--cache-control"] == "all"
    assert options["--config-file"] == "off"
    assert options["--target-processes"] == "all"
    assert int(options["--launch-count"]) > len(LAUNCHES)  # so that an unplanned launch is seen
    assert options["--metrics"].split(",") == list(METRICS)
    pattern = options["--kernel-name"].removeprefix("regex:")
    assert all(re.fullmatch(pattern, name) for name in (*NAMES, "custom_kernel_small_m_x_7"))
    assert not re.fullmatch(pattern, "copy_v")
    assert line[-4:-1] == [sys.executable, "-m", "upstream_patch.measure.ncu_target"]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (NAMES[:3], "holds 3 launches"),
        ([], r"holds 0 launches \(none\)"),
        ([*NAMES, "small_m_x"], "holds 5 launches"),
        ([NAMES[1], NAMES[0], *NAMES[2:]], "launch 0 is 'small_m_x', but stock on .*M1 should run 'qmv_kernel'"),
        ([*NAMES[:3], "qmm_sm80_kernel"], "launch 3 is 'qmm_sm80_kernel', but ours"),
    ],
)
def test_other_launches_than_planned_are_refused(report: list[FakeAction], names: list[str], says: str) -> None:
    report[:] = _actions(names)
    with pytest.raises(BadReport, match=says):
        _profile(Runner())


DRAM = [name for name in OPTIONAL if name.startswith("dram__")]


@pytest.mark.parametrize("value", [None, "n/a"])
def test_a_gpu_that_counts_no_dram_still_says_the_rest(report: list[FakeAction], value: Any) -> None:
    for action in report:
        action._values |= dict.fromkeys(DRAM, value)
    body = _profile(Runner())
    assert all(set(launch.metrics) == set(METRICS) - set(DRAM) for launch in body.launches)
    assert "lts__t_sectors_op_read_lookup_miss.sum" in body.launches[0].metrics


def test_metrics_that_ncu_does_not_know_here_are_left_out(report: list[FakeAction]) -> None:
    class Unknowing(Runner):
        """Names the first unknown metric, as an error."""

        def __call__(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
            asked = dict(pairwise(arguments)).get("--metrics", "").split(",")
            unknown = [metric for metric in asked if metric in gone]
            self.code, self.said = (9, f"==ERROR== Failed to find metric {unknown[0]}") if unknown else (0, "")
            return super().__call__(arguments)

    gone = DRAM
    for action in report:
        for name in DRAM:
            del action._values[name]
    body = _profile(Unknowing())
    assert set(body.launches[0].metrics) == set(METRICS) - set(DRAM)
    gone = [REQUIRED[0]]
    with pytest.raises(ProfilerFailed, match=f"Failed to find metric {REQUIRED[0]}"):
        _profile(Unknowing())


@pytest.mark.parametrize("value", [None, float("nan"), "n/a"])
def test_a_metric_without_value_never_becomes_zero(report: list[FakeAction], value: Any) -> None:
    report[2] = FakeAction(NAMES[2], dram__bytes_readDOTsum=value)
    with pytest.raises(BadReport, match=r"qmm_sm80_kernel has no value for dram__bytes_read\.sum"):
        _profile(Runner())


def test_a_missing_metric_is_refused(report: list[FakeAction]) -> None:
    del report[0]._values["gpu__time_duration.sum"]
    with pytest.raises(BadReport, match=r"no value for gpu__time_duration\.sum"):
        _profile(Runner())


def test_a_grid_that_contradicts_itself_is_refused(report: list[FakeAction]) -> None:
    report[1] = FakeAction(NAMES[1], launch__grid_size=7.0)
    with pytest.raises(BadReport, match="launch__grid_size is 7"):
        _profile(Runner())


@pytest.mark.parametrize(
    ("runner", "error", "says"),
    [
        (
            Runner(said="==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", code=1),
            MissingTool,
            "refuses its counters .* run as root, or",
        ),
        (
            Runner(said="==PROF== Connected\n==ERROR== The application returned an error code (1).", code=9),
            ProfilerFailed,
            r"exit code 9: ==ERROR== The application",
        ),
        (Runner(code=1), ProfilerFailed, "it said nothing"),
        (Runner(said="==WARNING== No kernels were profiled.", writes=False), ProfilerFailed, "wrote no report"),
    ],
)
def test_a_failing_profiler_is_one_line(
    report: list[FakeAction], runner: Runner, error: type[UserError], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        _profile(runner)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raised", "error", "says"),
    [
        (FileNotFoundError(), MissingTool, "not installed .*UPSTREAM_PATCH_NCU"),
        (PermissionError(), MissingTool, "cannot be executed"),
        (subprocess.TimeoutExpired("ncu", 300), ProfilerFailed, "more than 300 s"),
    ],
)
def test_an_ncu_that_does_not_start_or_end(raised: Exception, error: type[UserError], says: str) -> None:
    def runner(_: Sequence[str]) -> Any:
        raise raised

    with pytest.raises(error, match=says):
        _profile(runner)


def test_a_missing_program_is_found_out_by_the_real_runner() -> None:
    with pytest.raises(MissingTool, match="no-such-ncu not found"):
        profile("ncu-smoke", ncu="no-such-ncu", symbol=_symbol, check=_right)
    with pytest.raises(ProfilerFailed, match="does not say its version"):
        profile("ncu-smoke", ncu="true", symbol=_symbol, check=_right)
