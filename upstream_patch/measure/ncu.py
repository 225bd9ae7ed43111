"""Drive Nsight Compute: which arguments, one run for what shares weights, and what its report must contain.

Durations measured here are the profiler's (caches emptied, one kernel at a time). They live in ncu records only and are
never mixed with the paired timer's.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import upstream_patch
from upstream_patch import routing
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.measure.ncu_report_reader import BadReport, Expected, read_report
from upstream_patch.measure.ncu_target import check, write_plan
from upstream_patch.measure.steps import Progress, counter
from upstream_patch.measure.suites import Profiled, profile_plan
from upstream_patch.records.keeping import Keeper
from upstream_patch.records.schema import NcuBody, NcuLaunch

REQUIRED = (
    "gpu__time_duration.sum",
    "launch__registers_per_thread",
    "launch__grid_size",
    "launch__block_size",
    *(f"launch__{axis}_dim_{c}" for axis in ("grid", "block") for c in "xyz"),
)
OPTIONAL = (
    "dram__bytes_read.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_read_lookup_miss.sum",
)
"""Recorded where the GPU counts them. A GPU with its CPU's memory (GB10) may count no ``dram__``, and then only the
sectors that L2 read and did not have say what came from memory: another counter, never put in DRAM's place."""
TIMEOUT_S = 300
EXTRA_LAUNCHES = 4
"""ncu may record this many more than planned, so that an unplanned launch shows instead of being cut off."""

Runner = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
Symbol = Callable[[Profiled], str | None]

NO_PERMISSION = "ERR_NVGPUCTRPERM"


class ProfilerFailed(UserError):
    """ncu ran and did not deliver; nothing was recorded."""

    exit_code = 4


def symbol_here(item: Profiled) -> str | None:
    """What the profiler's name of the kernel must contain on this machine's CUDA device; None where nobody knows."""
    from upstream_patch import ops

    if item.arm == "ours":
        return ops.kernel_symbol(item.problem)
    device = ops.capability()
    return None if device is None else routing.KERNEL_SYMBOLS.get(routing.stock_route(item.problem, device))


def expected(plan: Sequence[Profiled], symbol: Symbol = symbol_here) -> list[Expected]:
    """The launches a report must hold, in order: one kernel an operation. Raises UserError where a name is unknown."""
    launches = []
    for item in plan:
        name = symbol(item)
        if name is None:
            raise UserError(
                f"no known kernel for {item.arm} on {item.problem.id} on this device: `upstream-patch doctor` shows "
                "the device; a plan holds only problems with a kernel of their own"
            )
        launches.append(Expected(item.problem, item.arm, name))
    return launches


def collect_arguments(
    ncu: str, report: Path, launches: Sequence[Expected], target: Sequence[str], metrics: Sequence[str]
) -> list[str]:
    """ncu's command line. The clocks are left as they are, nothing is read from config files."""
    names = "|".join(sorted({re.escape(launch.symbol) for launch in launches}))
    return [
        ncu,
        "--config-file",
        "off",
        "--force-overwrite",
        "--clock-control",
        "none",
        "--cache-control",
        "all",
        "--target-processes",
        "all",
        "--graph-profiling",
        "node",
        "--kernel-name-base",
        "function",
        "--kernel-name",
        f"regex:.*({names}).*",
        "--launch-count",
        str(len(launches) + EXTRA_LAUNCHES),
        "--metrics",
        ",".join(metrics),
        "-o",
        str(report),
        *target,
    ]


def export_arguments(ncu: str, report: Path) -> list[str]:
    return [ncu, "--config-file", "off", "--import", str(report), "--page", "raw", "--csv", "--print-units", "base"]


def profile(
    name: str = "ncu",
    *,
    progress: Progress | None = None,
    ncu: str | None = None,
    runner: Runner | None = None,
    symbol: Symbol = symbol_here,
    check: Callable[[Sequence[Profiled]], None] = check,
    keeper: Keeper | None = None,
) -> NcuBody:
    """Profile a plan of ``suites.PROFILES``, one run of ncu for each matrix of weights; the raw CSV goes to the keeper.

    Where a run of ncu fails after another one, what is complete stays, and the notes name the rest. ``ncu`` is the
    program (default: ``$UPSTREAM_PATCH_NCU``, then ``ncu`` on the path). Raises WrongResult when a planned operation is
    wrong, MissingTool when ncu, its permission or the report reader is missing, ProfilerFailed or BadReport when the
    report is not exactly what was planned.
    """
    groups = by_weights(profile_plan(name))
    launches = {unit: expected(group, symbol) for unit, group in groups.items()}
    keeper = keeper or Keeper(list(groups))
    ncu, runner = ncu or os.environ.get("UPSTREAM_PATCH_NCU", "ncu"), runner or _run
    step = counter(progress, 1 + 4 * len(groups))
    opening = NcuBody(ncu_version=_version(_checked(runner, [ncu, "--version"]).stdout), launches=[])
    step()
    keeper.open(opening)
    for unit, group in groups.items():
        if keeper.skips(unit):
            continue
        with keeper.unit(unit, ProfilerFailed, BadReport, MissingTool):
            check(group)
            step()
            measured, raw = _profiled(ncu, runner, group, launches[unit], step)
            keeper.keep(unit, {f"{unit}.csv": raw}, launches=measured)
    return keeper.body(opening.model_copy(update={"notes": keeper.notes}))


def by_weights(plan: Sequence[Profiled]) -> dict[str, list[Profiled]]:
    """The operations that share weights, by the weights' id."""
    groups: dict[str, list[Profiled]] = {}
    for item in plan:
        groups.setdefault(item.problem.weights_id, []).append(item)
    return groups


def _profiled(
    ncu: str, runner: Runner, plan: Sequence[Profiled], launches: Sequence[Expected], step: Callable[[], None]
) -> tuple[list[NcuLaunch], str]:
    """The launches of one run of ncu, and the raw CSV."""
    with tempfile.TemporaryDirectory(prefix="upstream-patch-ncu-") as folder:
        plan_file, report = Path(folder, "plan.json"), Path(folder, "profile.ncu-rep")
        write_plan(plan, plan_file)
        target = [sys.executable, "-m", "upstream_patch.measure.ncu_target", str(plan_file)]
        _collect(runner, lambda metrics: collect_arguments(ncu, report, launches, target, metrics))
        step()
        if not report.exists():
            raise ProfilerFailed(
                "ncu wrote no report: it saw no kernel of the plan; run `upstream-patch correctness` to see whether "
                "the kernels run at all"
            )
        measured = read_report(report, launches, REQUIRED, OPTIONAL)
        step()
        raw = _checked(runner, export_arguments(ncu, report)).stdout
        step()
    return measured, raw


def _collect(runner: Runner, arguments: Callable[[Sequence[str]], list[str]]) -> None:
    """ncu fails on a metric that this GPU lacks, and names it: again, without the optional ones that it named."""
    optional: Sequence[str] = OPTIONAL
    while True:
        try:
            _checked(runner, arguments((*REQUIRED, *optional)))
            return
        except ProfilerFailed as error:
            known = [metric for metric in optional if metric not in str(error)]
            if len(known) == len(optional):
                raise
            optional = known


def _run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """In a session of its own, all of which ends with it: ncu's watched program would stay on the GPU."""
    # the watched program must import this very package, from whatever folder we were started in
    paths = [str(Path(upstream_patch.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with subprocess.Popen(
        list(arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _checked(runner: Runner, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        done = runner(arguments)
    except FileNotFoundError as error:
        raise MissingTool(
            f"Nsight Compute is not installed ({arguments[0]} not found)",
            "install the CUDA toolkit's nsight-compute, or name the program in UPSTREAM_PATCH_NCU",
        ) from error
    except PermissionError as error:
        raise MissingTool(f"{arguments[0]} cannot be executed", "name the ncu program in UPSTREAM_PATCH_NCU") from error
    except subprocess.TimeoutExpired as error:
        raise ProfilerFailed(
            f"ncu took more than {TIMEOUT_S} s and was stopped: see what else uses the GPU, then run again"
        ) from error
    said = f"{done.stdout}\n{done.stderr}"
    if NO_PERMISSION in said:
        raise MissingTool(
            f"the driver refuses its counters to this user ({NO_PERMISSION})",
            "run as root, or load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0",
        )
    if done.returncode != 0:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        telling = [line for line in lines if "==ERROR==" in line or "Error" in line] or lines or ["it said nothing"]
        raise ProfilerFailed(f"ncu failed with exit code {done.returncode}: {' / '.join(telling[-3:])}")
    return done


def _version(text: str) -> str:
    found = re.search(r"Version\s+(\d[\w.]*)", text)
    if found is None:
        raise ProfilerFailed(f"the program named ncu does not say its version: {text.strip()[:80]!r}")
    return found.group(1)
