"""The prober and doctor on machines that we do not have: each fake answers as the real one is known to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from upstream_patch.machine import Answer, System, diagnose, find_nvrtc, probe


class FakeCuda:
    """The driver API of one device, as ctypes sees it."""

    def __init__(self, name: str, attributes: dict[int, int], memory: int | None, version: int = 13000) -> None:
        self.name, self.attributes, self.memory, self.version = name, attributes, memory, version

    def cuInit(self, _: int) -> int:
        return 0

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = 1
        return 0

    def cuDeviceGet(self, out: Any, number: int) -> int:
        out._obj.value = number
        return 0

    def cuDeviceGetName(self, out: Any, size: int, _: Any) -> int:
        out.value = self.name.encode()[: size - 1]
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, _: Any) -> int:
        if self.memory is None:
            return 801  # CUDA_ERROR_NOT_SUPPORTED
        out._obj.value = self.memory
        return 0

    def cuDeviceGetAttribute(self, out: Any, number: int, _: Any) -> int:
        if number not in self.attributes:
            return 1
        out._obj.value = self.attributes[number]
        return 0


@dataclass(frozen=True)
class FakeSystem(System):
    name: str = "Linux"
    arch: str = "x86_64"
    release: str = "6.8.0-builder-7"
    python: str = "3.12.3"
    cpu_count: int = 8
    files: dict[str, str] = field(default_factory=dict)
    commands: dict[str, Answer] = field(default_factory=dict)
    programs: tuple[str, ...] = ()
    cuda: FakeCuda | None = None
    paths: tuple[str, ...] = ()
    root: bool = False
    free: int = 10**12

    def run(self, command: Sequence[str], timeout: float = 20.0) -> Answer:
        key = "mlx?" if "-c" in command else " ".join(command)
        return self.commands.get(key, Answer(None, err="No such file or directory"))

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def library(self, *names: str) -> Any:
        return self.cuda

    def module(self, name: str) -> Any:
        return None

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if program in self.programs else None

    def glob(self, pattern: str) -> list[str]:
        from fnmatch import fnmatchcase

        return [path for path in self.paths if fnmatchcase(path, pattern)]

    def environ(self, name: str) -> str | None:
        return None

    def site_folders(self) -> list[str]:
        return ["/site"]

    def is_root(self) -> bool:
        return self.root

    def free_bytes(self, path: str = ".") -> int:
        return self.free


LINUX = {
    "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n',
    "/proc/cpuinfo": "processor : 0\nmodel name\t: INTEL(R) XEON(R) PLATINUM 8581C\n",
    "/proc/meminfo": "MemTotal:       131072000 kB\nMemFree: 1 kB\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Release Build\n",
    "/proc/driver/nvidia/params": "EnableMSI: 1\nRmProfilingAdminOnly: 1\n",
    "/proc/self/status": "Name:\tpython\nCapEff:\t0000000000000000\n",
}
H200 = FakeCuda("NVIDIA H200", {16: 132, 38: 62914560, 75: 9, 76: 0, 97: 232448}, 150_000_000_000)
GB10 = FakeCuda("NVIDIA GB10", {16: 48, 38: 25165824, 75: 12, 76: 1, 97: 101376}, None)


def test_an_h200_by_the_driver_alone() -> None:
    machine = probe(FakeSystem(files=LINUX, cuda=H200))
    assert machine.os == "Ubuntu 24.04.3 LTS, kernel 6.8.0"
    assert machine.cpu == "INTEL(R) XEON(R) PLATINUM 8581C"
    assert machine.memory_bytes == 131072000 * 1024
    assert machine.gpu is not None
    assert machine.gpu.model_dump() == {
        "name": "NVIDIA H200",
        "vendor": "NVIDIA",
        "compute_capability": "9.0",
        "multiprocessors": 132,
        "memory_bytes": 150_000_000_000,
        "l2_bytes": 62914560,
        "shared_memory_per_block": 232448,
        "driver": "580.159.03",
    }


def test_gb10_does_not_tell_its_memory_so_the_machine_does() -> None:
    arm = {**LINUX, "/proc/cpuinfo": "processor : 0\nCPU part : 0xd85\n"}
    names = "Model name:  Cortex-X925\nThread(s): 1\nModel name:  Cortex-A725\n"
    machine = probe(FakeSystem(arch="aarch64", files=arm, cuda=GB10, commands={"lscpu": Answer(0, names)}))
    assert machine.cpu == "Cortex-X925 + Cortex-A725"
    assert machine.gpu is not None
    assert machine.gpu.compute_capability == "12.1"
    assert machine.gpu.memory_bytes == machine.memory_bytes == 131072000 * 1024


def test_a_mac_by_its_own_tools() -> None:
    display = {"sppci_model": "Apple M5", "sppci_cores": "10", "spdisplays_mtlgpufamilysupport": "spdisplays_metal4"}
    said = {
        "sw_vers -productVersion": "26.2\n",
        "sysctl -n machdep.cpu.brand_string": "Apple M5\n",
        "sysctl -n hw.memsize": "34359738368\n",
        "system_profiler -json SPDisplaysDataType": json.dumps({"SPDisplaysDataType": [display]}),
        "mlx?": '{"version": "0.32.4", "backend": "metal"}',
    }
    mac = FakeSystem(name="Darwin", arch="arm64", commands={key: Answer(0, out) for key, out in said.items()})
    machine = probe(mac)
    assert machine.os == "macOS 26.2"
    assert machine.gpu is not None
    assert (machine.gpu.name, machine.gpu.multiprocessors, machine.gpu.driver) == ("Apple M5", 10, "metal4")
    found = {finding.name: finding for finding in diagnose(mac)}
    assert found["NAX"].ok
    assert found["MLX"].detail == "mlx 0.32.4, backend metal"
    assert "ncu" not in found
    older = FakeSystem(name="Darwin", commands={**mac.commands, "sw_vers -productVersion": Answer(0, "26.1\n")})
    assert not {finding.name: finding for finding in diagnose(older)}["NAX"].ok


@pytest.mark.parametrize("said", ["", "{}", '{"SPDisplaysDataType": [{"sppci_model": "Intel Iris"}]}'])
def test_a_mac_without_an_apple_gpu_has_none(said: str) -> None:
    mac = FakeSystem(name="Darwin", commands={"system_profiler -json SPDisplaysDataType": Answer(0, said)})
    assert probe(mac).gpu is None


def test_a_bare_machine_gets_a_way_out_for_everything() -> None:
    bare = FakeSystem(free=10**9)
    findings = diagnose(bare)
    assert probe(bare).gpu is None
    assert not any(finding.ok for finding in findings)
    assert [finding.name for finding in findings if finding.fix is None] == ["ncu permission"]
    assert all("\n" not in f"{finding.detail}{finding.enables}{finding.fix}" for finding in findings)


@pytest.mark.parametrize(
    ("params", "status", "root", "ok"),
    [
        ("RmProfilingAdminOnly: 0\n", "CapEff:\t0000000000000000\n", False, True),
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t0000000000000000\n", False, False),
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t000001ffffffffff\n", True, True),
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t00000000a80425fb\n", True, False),  # root of a plain container
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t0000004000000000\n", False, True),  # CAP_PERFMON
    ],
)
def test_who_may_read_the_counters(params: str, status: str, root: bool, ok: bool) -> None:
    files = {**LINUX, "/proc/driver/nvidia/params": params, "/proc/self/status": status}
    finding = next(f for f in diagnose(FakeSystem(files=files, cuda=H200, root=root)) if f.name == "ncu permission")
    assert finding.ok is ok
    assert (finding.fix is None) is ok


def test_perfmon_is_not_enough_for_an_old_driver() -> None:
    files = {
        **LINUX,
        "/proc/self/status": "CapEff:\t0000004000000000\n",
        "/proc/driver/nvidia/version": LINUX["/proc/driver/nvidia/version"].replace("580", "550"),
    }
    finding = next(f for f in diagnose(FakeSystem(files=files, cuda=H200)) if f.name == "ncu permission")
    assert not finding.ok


def test_mlx_that_does_not_use_the_gpu_is_a_fault() -> None:
    cpu = {"mlx?": Answer(0, '{"version": "0.32.4", "backend": "cpu"}')}
    with_gpu = next(f for f in diagnose(FakeSystem(files=LINUX, cuda=H200, commands=cpu)) if f.name == "MLX")
    assert not with_gpu.ok
    assert ".[cuda]" in str(with_gpu.fix)
    assert next(f for f in diagnose(FakeSystem(files=LINUX, commands=cpu)) if f.name == "MLX").ok


def test_old_gpus_and_drivers_are_told() -> None:
    old = FakeCuda("Tesla T4", {16: 40, 75: 7, 76: 5}, 16 * 10**9, version=12040)
    found = {finding.name: finding for finding in diagnose(FakeSystem(files=LINUX, cuda=old))}
    assert not found["GPU"].ok
    assert "sm_75" in found["GPU"].detail
    assert not found["driver"].ok
    assert "CUDA 12.4" in found["driver"].detail


def test_nvrtc_counts_only_with_its_headers_and_wheels_come_first() -> None:
    wheel = "/site/nvidia/cu13"
    library, builtins = f"{wheel}/lib/libnvrtc.so.13", f"{wheel}/lib/libnvrtc-builtins.so.13.0"
    assert find_nvrtc(FakeSystem(paths=(library, builtins))) is None
    toolkit = ("/usr/local/cuda/include/cuda_bf16.h", "/usr/local/cuda/lib64/libnvrtc.so.13")
    found = find_nvrtc(FakeSystem(paths=toolkit))
    assert found is not None
    assert (found.origin, found.builtins) == ("toolkit", None)
    found = find_nvrtc(FakeSystem(paths=(*toolkit, library, builtins, f"{wheel}/include/cuda_bf16.h")))
    assert found is not None
    assert (found.origin, found.library, found.builtins) == ("wheel", library, builtins)


def test_the_simulators_compiler_is_the_wheel_then_clang_then_gcc() -> None:
    def said(system: FakeSystem) -> tuple[bool, str]:
        finding = next(f for f in diagnose(system) if f.name == "simulator's C++")
        assert (finding.fix is None) == finding.ok
        return finding.ok, finding.detail

    zig, version = "/site/ziglang/zig", Answer(0, "clang version 22.1.3 (https://x y)\nTarget: z\n")
    commands = {f"{program} --version": version for program in (f"{zig} c++", "/usr/bin/clang++", "/usr/bin/g++")}
    both = ("clang++", "g++")
    assert said(FakeSystem(commands=commands, programs=both, paths=(zig,)))[1].endswith("from the ziglang wheel")
    assert said(FakeSystem(commands=commands, programs=both)) == (
        True,
        "clang version 22.1.3, from the clang++ on PATH",
    )
    assert said(FakeSystem(programs=("g++",))) == (False, "the g++ on PATH does not work")


def test_the_real_system_answers_and_never_raises() -> None:
    system = System()
    assert system.run(["no-such-program-here"]).code is None
    assert system.run(["sh", "-c", "exit 3"]).code == 3
    assert system.run(["sleep", "5"], timeout=0.05).code is None
    assert system.read("/no/such/file") is None
    assert system.library("libno-such.so.1") is None
    machine = probe()
    assert machine.memory_bytes > 2**28
    assert machine.cpu_count >= 1
    assert machine.os


@pytest.mark.parametrize(
    "answer", ["[]", "null", '{"SPDisplaysDataType": null}', '{"SPDisplaysDataType": ["x", {"_name": 5}]}']
)
def test_a_mac_that_answers_oddly_has_no_gpu(answer: str) -> None:
    asked = "system_profiler -json SPDisplaysDataType"
    assert probe(FakeSystem(name="Darwin", commands={asked: Answer(0, answer)})).gpu is None


def test_a_driver_library_that_lacks_functions_is_none() -> None:
    class Stub:
        def cuInit(self, _: int) -> int:
            return 0

    stub: Any = Stub()
    assert probe(FakeSystem(cuda=stub)).gpu is None


@pytest.mark.parametrize("out", ["", "Warning\n", '{"version": "1"}'])
def test_an_answer_about_mlx_that_says_nothing_is_not_mlx(out: str) -> None:
    found = {one.name: one for one in diagnose(FakeSystem(commands={"mlx?": Answer(0, out)}))}
    assert not found["MLX"].ok


def test_lines_around_the_answer_about_mlx_do_not_matter() -> None:
    out = 'hello\n{"version": "0.32.4", "backend": "cpu"}\nbye'
    found = {one.name: one for one in diagnose(FakeSystem(commands={"mlx?": Answer(0, out)}))}
    assert found["MLX"].detail == "mlx 0.32.4, backend cpu"


def test_output_that_is_no_text_is_read_all_the_same() -> None:
    answer = System().run(["printf", "git \\377"])
    assert answer.ok
    assert answer.out.startswith("git ")
