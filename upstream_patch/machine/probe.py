"""Ask the machine what it is. Needs no package beyond the standard library; no CUDA context is made."""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
from typing import Any

from upstream_patch.machine.models import Gpu, Machine
from upstream_patch.machine.system import System

# CUdevice_attribute of the CUDA driver API.
_MULTIPROCESSORS = 16
_L2_BYTES = 38
_MAJOR = 75
_MINOR = 76
_SHARED_PER_BLOCK_OPTIN = 97


def probe(system: System | None = None) -> Machine:
    """This machine. ``gpu`` is the device that MLX takes (CUDA device 0, or the Mac's), None where there is none."""
    system = system or System()
    return Machine(
        os=_os(system),
        arch=system.arch,
        cpu=_cpu(system),
        cpu_count=system.cpu_count,
        memory_bytes=_memory(system),
        python=system.python,
        gpu=_apple_gpu(system) if system.name == "Darwin" else _cuda_gpu(system, nvidia_driver(system)),
    )


def cuda_device(system: System | None = None) -> tuple[tuple[int, int], int] | None:
    """Compute capability and multiprocessors of CUDA device 0, from the driver alone; None without one."""
    gpu = _cuda_gpu(system or System(), driver=None)
    if gpu is None or gpu.compute_capability is None or gpu.multiprocessors is None:
        return None
    major, minor = gpu.compute_capability.split(".")
    return (int(major), int(minor)), gpu.multiprocessors


def cuda_driver_version(system: System) -> str | None:
    """The newest CUDA that the driver speaks, e.g. ``13.0``; None without a driver."""
    cuda = _libcuda(system)
    version = ctypes.c_int()
    if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def nvidia_driver(system: System) -> str | None:
    """The kernel driver's version, e.g. ``580.159.03``."""
    nvml = system.module("pynvml")
    if nvml is not None:
        with contextlib.suppress(Exception):  # any NVMLError: no driver, or one too old for NVML
            nvml.nvmlInit()
            try:
                return str(nvml.nvmlSystemGetDriverVersion())
            finally:
                nvml.nvmlShutdown()
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", system.read("/proc/driver/nvidia/version") or "")
    if found:
        return found.group(1)
    return (system.read("/sys/module/nvidia/version") or "").strip() or None


def _os(system: System) -> str:
    if system.name == "Darwin":
        return f"macOS {system.run(['sw_vers', '-productVersion']).out.strip()}".strip()
    pretty = re.search(r'^PRETTY_NAME="?([^"\n]+)', system.read("/etc/os-release") or "", re.MULTILINE)
    # The kernel's number without the builder's suffix, which can name a host.
    kernel = re.match(r"[\d.]+", system.release)
    parts = [pretty.group(1) if pretty else system.name, f"kernel {kernel.group(0)}" if kernel else ""]
    return ", ".join(part for part in parts if part)


def _cpu(system: System) -> str:
    if system.name == "Darwin":
        return system.run(["sysctl", "-n", "machdep.cpu.brand_string"]).out.strip() or system.arch
    named = re.search(r"^model name\s*:\s*(.+)$", system.read("/proc/cpuinfo") or "", re.MULTILINE)
    if named:
        return named.group(1).strip()
    # ARM kernels give part numbers only; lscpu knows their names.
    names = re.findall(r"^\s*Model name:\s*(.+)$", system.run(["lscpu"]).out, re.MULTILINE)
    return " + ".join(dict.fromkeys(name.strip() for name in names)) or system.arch


def _memory(system: System) -> int:
    if system.name == "Darwin":
        size = system.run(["sysctl", "-n", "hw.memsize"]).out.strip()
        return int(size) if size.isdigit() else 0
    total = re.search(r"^MemTotal:\s*(\d+) kB", system.read("/proc/meminfo") or "", re.MULTILINE)
    return int(total.group(1)) * 1024 if total else 0


_NEEDED = (
    *("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet"),
    *("cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2"),
)


def _libcuda(system: System) -> Any:
    """The driver's library, if it is whole: a stub lacks what is not needed to link."""
    library = None if system.name == "Darwin" else system.library("libcuda.so.1", "libcuda.so")
    return library if library is not None and all(hasattr(library, name) for name in _NEEDED) else None


def _cuda_gpu(system: System, driver: str | None) -> Gpu | None:
    cuda = _libcuda(system)
    count = ctypes.c_int()
    if cuda is None or cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return None
    device = ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    if cuda.cuDeviceGet(ctypes.byref(device), 0) != 0 or cuda.cuDeviceGetName(name, 256, device) != 0:
        return None

    def attribute(number: int) -> int | None:
        value = ctypes.c_int()
        failed = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) != 0
        return None if failed or value.value <= 0 else value.value

    # The driver API, not NVML: NVML says NOT_SUPPORTED for GB10's memory, and numbers devices in another order.
    memory = ctypes.c_size_t()
    sized = cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device) == 0 and memory.value > 0
    major, minor = attribute(_MAJOR), attribute(_MINOR)
    return Gpu(
        name=name.value.decode(errors="replace"),
        vendor="NVIDIA",
        compute_capability=None if major is None else f"{major}.{minor or 0}",
        multiprocessors=attribute(_MULTIPROCESSORS),
        memory_bytes=memory.value if sized else _memory(system) or None,
        l2_bytes=attribute(_L2_BYTES),
        shared_memory_per_block=attribute(_SHARED_PER_BLOCK_OPTIN),
        driver=driver,
    )


def _apple_gpu(system: System) -> Gpu | None:
    answer = system.run(["system_profiler", "-json", "SPDisplaysDataType"], timeout=60)
    try:
        displays = json.loads(answer.out)["SPDisplaysDataType"]
    except (ValueError, KeyError, TypeError):
        return None
    for display in displays if isinstance(displays, list) else []:
        if not isinstance(display, dict):
            continue
        model = str(display.get("sppci_model") or display.get("_name") or "")
        if model and "Apple" in model:
            cores = str(display.get("sppci_cores", ""))
            # Unified memory: the GPU's is the machine's.
            return Gpu(
                name=model,
                vendor="Apple",
                multiprocessors=int(cores) if cores.isdigit() else None,
                memory_bytes=_memory(system) or None,
                driver=str(display.get("spdisplays_mtlgpufamilysupport", "")).removeprefix("spdisplays_") or None,
            )
    return None
