"""Run a kernel on this machine's CPU, one fiber a lane, and say what it did wrong."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from upstream_patch.errors import UserError
from upstream_patch.simulate.arguments import check_arguments
from upstream_patch.simulate.library import NATIVE, build
from upstream_patch.simulate.lines import line_of
from upstream_patch.simulate.source import Kernel

Array = NDArray[Any]
Order = Literal["in_order", "reversed", "skew", "lockstep", "random"]
"""Which lane runs next. ``in_order``, ``reversed``: one warp as far as it can go, from the first or the last.
``skew``: so too, from the warp that the seed names. ``lockstep``: a step of each warp in turn. ``random``: any, and a
lane may be stopped at any access to shared memory or write to global memory. Async copies land late, early, or as it
falls."""
Sums = Literal["ascending", "descending", "pairwise", "exact", "truncating"]
"""How a matrix product adds its exact terms to the accumulator. ``exact``: in fp64, rounded once. ``truncating``: as
an H200's tensor cores do, terms cut two bits past the last one of the greatest exponent's."""
Check = Literal["races", "unwritten_reads", "outputs", "bounds"]
ORDERS: tuple[Order, ...] = get_args(Order)
SUMS: tuple[Sums, ...] = get_args(Sums)
CHECKS: tuple[Check, ...] = get_args(Check)
EXCUSED_MAX = 8
STEPS = 1 << 28
SECONDS = 300.0


@dataclass(frozen=True, eq=False)
class Buffer:
    """An array in its own pages between two guard pages, at their end or ``offset`` bytes after their start.

    An ``output`` begins as NaN bits; every byte of it must be written exactly once.
    """

    data: Array
    output: bool = False
    at_end: bool = False
    offset: int = 0


@dataclass(frozen=True)
class Fault:
    """The first thing that went wrong; the launch ends there."""

    kind: str
    text: str
    kernel: str
    block: tuple[int, int, int]
    lane: int | None
    """In its block; None where no single lane did it."""
    file: str | None
    line: int | None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file else ""
        who = f", lane {self.lane}" if self.lane is not None else ""
        return f"{where}{self.kind}: {self.text} [{self.kernel}, block {self.block}{who}]"


@dataclass(frozen=True)
class Stats:
    """What a launch took. ``excused_reads`` are those of shared memory nobody wrote, at lines that may."""

    seconds: float = 0.0
    buffer_bytes: int = 0
    """Of the arguments."""
    switches: int = 0
    collectives: int = 0
    barriers: int = 0
    shared_accesses: int = 0
    global_accesses: int = 0
    copies: int = 0
    excused_reads: int = 0


@dataclass(frozen=True)
class Report:
    faults: tuple[Fault, ...] = ()
    stats: Stats = field(default_factory=Stats)


@dataclass(frozen=True, eq=False)
class Run:
    """``outputs`` in the order of the arguments."""

    outputs: tuple[Array, ...]
    report: Report


class _Config(ctypes.Structure):  # mirrors native/engine.h
    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("steps", ctypes.c_uint64),
        ("seconds", ctypes.c_double),
        ("order", ctypes.c_int),
        ("sums", ctypes.c_int),
        ("checks", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
        ("shared_limit", ctypes.c_uint),
        ("fill", ctypes.c_uint),
        ("argument_count", ctypes.c_uint),
        ("named", ctypes.c_uint),
        ("excused_file", ctypes.c_char_p),
        ("excused", ctypes.c_uint * EXCUSED_MAX),
    )


_COUNTS = tuple(name for name in Stats.__dataclass_fields__ if name not in ("seconds", "buffer_bytes"))


class _Report(ctypes.Structure):
    _fields_ = (
        ("failed", ctypes.c_int),
        ("block", ctypes.c_int * 3),
        ("lane", ctypes.c_int),
        ("line", ctypes.c_int),
        ("pc", ctypes.c_uint64),
        ("kind", ctypes.c_char * 32),
        ("file", ctypes.c_char * 256),
        ("text", ctypes.c_char * 1024),
        *((name, ctypes.c_uint64) for name in _COUNTS),
    )


@cache
def _load(library: Path) -> Any:
    loaded = ctypes.CDLL(str(library))
    loaded.lane_sim_buffer.restype = ctypes.c_void_p
    loaded.lane_sim_buffer.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
    if hasattr(loaded, "lane_sim_parameters"):
        loaded.lane_sim_parameters.restype = ctypes.c_char_p
    loaded.lane_sim_release.restype = loaded.lane_sim_forget.restype = None
    return loaded


_WITH_STACKS = 24
"""Libraries that keep the stacks of their lanes for the next launch. Each lane's are two mappings of memory, and a
process may have 65,530: 60 libraries of 512 lanes."""
_recent: list[Any] = []


def _keep_stacks(native: Any) -> None:
    """Of the libraries launched last only."""
    if native in _recent:
        _recent.remove(native)
    _recent.append(native)
    if len(_recent) > _WITH_STACKS:
        _recent.pop(0).lane_sim_forget()


_launching = threading.Lock()
"""Held from the first buffer to the last output: a library has one engine, and a process one alarm."""


def run(
    kernel: Kernel,
    arguments: Sequence[Buffer | int | None],
    grid: tuple[int, int, int],
    group: tuple[int, int, int],
    *,
    shared_limit: int,
    seed: int = 0,
    order: Order = "in_order",
    sums: Sums = "ascending",
    checks: Sequence[Check] = CHECKS,
    fill: int = 0xFF,
    excused: Sequence[int] = (),
    excused_file: str = "",
    steps: int = STEPS,
    seconds: float = SECONDS,
) -> Run:
    """Launch ``grid`` blocks of ``group`` lanes. ``shared_limit`` is the device's.

    An int argument is a C int or long long, None a null pointer. Deterministic: the same arguments give the same bits
    and the same report. Shared memory starts as ``fill`` bytes in every block. The ``excused`` lines of
    ``excused_file`` may read it unwritten, or index past an array's end. A block of more than ``steps`` accesses and
    meetings is a fault, and so is a launch of more than ``seconds`` on a CPU. One launch at a time in a process: others
    wait.

    Raises UserError where an argument does not fit a CUDA kernel's parameter, SimulatorCompileError, MissingTool.
    """
    if len(excused) > EXCUSED_MAX:
        raise UserError(f"at most {EXCUSED_MAX} lines can be excused, not {len(excused)}")
    if steps < 1 or not 1e-3 <= seconds <= 1e8:
        raise UserError(f"a launch needs steps and time, not {steps} steps and {seconds:g} s")
    library = build(kernel)
    native = _load(library)
    if kernel.front == "cuda":
        check_arguments(kernel.name, native.lane_sim_parameters().decode(), arguments)
    mask = sum(1 << CHECKS.index(check) for check in set(checks))
    lines = (ctypes.c_uint * EXCUSED_MAX)(*excused)
    limits = (kernel.shared_bytes, shared_limit, fill, len(arguments), kernel.named_barriers)
    how = (steps, seconds, ORDERS.index(order), SUMS.index(sums), mask)
    config = _Config(seed, *how, *limits, excused_file.encode(), lines)
    report = _Report()
    with _launching:
        _keep_stacks(native)
        try:
            cells, outputs = _place(native, arguments)
            pointers = (ctypes.c_void_p * max(1, len(cells)))(*(ctypes.addressof(cell) for cell in cells))
            start = time.perf_counter()
            native.lane_sim_launch(
                ctypes.byref(config),
                (ctypes.c_uint * 3)(*grid),
                (ctypes.c_uint * 3)(*group),
                pointers,
                ctypes.byref(report),
            )
            seconds = time.perf_counter() - start
            results = tuple(_read(address, data) for address, data in outputs)
        finally:
            native.lane_sim_release()
    faults = (_fault(kernel, library, report),) if report.failed else ()
    buffers = sum(each.data.nbytes for each in arguments if isinstance(each, Buffer))
    return Run(results, Report(faults, Stats(seconds, buffers, **{name: getattr(report, name) for name in _COUNTS})))


def _place(native: Any, arguments: Sequence[Buffer | int | None]) -> tuple[list[Any], list[tuple[int, Array]]]:
    """C cells that hold the arguments, and where the outputs are."""
    cells: list[Any] = []
    outputs: list[tuple[int, Array]] = []
    for argument in arguments:
        if argument is None:
            cells.append(ctypes.c_void_p())
            continue
        if isinstance(argument, int):
            cells.append(ctypes.c_longlong(argument))  # little-endian: an int reads its low half
            continue
        data = np.ascontiguousarray(argument.data)
        address = native.lane_sim_buffer(data.nbytes, argument.output, argument.at_end, argument.offset)
        if not address:
            raise UserError("the simulator has no memory, or no place, for another buffer: at most 20")
        if argument.output:
            outputs.append((address, data))
        else:
            ctypes.memmove(address, data.ctypes.data, data.nbytes)
        cells.append(ctypes.c_void_p(address))
    return cells, outputs


def _read(address: int, like: Array) -> Array:
    result = np.empty_like(like)
    ctypes.memmove(result.ctypes.data, address, result.nbytes)
    return result


_ENGINE = frozenset(path.name for path in NATIVE.rglob("*.*"))
"""Where the simulator works for a lane: no place of a loop in a kernel."""
_PLACE = re.compile(r"<(?:pc (?P<pc>[0-9a-f]+)|(?P<file>[^<>:]*):(?P<line>\d+))>")


def _fault(kernel: Kernel, library: Path, report: _Report) -> Fault:
    def place(match: re.Match[str]) -> tuple[str, int] | None:
        if match["pc"] is not None:
            return line_of(library, int(match["pc"], 16))
        return Path(match["file"]).name, int(match["line"])

    def name(match: re.Match[str]) -> str:
        found = place(match)
        return f"{found[0]}:{found[1]}" if found else f"an unknown line (code at {match['pc']})"

    text = report.text.decode(errors="replace")
    file, line = Path(report.file.decode(errors="replace")).name, int(report.line)
    head, bar, rest = text.partition(" | ")
    own = _PLACE.fullmatch(head) if bar else None
    at = line_of(library, report.pc) if report.pc else None
    if at and at[0] in _ENGINE and report.kind == b"endless":
        at = None
    found = (file, line) if line else at or (place(own) if own else None)
    return Fault(
        kind=report.kind.decode(),
        text=_PLACE.sub(name, rest if own else text),
        kernel=kernel.name,
        block=(report.block[0], report.block[1], report.block[2]),
        lane=report.lane if report.lane >= 0 else None,
        file=found[0] if found else None,
        line=found[1] if found else None,
    )
