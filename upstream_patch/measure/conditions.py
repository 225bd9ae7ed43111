"""What else was going on: clocks, throttling, temperature, power and other programs on the GPU, through NVML."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

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


def throttle_reasons(mask: int) -> str:
    """The names in an NVML reason mask; unknown bits as a number, so that none is dropped."""
    names = [name for bit, name in _THROTTLE.items() if mask & bit]
    unknown = mask & ~sum(_THROTTLE)
    return ", ".join(names + ([f"unknown {unknown:#x}"] if unknown else [])) or "none"


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
        # only counted: names and command lines of other people's programs are not ours to store
        "other programs on the GPU": lambda: str(
            sum(process.pid != os.getpid() for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
        ),
    }
    said = []
    for name, read in readings.items():
        try:
            said.append(f"{name} {read()}")
        except nvml.NVMLError as error:
            said.append(f"{name} unknown ({error})")
    return ", ".join(said)
