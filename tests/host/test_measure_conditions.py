"""What a run notes about its machine, and what it could not read."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import pytest

from upstream_patch.measure.conditions import conditions, throttle_reasons


def test_conditions_say_what_they_could_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert throttle_reasons(0) == "none"
    assert throttle_reasons(0x1 | 0x40) == "idle, hardware thermal"
    assert throttle_reasons(0x4 | 0x8000) == "software power cap, unknown 0x8000"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert conditions("before") == ["before: clocks and throttling were not captured: nvidia-ml-py is not installed"]


class FakeNvml(types.ModuleType):
    class NVMLError(Exception):
        pass

    pids: tuple[int, ...] = (1,)
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetPowerUsage": 512_300,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
            "nvmlDeviceGetComputeRunningProcesses": [types.SimpleNamespace(pid=pid) for pid in self.pids],
        }
        if name == "nvmlDeviceGetTemperature":  # as on GB10, where some readings are not supported

            def refuse(*_: Any) -> Any:
                raise self.NVMLError("Not Supported")

            return refuse
        return lambda *_: answers.get(name)


@pytest.mark.parametrize(
    ("pids", "others"),
    [((), 0), ((1,), 1), ((os.getpid(),), 0), ((1, os.getpid()), 1), ((2**30,), 0), ((2**30, 2**30 + 1), 1)],
)
def test_our_own_program_is_no_other_in_a_container_either(
    monkeypatch: pytest.MonkeyPatch, pids: tuple[int, ...], others: int
) -> None:
    nvml = FakeNvml("pynvml")
    nvml.pids = pids
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert conditions("after")[0].endswith(f"other programs on the GPU {others}")


def test_conditions_are_one_line_of_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    assert conditions("after") == [
        "after: SM 1980 MHz, memory 1980 MHz, temperature unknown (Not Supported), power 512 W, "
        "throttle reasons software power cap, other programs on the GPU 1"
    ]
