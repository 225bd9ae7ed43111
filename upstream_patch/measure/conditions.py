"""What else was going on: clocks, throttling, temperature, power and other programs on the GPU, through NVML."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from upstream_patch.records.watched import Watched

_THROTTLE = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""NVML's clock event reasons. ``idle`` is normal between samples; the power cap is normal under load on big cards."""


_LIMITS = {0: "power", 1: "thermal", 3: "board limit", 5: "reliability"}
"""NVML's policies with a counter of the time in which one held the clocks down."""


def throttle_reasons(mask: int) -> str:
    """The names in an NVML reason mask; unknown bits as a number, so that none is dropped."""
    return ", ".join(_reasons(mask)) or "none"


def _reasons(mask: int) -> list[str]:
    unknown = mask & ~sum(_THROTTLE)
    names = [name for bit, name in _THROTTLE.items() if mask & bit]
    return names + ([f"unknown {unknown:#x}"] if unknown else [])


def conditions(label: str, index: int = 0) -> list[str]:
    """Notes for a record, one line, e.g. ``before: SM 1980 MHz, ...``; says so where NVML or a reading is missing."""
    try:
        import pynvml
    except ImportError:
        return [f"{label}: clocks and throttling were not captured: nvidia-ml-py is not installed"]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [f"{label}: clocks and throttling were not captured: {error}"]
    try:
        return [f"{label}: {_read(pynvml, index)}"]
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any, index: int) -> str:
    try:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return f"not captured: {error}"
    readings: dict[str, Callable[[], str]] = {
        "SM": lambda: f"{nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)} MHz",
        "memory": lambda: f"{nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)} MHz",
        "temperature": lambda: f"{nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)} C",
        "power": lambda: f"{nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3:.0f} W",
        "throttle reasons": lambda: throttle_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
        "other programs on the GPU": lambda: str(_others(nvml, gpu)),
    }
    said = []
    for name, read in readings.items():
        try:
            said.append(f"{name} {read()}")
        except nvml.NVMLError as error:
            said.append(f"{name} unknown ({error})")
    return ", ".join(said)


def _others(nvml: Any, gpu: Any) -> int:
    """Only counted: names and command lines of other people's programs are not ours to store.

    In a container the driver may know us by a number that means nothing there: such a one is taken for us.
    """
    programs = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
    elsewhere = any(not Path(f"/proc/{pid}").exists() for pid in programs)
    return len(programs) - (os.getpid() in programs or elsewhere)


class Watch:
    """Readings of one GPU between rounds. Each takes well below a millisecond, and none is inside a sample."""

    def __init__(self, nvml: Any, gpu: Any, then: Callable[[], None] | None) -> None:
        self._nvml, self._gpu, self._then = nvml, gpu, then
        self._begin, self._readings = time.monotonic(), 0
        self._end = self._begin
        self._first = self._counters()
        self._last = self._first
        self._reasons: dict[str, None] = {}
        self._clocks: list[int] = []
        self._others: list[int] = []
        self._read()

    def tick(self) -> None:
        """A round has ended."""
        self._read()
        if self._then is not None:
            self._then()

    def found(self) -> Watched | None:
        """None where there is no NVML."""
        if self._nvml is None:
            return None
        grown = {name: self._last[name] - before for name, before in self._first.items() if name in self._last}
        return Watched(
            readings=self._readings,
            seconds=self._end - self._begin,
            throttled_ms={name: ns / 1e6 for name, ns in grown.items()},
            reasons=list(self._reasons),
            sm_mhz=(min(self._clocks), max(self._clocks)) if self._clocks else None,
            others=max(self._others, default=None),
        )

    def _read(self) -> None:
        if self._nvml is None:
            return
        nvml, gpu = self._nvml, self._gpu
        self._readings += 1
        self._end = time.monotonic()
        self._last = self._counters()
        with suppress(nvml.NVMLError):  # what a GPU cannot say stays unsaid
            if self._readings > 1:  # before the first round the GPU may have been idle
                self._clocks.append(int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)))
        with suppress(nvml.NVMLError):
            self._others.append(_others(nvml, gpu))
        with suppress(nvml.NVMLError):
            reasons = _reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
            self._reasons |= dict.fromkeys(reason for reason in reasons if reason != "idle")

    def _counters(self) -> dict[str, int]:
        """ns under each limit so far."""
        found: dict[str, int] = {}
        for policy, name in _LIMITS.items() if self._nvml is not None else ():
            with suppress(self._nvml.NVMLError):
                found[name] = int(self._nvml.nvmlDeviceGetViolationStatus(self._gpu, policy).violationTime)
        return found


@contextmanager
def watching(then: Callable[[], None] | None = None, index: int = 0) -> Iterator[Watch]:
    """Watch the GPU; call ``tick`` after each round, which calls ``then``. Where NVML is missing, nothing is read."""
    nvml, gpu = _opened(index)
    try:
        yield Watch(nvml, gpu, then)
    finally:
        if nvml is not None:
            nvml.nvmlShutdown()


def _opened(index: int) -> tuple[Any, Any]:
    """(NVML, the GPU); (None, None) where it cannot be asked."""
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError:
        return None, None
