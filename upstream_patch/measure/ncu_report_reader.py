"""Read an Nsight Compute report, and refuse every one that is not exactly what was planned.

NVIDIA's reader opens damaged files without a word and answers ``None`` for what is missing. So the launches must match
the plan one by one, in order, and every required metric must be there: a missing value never becomes 0. An optional one
is there for every launch, or for none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.problem import Problem
from upstream_patch.records.schema import Arm, Metric, NcuLaunch


class BadReport(UserError):
    """The report is damaged, or not of the planned run; nothing was recorded."""

    exit_code = 4


@dataclass(frozen=True)
class Expected:
    """One planned launch: the kernel's name must contain ``symbol``."""

    problem: Problem
    arm: Arm
    symbol: str


def read_report(
    path: Path, launches: Sequence[Expected], required: Sequence[str], optional: Sequence[str] = ()
) -> list[NcuLaunch]:
    """The measured launches, one for each expected one. Raises BadReport, or MissingTool without the reader."""
    try:
        import ncu_report
    except (ImportError, OSError) as error:
        raise MissingTool(
            f"Nsight Compute reports cannot be read ({error})", "pip install ncu-report (x86_64 or aarch64 Linux)"
        ) from error
    try:
        context = ncu_report.load_report(str(path))
    except Exception as error:
        raise BadReport(f"{path.name} is no Nsight Compute report: {error}") from error
    actions = [action for part in context for action in part]
    names = [str(action.name(action.NameBase_FUNCTION)) for action in actions]
    _same_launches(path, names, launches)
    counted = [metric for metric in optional if any(_value(action, metric) is not None for action in actions)]
    return [_launch(path, *item, [*required, *counted]) for item in zip(actions, names, launches, strict=True)]


def _same_launches(path: Path, names: Sequence[str], launches: Sequence[Expected]) -> None:
    if len(names) != len(launches):
        raise BadReport(
            f"{path.name} holds {len(names)} launches ({_some(names)}), the plan has {len(launches)}: damaged, or an "
            "operation launched another number of kernels; nothing was recorded"
        )
    for number, (name, launch) in enumerate(zip(names, launches, strict=True)):
        if launch.symbol not in name:
            raise BadReport(
                f"{path.name}: launch {number} is {name!r}, but {launch.arm} on {launch.problem.id} should run "
                f"{launch.symbol!r}; nothing was recorded"
            )


def _launch(path: Path, action: Any, name: str, launch: Expected, metrics: Sequence[str]) -> NcuLaunch:
    values = {metric: _metric(path, action, name, metric) for metric in metrics}

    def size(axis: str) -> tuple[int, int, int]:
        x, y, z = (int(_metric(path, action, name, f"launch__{axis}_dim_{c}").value) for c in "xyz")
        return x, y, z

    grid, block = size("grid"), size("block")
    for whole, parts in (("launch__grid_size", grid), ("launch__block_size", block)):
        if whole in values and values[whole].value != math.prod(parts):
            raise BadReport(f"{path.name}: {name}: {whole} is {values[whole].value:.0f}, its axes are {parts}: damaged")
    return NcuLaunch(problem=launch.problem, arm=launch.arm, kernel=name, grid=grid, block=block, metrics=values)


def _metric(path: Path, action: Any, kernel: str, name: str) -> Metric:
    value = _value(action, name)
    if value is None:
        raise BadReport(
            f"{path.name}: {kernel} has no value for {name}: damaged, or this GPU does not count it (ncu "
            "--query-metrics lists what it counts); nothing was recorded"
        )
    return Metric(value=value, unit=str(action.metric_by_name(name).unit()))


def _value(action: Any, name: str) -> float | None:
    metric = action.metric_by_name(name)
    value = metric.value() if metric is not None and metric.has_value() else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6]) or "none"
    return shown + (", ..." if len(names) > 6 else "")
