"""What came of simulated launches."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field

from upstream_patch.simulate import Run


@dataclass(frozen=True)
class Outcome:
    """What came of some cases, or of the planted faults. ``failures`` are lines."""

    cases: int = 0
    launches: int = 0
    tiles: int = 0
    simulated_seconds: float = 0.0
    buffer_bytes: int = 0
    """Of all launches' arguments."""
    peak_bytes: int = 0
    """Of the process."""
    failures: tuple[str, ...] = field(default=())


def outcome_of(runs: Sequence[Run], tiles: int, failures: Sequence[str]) -> Outcome:
    """Of one case: ``tiles`` are those of all its launches."""
    kilo = 1 if os.uname().sysname == "Darwin" else 1024
    return Outcome(
        cases=1,
        launches=len(runs),
        tiles=tiles,
        simulated_seconds=sum(run.report.stats.seconds for run in runs),
        buffer_bytes=sum(run.report.stats.buffer_bytes for run in runs),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilo,
        failures=tuple(failures),
    )


def add(outcomes: Sequence[Outcome]) -> Outcome:
    """All of them as one."""
    return Outcome(
        cases=sum(o.cases for o in outcomes),
        launches=sum(o.launches for o in outcomes),
        tiles=sum(o.tiles for o in outcomes),
        simulated_seconds=sum(o.simulated_seconds for o in outcomes),
        buffer_bytes=sum(o.buffer_bytes for o in outcomes),
        peak_bytes=max((o.peak_bytes for o in outcomes), default=0),
        failures=tuple(line for o in outcomes for line in o.failures),
    )
