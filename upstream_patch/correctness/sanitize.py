"""Run ``exact`` under compute-sanitizer's tools, and see that each tool reports the faults that are planted for it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import upstream_patch
from upstream_patch import kernels
from upstream_patch.compile import cubins
from upstream_patch.correctness import exact
from upstream_patch.correctness.paths import Device
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.files import write_text
from upstream_patch.kernels.tuning import DEVICE_CLASSES
from upstream_patch.machine import cuda_device
from upstream_patch.records.keeping import Keeper
from upstream_patch.records.schema import SanitizerBody, SanitizerRun, Tool

PROGRAM = "compute-sanitizer"
VARIABLE = "UPSTREAM_PATCH_SANITIZER"
_FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
OPTIONS: dict[Tool, list[str]] = {
    # padding: the byte after a buffer is never another buffer's
    "memcheck": ["--leak-check", "full", "--padding", "512"],
    "racecheck": ["--racecheck-report", "analysis"],
    "initcheck": [],
    "synccheck": [],
}
ERROR_EXIT = 86
COMMON = (
    *("--error-exitcode", str(ERROR_EXIT), "--print-limit", "20", "--launch-timeout", "120"),
    # what a log does not need to know of this machine
    *("--show-backtrace", "no", "--strip-paths", "yes"),
)
TIMEOUT_S = 450
"""Of all launches under one tool."""
PLANT_TIMEOUT_S = 90
"""A planted fault may hang the GPU."""
AT_ONCE = 4
"""Processes that share the GPU. Nothing is timed here."""
_SOUND = re.compile(r"^launches: (\d+), wrong: (\d+)$", re.MULTILINE)
_TOOLS_OWN = re.compile(r"^=========.*$", re.MULTILINE)
_HEADER = "========= COMPUTE-SANITIZER"
_CLEAN = {
    _HEADER,
    "========= ERROR SUMMARY: 0 errors",
    "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    "========= LEAK SUMMARY: 0 bytes leaked in 0 allocations",
}
"""All that a tool says of a run in which it found nothing."""
_OUTPUT = re.compile(r"^output (\d+): ([0-9a-f]{64})$", re.MULTILINE)
_WRONG = re.compile(r"^wrong: .*$", re.MULTILINE)
_ERRORS = re.compile(r"^========= ERROR SUMMARY: (\d+) errors?\r?$", re.MULTILINE)
_HAZARDS = re.compile(
    r"^========= RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)\r?$", re.MULTILINE
)
_running: set[int] = set()
"""Process groups that ``_run`` started and that have not ended."""
_stopping = Event()
Runner = Callable[[Sequence[str], float], "subprocess.CompletedProcess[str]"]
"""Called with the command and its time limit, s."""
Progress = Callable[[int, int, str], None]
"""Called with (runs done, runs in all, what ended last)."""


class SanitizerFailed(UserError):
    """A tool ran and did not deliver, or is blind; nothing was recorded."""

    exit_code = 4


def arguments(program: str, tool: Tool, target: Sequence[str]) -> list[str]:
    """The command line of one run."""
    return [program, "--tool", tool, *OPTIONS[tool], *COMMON, *target]


def summary(tool: Tool, said: str) -> tuple[int, int]:
    """(errors, warnings) of the one summary line. Raises SanitizerFailed where there is none, or more than one."""
    found = (_HAZARDS if tool == "racecheck" else _ERRORS).findall(said)
    if len(found) != 1:
        raise SanitizerFailed(f"{tool} printed {len(found)} summaries, not one: {_end(said)}")
    counts = found[0] if isinstance(found[0], tuple) else (found[0], "0")
    return int(counts[0]), int(counts[1])


def read_sound(tool: Tool, code: int, said: str, planned: int) -> SanitizerRun:
    """A run over all launches; what the tool found is in the result.

    Raises SanitizerFailed where the run is not a whole one, UserError where a result was wrong.
    """
    errors, warnings = summary(tool, said)
    counts = _SOUND.findall(said)
    if len(counts) != 1:
        raise SanitizerFailed(
            f"under {tool} the program did not come to its end (exit code {code}, {errors} errors): {_end(said)}"
        )
    launches, wrong = (int(count) for count in counts[0])
    if wrong:
        raise UserError(f"{wrong} of {launches} results are wrong under {tool}: {(*_WRONG.findall(said), '')[0]}")
    if launches != planned:
        raise SanitizerFailed(f"{launches} launches under {tool}, planned were {planned}")
    if code not in ({ERROR_EXIT} if errors else {0, ERROR_EXIT} if warnings else {0}):
        raise SanitizerFailed(f"{tool} ended with exit code {code} and {errors} errors: {_end(said)}")
    own = [line.strip() for line in _TOOLS_OWN.findall(said)]
    others = [line for line in own if line not in _CLEAN]
    if not errors and not warnings and (others or _HEADER not in own):
        raise SanitizerFailed(f"{tool} counts no error and says {(*others, 'nothing of itself')[0]!r}: look at its log")
    return SanitizerRun(tool=tool, launches=launches, errors=errors, warnings=warnings, log=log_name(tool, None))


def outputs(said: Mapping[Tool, str], planned: int) -> list[str]:
    """The hash of each launch's output. Raises SanitizerFailed where a run lacks one, or two runs differ."""
    found = {tool: _OUTPUT.findall(text) for tool, text in said.items()}
    for tool, lines in found.items():
        if [int(number) for number, _ in lines] != list(range(planned)):
            raise SanitizerFailed(f"{tool}: {len(lines)} hashes of outputs for {planned} launches")
    for number, hashes in enumerate(zip(*found.values(), strict=True)):
        if len(set(hashes)) > 1:
            raise SanitizerFailed(f"launch {number} gave other bits under another tool: {', '.join(found)}")
    return [digest for _, digest in next(iter(found.values()))]


def read_planted(plant: exact.Plant, code: int, said: str) -> SanitizerRun:
    """A run with a planted fault. Raises SanitizerFailed where the tool did not report just that."""
    errors, warnings = summary(plant.tool, said)
    if f"planted {plant.name}: 1 launch" not in said.splitlines():
        raise SanitizerFailed(f"the program did not plant {plant.name} under {plant.tool}: {_end(said)}")
    if not errors or plant.says not in said or code != ERROR_EXIT:
        raise SanitizerFailed(
            f"{plant.tool} is blind: it did not report the planted fault {plant.name} ({errors} errors, exit code "
            f"{code}, {'no ' if plant.says not in said else ''}{plant.says!r}): {_end(said)}"
        )
    return SanitizerRun(
        tool=plant.tool,
        plant=plant.name,
        launches=1,
        errors=errors,
        warnings=warnings,
        log=log_name(plant.tool, plant),
    )


@contextmanager
def _ending_all(pool: ThreadPoolExecutor) -> Iterator[None]:
    """On Ctrl-C, or when one run fails, the others end too: they would hold the GPU for minutes."""
    try:
        yield
    except BaseException:
        _stopping.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for pid in tuple(_running):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        raise


def log_name(tool: Tool, plant: exact.Plant | None) -> str:
    return f"{tool}.{plant.name}.log" if plant else f"{tool}.log"


def sanitize(
    *,
    device: Device | None = None,
    program: str | None = None,
    runner: Runner | None = None,
    build: Callable[[Device, Path], None] | None = None,
    progress: Progress | None = None,
    keep: Path | None = None,
    keeper: Keeper | None = None,
) -> SanitizerBody:
    """Every tool over all launches, and once for each planted fault; the keeper's units are ``jobs``, with their logs.

    Logs are written to the folder ``keep`` before they are read, so that a run that fails can be looked at.

    Raises MissingTool without a CUDA device of a known class, compute-sanitizer or NVRTC; UserError when a result is
    wrong; SanitizerFailed when a tool did not do its work or did not report a planted fault. Faults that a tool finds
    in the sound kernel are in the body: ask ``faults``.
    """
    device = device or _device()
    program, runner = program or find(), runner or _run
    version = version_of(program, runner)
    launched = exact.launched(device)
    planned = jobs()
    keeper = keeper or Keeper(list(planned))
    opening = SanitizerBody(sanitizer_version=version, options=OPTIONS, launched=launched, runs=[])
    keeper.open(opening)
    left = {name: job for name, job in planned.items() if name not in keeper.units}
    with tempfile.TemporaryDirectory(prefix="upstream-patch-sanitize-") as folder:
        (build or _build)(device, Path(folder))

        def start(job: tuple[Tool, exact.Plant | None]) -> tuple[int, str]:
            tool, plant = job
            target = [sys.executable, "-m", "upstream_patch.correctness.exact", folder]
            if plant is None:
                done = _checked(runner, arguments(program, tool, target), TIMEOUT_S)
            else:
                done = _checked(runner, arguments(program, tool, [*target, plant.name]), PLANT_TIMEOUT_S)
            return done.returncode, done.stdout

        try:
            with ThreadPoolExecutor(AT_ONCE) as pool, _ending_all(pool):
                for (name, (tool, plant)), (code, text) in zip(
                    left.items(), pool.map(start, left.values()), strict=True
                ):
                    if keep is not None:
                        write_text(keep / name, text)
                    read = read_planted(plant, code, text) if plant else read_sound(tool, code, text, len(launched))
                    keeper.keep(name, {name: text}, runs=[read])
                    if progress is not None:
                        progress(len(keeper.units), len(planned), name)
        finally:
            _stopping.clear()
    body = keeper.body(opening)
    if any(run.errors for run in body.sound):  # a fault may change bits from run to run
        return body
    said = {tool: keeper.units[log_name(tool, None)].raw[log_name(tool, None)] for tool in OPTIONS}
    hashes = outputs(said, len(launched))
    hashed = [each.model_copy(update={"output_sha256": digest}) for each, digest in zip(launched, hashes, strict=True)]
    return body.model_copy(update={"launched": hashed})


def jobs() -> dict[str, tuple[Tool, exact.Plant | None]]:
    """Each run under a tool, by the name of its log: over all launches, then with each planted fault."""
    found: list[tuple[Tool, exact.Plant | None]] = [(tool, None) for tool in OPTIONS]
    found += [(plant.tool, plant) for plant in exact.PLANTS]
    return {log_name(*job): job for job in found}


def faults(body: SanitizerBody) -> list[str]:
    """What the tools found in the sound kernel, a line a tool; empty when nothing."""
    return [
        f"{run.tool}: {run.errors} errors, {run.warnings} warnings in {run.launches} launches (see {run.log})"
        for run in body.sound
        if run.errors or run.warnings
    ]


def find() -> str:
    """The program: ``$UPSTREAM_PATCH_SANITIZER``, then the path, then CUDA's usual folders. Raises MissingTool."""
    named = os.environ.get(VARIABLE)
    found = named or shutil.which(PROGRAM) or shutil.which(PROGRAM, path=os.pathsep.join(_FOLDERS))
    if found is None:
        raise MissingTool(f"{PROGRAM} is not installed", f"install the CUDA toolkit, or name the program in {VARIABLE}")
    return found


def _device() -> Device:
    device = cuda_device()
    if device is None:
        raise MissingTool("no CUDA device", "run on a machine with an NVIDIA GPU and its driver")
    if device[0] not in DEVICE_CLASSES:
        raise MissingTool(f"no kernel is launched on compute capability {device[0]}", "see kernels/tuning.py")
    return device


def _build(device: Device, folder: Path) -> None:
    """Compile what ``exact`` loads, with line numbers for the reports."""
    arch = DEVICE_CLASSES[device[0]].name
    for name, code in cubins(exact.units(device), arch, (*kernels.OPTIONS, "--generate-line-info")).items():
        (folder / f"{name}.cubin").write_bytes(code)


def _run(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    # the watched program must import this very package, from whatever folder we were started in
    paths = [str(Path(upstream_patch.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    with subprocess.Popen(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    ) as process:
        _running.add(process.pid)
        try:
            if _stopping.is_set():  # it was started while the others were being ended
                raise SanitizerFailed("stopped")
            said, _ = process.communicate(timeout=timeout_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # the watched program too, which holds the GPU
            raise
        finally:
            _running.discard(process.pid)
    return subprocess.CompletedProcess(process.args, process.returncode, said, "")


def _checked(runner: Runner, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Exit codes are the readers' to judge."""
    try:
        return runner(command, timeout_s)
    except (FileNotFoundError, PermissionError) as error:
        raise MissingTool(
            f"{command[0]} cannot be run ({error.strerror})", f"name the program in {VARIABLE}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SanitizerFailed(
            f"{' '.join(command[1:3])} took more than {timeout_s:.0f} s and was stopped: see what else uses the GPU"
        ) from error


def version_of(program: str, runner: Runner | None = None) -> str:
    """Raises MissingTool, or SanitizerFailed where it is another program."""
    return _version(_checked(runner or _run, [program, "--version"], PLANT_TIMEOUT_S).stdout)


def _version(said: str) -> str:
    found = re.search(r"[Vv]ersion\s+(\d[\w.]*)", said)
    if found is None:
        raise SanitizerFailed(f"the program named {PROGRAM} does not say its version: {_end(said)}")
    return found.group(1)


def _end(said: str) -> str:
    """The last lines, in one."""
    return " / ".join([line.strip() for line in said.splitlines() if line.strip()][-3:]) or "it said nothing"
