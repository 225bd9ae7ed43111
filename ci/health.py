"""May this machine measure now? The pieces come from ``upstream_patch.machine``; here is only what a device must have,
and what is true of the moment: load, heat, clocks, free memory.

Written from what the drivers document: neither a GB10 nor an M5 has run it yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from ci.machines import Device
from ci.result import Check, Health
from upstream_patch.machine import Gpu, System, diagnose, probe
from upstream_patch.measure.conditions import throttle_reasons

GB10_CAPABILITY = "12.1"
MEMORY_NEEDED = 16 * 2**30
"""Bytes: the largest weights of a suite, their copies that go past the cache, and a model for decode."""
IDLE_CELSIUS = 65
"""A machine that idles above it has just worked, or is badly cooled."""
HOLDS_BACK = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's reasons for lower clocks that spoil a measurement: slowdown by hardware, heat, or the power brake."""
FREE_PERCENT = 40
"""macOS: of the memory."""

PIECES = {"gb10": ("driver", "ncu", "ncu permission", "git", "disk"), "m5": ("NAX", "Metal compiler", "git", "disk")}
"""Of doctor's findings, those without which the suite of a device cannot end well."""


def examine(device: Device, system: System | None = None) -> Health:
    """Every check, passed or not. Runs short commands and NVML; changes nothing."""
    system = system or System()
    gpu = probe(system).gpu
    found = {finding.name: finding for finding in diagnose(system)}
    pieces = [
        Check(name=each.name, ok=each.ok, required=True, found=each.detail, fix=None if each.ok else each.fix)
        for each in (found[name] for name in PIECES[device.name])
    ]
    moment = _nvidia(system) if device.name == "gb10" else _apple(system)
    return Health(machine=device.name, checks=(_gpu(device, gpu), *pieces, *moment))


def _gpu(device: Device, gpu: Gpu | None) -> Check:
    """The whole product name: an M5 Max is another machine with another bandwidth."""
    said = "none" if gpu is None else gpu.name
    if gpu is not None and gpu.compute_capability:
        said += f", compute capability {gpu.compute_capability}"
    ok = gpu is not None and gpu.name == device.title
    if device.name == "gb10":
        ok = ok and gpu is not None and gpu.compute_capability == GB10_CAPABILITY
    fix = None if ok else f"take the label {device.name} off this runner: it is no {device.title}"
    return Check(name="GPU", ok=ok, required=True, found=said, fix=fix)


def _nvidia(system: System) -> list[Check]:
    # a GB10's GPU has the machine's memory, and NVML tells none
    available = re.search(r"^MemAvailable:\s*(\d+) kB", system.read("/proc/meminfo") or "", re.MULTILINE)
    return [_memory(int(available.group(1)) * 1024 if available else None), *_nvml(system)]


def _memory(free: int | None) -> Check:
    ok = free is not None and free >= MEMORY_NEEDED
    said = "unknown" if free is None else f"{free / 2**30:.0f} GiB available"
    fix = None if ok else f"end what holds it: {MEMORY_NEEDED / 2**30:.0f} GiB are needed"
    return Check(name="memory", ok=ok, required=True, found=said, fix=fix)


def _nvml(system: System) -> list[Check]:
    nvml = system.module("pynvml")
    if nvml is None:
        fix = "python3 -m ci setup"
        return [Check(name="NVML", ok=False, required=True, found="nvidia-ml-py is not installed", fix=fix)]
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [Check(name="NVML", ok=False, required=True, found=str(error), fix="nvidia-smi must work first")]
    try:
        return _readings(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
    except nvml.NVMLError as error:
        return [Check(name="NVML", ok=False, required=True, found=str(error), fix="nvidia-smi must work first")]
    finally:
        nvml.nvmlShutdown()


def _readings(nvml: Any, gpu: Any) -> list[Check]:
    def reading(
        name: str, read: Callable[[], int], text: Callable[[int], str], fine: Callable[[int], bool] | None, fix: str
    ) -> Check:
        """With ``fine`` the reading is required; a driver that does not tell it then fails the check."""
        try:
            value = read()
        except (nvml.NVMLError, TypeError, ValueError) as error:
            return Check(name=name, ok=False, required=fine is not None, found=f"not told ({error})", fix=fix or None)
        ok = fine is None or fine(value)
        return Check(name=name, ok=ok, required=fine is not None, found=text(value), fix=None if ok else fix)

    def others() -> int:
        return sum(each.pid != os.getpid() for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu))

    return [
        reading("other programs", others, str, lambda n: n == 0, "nvidia-smi names them; end them"),
        reading(
            "temperature",
            lambda: int(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            lambda value: f"{value} C",
            lambda value: value <= IDLE_CELSIUS,
            f"let it cool to {IDLE_CELSIUS} C",
        ),
        reading(
            "clocks held back",
            lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
            throttle_reasons,
            lambda mask: not mask & HOLDS_BACK,
            "heat or power holds the clocks back: see to cooling and the power supply",
        ),
        reading("SM clock", lambda: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)), _mhz, None, ""),
        reading("memory clock", lambda: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)), _mhz, None, ""),
        reading("power", lambda: int(nvml.nvmlDeviceGetPowerUsage(gpu)), lambda mw: f"{mw / 1e3:.0f} W", None, ""),
    ]


def _mhz(value: int) -> str:
    return f"{value} MHz"


def _apple(system: System) -> list[Check]:
    level = re.fullmatch(r"[0-9]+", system.run(["sysctl", "-n", "kern.memorystatus_level"]).out.strip())
    free = level is not None and int(level.group()) >= FREE_PERCENT
    mains = "AC Power" in system.run(["pmset", "-g", "batt"]).out
    said = f"{level.group() if level else 'unknown'} % free"
    return [
        _said("memory", free, said, f"end what holds it: {FREE_PERCENT} % must be free"),
        _heat(system),
        _said("power source", mains, "AC Power" if mains else "no mains", "plug it in"),
        _power_mode(system),
        _xcode(system),
    ]


def _heat(system: System) -> Check:
    """By what pmset says of warnings and limits; what it does not say is not taken for cool."""
    answer = system.run(["pmset", "-g", "therm"])
    limits = re.findall(r"CPU_(?:Speed|Scheduler)_Limit\s*=\s*([0-9]+)", answer.out)
    levels = re.findall(r"(?:thermal|performance) warning level\s*=\s*([0-9]+)", answer.out, re.IGNORECASE)
    told = bool(limits or levels) or "No thermal warning level has been recorded" in answer.out
    cool = answer.ok and told and all(int(each) >= 100 for each in limits) and not any(int(each) for each in levels)
    words = [f"limit {each} %" for each in limits] + [f"warning level {each}" for each in levels]
    return _said("heat", cool, ", ".join(words) or ("no warning" if told else "not told"), "let it cool")


def _power_mode(system: System) -> Check:
    """``lowpowermode`` is 1 in low power mode; newer systems say ``powermode``, where 2 is high power."""
    found = re.findall(r"^\s*((?:low)?powermode)\s+([0-9]+)\s*$", system.run(["pmset", "-g"]).out, re.MULTILINE)
    ok = bool(found) and all(value != "1" for _, value in found)
    said = ", ".join(f"{name} {value}" for name, value in found) or "not told"
    return _said("low power mode", ok, said, "System Settings, Battery or Energy: low power mode never")


def _said(name: str, ok: bool, found: str, fix: str) -> Check:
    return Check(name=name, ok=ok, required=True, found=found, fix=None if ok else fix)


def _xcode(system: System) -> Check:
    lines = system.run(["xcodebuild", "-version"]).out.split("\n")
    return Check(name="Xcode", ok=bool(lines[0]), required=False, found=lines[0] or "not told")
