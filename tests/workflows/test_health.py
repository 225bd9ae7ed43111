"""The health check on machines that we do not have: a GB10 and an M5 as their drivers are documented."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from ci.health import examine
from ci.machines import DEVICES
from tests.host.test_machine import GB10, H200, LINUX, FakeSystem
from upstream_patch.machine import Answer


class NVMLError(Exception):
    pass


@dataclass
class FakeNvml:
    """NVML of one GPU that idles; ``untold``: readings that its driver does not support, as GB10's memory clock."""

    programs: int = 0
    celsius: int | str = 41
    reasons: int | None = 0x1
    untold: tuple[str, ...] = ("nvmlDeviceGetClockInfo.mem",)
    broken: bool = False
    NVMLError: type[Exception] = NVMLError
    NVML_CLOCK_SM: str = "sm"
    NVML_CLOCK_MEM: str = "mem"
    NVML_TEMPERATURE_GPU: int = 0
    calls: list[str] = field(default_factory=list)

    def _told(self, name: str, value: Any) -> Any:
        if name in self.untold:
            raise NVMLError("Not Supported")
        return value

    def nvmlInit(self) -> None:
        if self.broken:
            raise NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.03"

    def nvmlDeviceGetComputeRunningProcesses(self, _: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=-1 - number) for number in range(self.programs)]

    def nvmlDeviceGetTemperature(self, _: int, __: int) -> int:
        return int(self._told("nvmlDeviceGetTemperature", self.celsius))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: int) -> int | None:
        return self.reasons

    def nvmlDeviceGetClockInfo(self, _: int, clock: str) -> int:
        return int(self._told(f"nvmlDeviceGetClockInfo.{clock}", 2418))

    def nvmlDeviceGetPowerUsage(self, _: int) -> int:
        return 11_400


@dataclass(frozen=True)
class Device(FakeSystem):
    nvml: FakeNvml | None = None

    def module(self, name: str) -> Any:
        return self.nvml if name == "pynvml" else None


OPEN = {"/proc/driver/nvidia/params": "RmProfilingAdminOnly: 0\n"}
MEMORY = {"/proc/meminfo": "MemTotal: 131072000 kB\nMemAvailable: 120000000 kB\n"}
SAYS = {
    "/usr/bin/ncu --version": Answer(0, "Version 2025.3.1.0 (build 1)"),
    "/usr/bin/git --version": Answer(0, "git version 2.43.0"),
}
SPARK = Device(
    arch="aarch64", files=LINUX | OPEN | MEMORY, cuda=GB10, programs=("ncu", "git"), commands=SAYS, nvml=FakeNvml()
)


def failed(system: FakeSystem, device: str = "gb10") -> list[str]:
    return [check.name for check in examine(DEVICES[device], system).failed]


def test_a_gb10_that_idles_is_fit_and_says_what_its_driver_does_not_tell() -> None:
    health = examine(DEVICES["gb10"], SPARK)
    assert health.failed == ()
    found = {check.name: check.found for check in health.checks}
    assert found == {
        "GPU": "NVIDIA GB10, compute capability 12.1",
        "driver": "NVIDIA 580.159.03, CUDA 13.0",
        "ncu": "Nsight Compute 2025.3.1.0",
        "ncu permission": "counters are open to every user",
        "git": "git version 2.43.0",
        "disk": "1000 GB free",
        "memory": "114 GiB available",
        "other programs": "0",
        "temperature": "41 C",
        "clocks held back": "idle",
        "SM clock": "2418 MHz",
        "memory clock": "not told (Not Supported)",
        "power": "11 W",
    }
    assert SPARK.nvml is not None
    assert SPARK.nvml.calls[-1] == "shutdown"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"cuda": H200}, ["GPU"]),
        ({"cuda": None}, ["GPU", "driver"]),
        ({"programs": ("git",)}, ["ncu"]),
        ({"files": LINUX | MEMORY}, ["ncu permission"]),
        ({"files": LINUX | OPEN}, ["memory"]),
        ({"files": LINUX | OPEN | {"/proc/meminfo": "MemAvailable: 9000000 kB\n"}}, ["memory"]),
        ({"free": 10**9}, ["disk"]),
        ({"nvml": None}, ["NVML"]),
        ({"nvml": FakeNvml(broken=True)}, ["NVML"]),
        ({"nvml": FakeNvml(programs=1)}, ["other programs"]),
        ({"nvml": FakeNvml(celsius=66)}, ["temperature"]),
        ({"nvml": FakeNvml(untold=("nvmlDeviceGetTemperature",))}, ["temperature"]),
        ({"nvml": FakeNvml(celsius="N/A")}, ["temperature"]),
        ({"nvml": FakeNvml(reasons=None)}, ["clocks held back"]),
        ({"nvml": FakeNvml(reasons=0x20 | 0x1)}, ["clocks held back"]),
        ({"nvml": FakeNvml(reasons=0x80)}, ["clocks held back"]),
        ({"files": LINUX | OPEN | {"/proc/meminfo": "Speicher: viel\n"}}, ["memory"]),
        ({"commands": SAYS | {"/usr/bin/ncu --version": Answer(0, "garbage")}}, ["ncu"]),
        ({"commands": SAYS | {"/usr/bin/ncu --version": Answer(1, "")}}, ["ncu"]),
        ({"nvml": FakeNvml(reasons=0x40)}, ["clocks held back"]),
        ({"nvml": FakeNvml(reasons=0x4)}, []),  # the power cap is normal
    ],
)
def test_what_is_wrong_with_a_gb10_stops_it(changes: dict[str, Any], names: list[str]) -> None:
    assert failed(replace(SPARK, **changes)) == names


DISPLAY = {"sppci_model": "Apple M5", "sppci_cores": "10"}
MAC_SAYS = {
    "sw_vers -productVersion": "26.2\n",
    "sysctl -n machdep.cpu.brand_string": "Apple M5\n",
    "sysctl -n hw.memsize": "34359738368\n",
    "system_profiler -json SPDisplaysDataType": json.dumps({"SPDisplaysDataType": [DISPLAY]}),
    "xcrun --find metal": "/x/metal\n",
    "xcodebuild -version": "Xcode 26.2\nBuild version 17C52\n",
    "/usr/bin/git --version": "git version 2.50.1\n",
    "sysctl -n kern.memorystatus_level": "81\n",
    "pmset -g therm": "Note: No thermal warning level has been recorded\nNote: No CPU power status has been recorded\n",
    "pmset -g batt": "Now drawing from 'AC Power'\n",
    "pmset -g": "Currently in use:\n powermode            0\n womp 1\n",
}


def mac(**changes: str) -> FakeSystem:
    said = {name: Answer(0, text) for name, text in (MAC_SAYS | changes).items()}
    return Device(name="Darwin", arch="arm64", commands=said, programs=("git",))


def test_an_m5_that_idles_is_fit() -> None:
    health = examine(DEVICES["m5"], mac())
    assert health.failed == ()
    assert {check.name: check.found for check in health.checks} == {
        "GPU": "Apple M5",
        "NAX": "Apple M5, macOS 26.2",
        "Metal compiler": "found by xcrun",
        "git": "git version 2.50.1",
        "disk": "1000 GB free",
        "memory": "81 % free",
        "heat": "no warning",
        "power source": "AC Power",
        "low power mode": "powermode 0",
        "Xcode": "Xcode 26.2",
    }


@pytest.mark.parametrize(
    ("command", "said", "names"),
    [
        ("sw_vers -productVersion", "26.1\n", ["NAX"]),
        ("sysctl -n machdep.cpu.brand_string", "Apple M4\n", ["NAX"]),
        ("sysctl -n kern.memorystatus_level", "12\n", ["memory"]),
        ("sysctl -n kern.memorystatus_level", "", ["memory"]),
        ("pmset -g therm", "CPU_Speed_Limit \t= 70\n", ["heat"]),
        ("pmset -g therm", "CPU_Speed_Limit = 100\nThermal Warning Level = 0\n", []),
        ("pmset -g therm", "CPU_Speed_Limit = 100\nThermal Warning Level = 1\n", ["heat"]),
        ("pmset -g therm", "Performance warning level = 2\n", ["heat"]),
        ("pmset -g therm", "Error: 0xe00002bc\n", ["heat"]),
        ("pmset -g therm", "", ["heat"]),
        ("pmset -g batt", "Now drawing from 'Battery Power'\n", ["power source"]),
        ("pmset -g batt", "", ["power source"]),
        ("pmset -g", " lowpowermode         0\n", []),
        ("pmset -g", " powermode            2\n", []),
        ("pmset -g", " lowpowermode         1\n", ["low power mode"]),
        ("pmset -g", " lowpowermode 0\n powermode 1\n", ["low power mode"]),
        ("pmset -g", "", ["low power mode"]),
        ("sysctl -n kern.memorystatus_level", "\u0661\u0662\n", ["memory"]),
        ("sysctl -n machdep.cpu.brand_string", "", ["NAX"]),
        ("sw_vers -productVersion", "???", ["NAX"]),
        ("system_profiler -json SPDisplaysDataType", "{", ["GPU"]),
        ("xcodebuild -version", "", []),
        (
            "system_profiler -json SPDisplaysDataType",
            json.dumps({"SPDisplaysDataType": [{"sppci_model": "Apple M5 Max"}]}),
            ["GPU"],
        ),
    ],
)
def test_what_is_wrong_with_an_m5_stops_it(command: str, said: str, names: list[str]) -> None:
    assert failed(mac(**{command: said}), "m5") == names
