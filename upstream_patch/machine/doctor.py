"""What this machine has, what each piece enables, and the way to what is missing."""

from __future__ import annotations

import json
import re
import sys

from upstream_patch.machine.models import Finding, Gpu, Machine
from upstream_patch.machine.probe import cuda_driver_version, nvidia_driver, probe
from upstream_patch.machine.system import System
from upstream_patch.machine.toolchain import (
    CXX_FIX,
    MLX_HEADERS_FIX,
    NVDISASM_FIX,
    NVRTC_FIX,
    find_cxx,
    find_metal_cxx,
    find_mlx_headers,
    find_nvdisasm,
    find_nvrtc,
)

_CAP_SYS_ADMIN = 21
_CAP_PERFMON = 38
_PERFMON_DRIVER = 565
_DISK_NEEDED = 10 * 1000**3

# In a process of its own: a wheel that does not fit the driver can end the process that imports it.
_MLX_QUESTION = """
import importlib.metadata as m, json
import mlx.core as mx
backends = [name for name in ("cuda", "metal") if hasattr(mx, name) and getattr(mx, name).is_available()]
backend = (backends + ["cpu"])[0]
print(json.dumps({"version": m.version("mlx"), "backend": backend}))
"""


def diagnose(system: System | None = None) -> list[Finding]:
    """Every finding, present pieces and missing ones. Runs a few short commands; changes nothing."""
    system = system or System()
    machine = probe(system)
    findings = [_gpu(machine), _driver(system, machine.gpu), _mlx(system, machine.gpu)]
    if system.name == "Darwin":
        findings += [_neural_accelerators(machine), _metal_compiler(system)]
    else:
        findings += [_ncu(system), _ncu_permission(system), _nvrtc(system), _nvdisasm(system), _program(system, "nvcc")]
    findings += [_simulator(system), _simulator_metal(system), *(_program(system, name) for name in ("g++", "git"))]
    return [*findings, _disk(system)]


def _gpu(machine: Machine) -> Finding:
    enables = "correctness, benchmarks and profiles on this machine"
    gpu = machine.gpu
    if gpu is None:
        fix = "use a machine with an NVIDIA GPU of compute capability 8.0 or newer"
        return Finding("GPU", False, "none that CUDA or Metal can use", enables, fix)
    parts = [gpu.name]
    parts += [f"sm_{gpu.compute_capability.replace('.', '')}"] if gpu.compute_capability else []
    parts += [f"{gpu.multiprocessors} {'SMs' if gpu.vendor == 'NVIDIA' else 'cores'}"] if gpu.multiprocessors else []
    parts += [f"{gpu.memory_bytes / 2**30:.0f} GiB"] if gpu.memory_bytes else []
    parts += [f"{gpu.l2_bytes / 2**20:.0f} MiB L2"] if gpu.l2_bytes else []
    parts += [f"{gpu.shared_memory_per_block / 1024:.0f} KiB shared a block"] if gpu.shared_memory_per_block else []
    old = gpu.compute_capability is not None and float(gpu.compute_capability) < 8.0
    way_out = "our CUDA kernel needs compute capability 8.0 or newer; stock MLX still runs" if old else None
    return Finding("GPU", not old, ", ".join(parts), enables, way_out)


def _driver(system: System, gpu: Gpu | None) -> Finding:
    enables = "MLX on the GPU"
    if system.name == "Darwin":
        return Finding("driver", gpu is not None, f"part of macOS; {gpu.driver or 'Metal' if gpu else 'none'}", enables)
    version, cuda = nvidia_driver(system), cuda_driver_version(system)
    if cuda is None:
        if version is not None:
            fix = "install the driver's user library (libcuda.so.1); in a container, give it the GPU (--gpus all)"
            return Finding("driver", False, f"NVIDIA {version}, but libcuda.so.1 does not load", enables, fix)
        return Finding("driver", False, "no NVIDIA driver", enables, "install NVIDIA's driver 580 or newer")
    enough = int(cuda.split(".")[0]) >= 13
    way_out = None if enough else "MLX's cuda13 wheel needs NVIDIA's driver 580 or newer"
    return Finding("driver", enough, f"NVIDIA {version or 'unknown'}, CUDA {cuda}", enables, way_out)


def _mlx(system: System, gpu: Gpu | None) -> Finding:
    enables = "upstream_patch.quantized_matmul, install(), and every stage that measures"
    extra = "cuda" if gpu is not None and gpu.vendor == "NVIDIA" else "cpu"
    install = f"pip install -e '.[{extra}]' in the clone"
    answer = system.run([sys.executable, "-c", _MLX_QUESTION], timeout=120)
    said = _last_object(answer.out) if answer.ok else None
    if said is None:
        why = (answer.err.strip().splitlines() or ["does not start"])[-1]
        return Finding("MLX", False, why, enables, install)
    detail = f"mlx {said['version']}, backend {said['backend']}"
    if gpu is not None and said["backend"] == "cpu":
        fix = f"pip uninstall mlx mlx-cpu, then {install}"
        return Finding("MLX", False, f"{detail}: it does not use the GPU", enables, fix)
    return Finding("MLX", True, detail, enables)


def _last_object(text: str) -> dict[str, str] | None:
    """The last line that is a JSON object with strings: a library may print lines of its own around it."""
    for line in reversed(text.splitlines()):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and {"version", "backend"} <= said.keys():
            return {key: str(value) for key, value in said.items()}
    return None


def _ncu(system: System) -> Finding:
    enables = "profile: DRAM bytes and duration of every launch"
    path = system.which("ncu")
    if path is None:
        fix = "install Nsight Compute (part of the CUDA toolkit, or NVIDIA's package nsight-compute), put ncu on PATH"
        return Finding("ncu", False, "not on PATH", enables, fix)
    version = re.search(r"Version (\S+)", system.run([path, "--version"]).out)
    return Finding("ncu", version is not None, f"Nsight Compute {version.group(1) if version else '?'}", enables)


def _ncu_permission(system: System) -> Finding:
    enables = "profile: the GPU's counters"
    params = system.read("/proc/driver/nvidia/params")
    if params is None:
        return Finding("ncu permission", False, "no NVIDIA driver to ask", enables)
    if re.search(r"^RmProfilingAdminOnly:\s*0", params, re.MULTILINE):
        return Finding("ncu permission", True, "counters are open to every user", enables)
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", system.read("/proc/self/status") or "", re.MULTILINE)
    capabilities = int(found.group(1), 16) if found else 0
    major = int("0" + (re.match(r"\d*", nvidia_driver(system) or "") or [""])[0])
    if capabilities >> _CAP_SYS_ADMIN & 1 or (not found and system.is_root()):
        return Finding("ncu permission", True, "counters are for administrators, and this process is one", enables)
    if major >= _PERFMON_DRIVER and capabilities >> _CAP_PERFMON & 1:
        return Finding("ncu permission", True, "this process has CAP_PERFMON", enables)
    fix = "run as root, or load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0"
    return Finding("ncu permission", False, "counters are for administrators only (ERR_NVGPUCTRPERM)", enables, fix)


def _nvrtc(system: System) -> Finding:
    enables = "build: compile every kernel with no GPU"
    nvrtc = find_nvrtc(system)
    if nvrtc is None:
        return Finding("NVRTC", False, "no wheel and no toolkit with libnvrtc and cuda_bf16.h", enables, NVRTC_FIX)
    return Finding("NVRTC", True, f"{nvrtc.library.rsplit('/', 1)[-1]} from a {nvrtc.origin}", enables)


_PROGRAMS = {
    "nvcc": ("a build of MLX with CUDA", "install the CUDA toolkit 13.0 and put its bin folder on PATH"),
    "g++": ("a build of MLX on Linux", "install g++ 12 or newer (Debian: apt-get install g++)"),
    "git": ("records name their commit; series on an MLX checkout", "install git"),
}


def _nvdisasm(system: System) -> Finding:
    enables = "the forecast for a GB10"
    tool = find_nvdisasm(system)
    if tool is None:
        return Finding("nvdisasm", False, "no wheel, no toolkit, not on PATH", enables, NVDISASM_FIX)
    return Finding("nvdisasm", True, "found", enables)


def _program(system: System, name: str) -> Finding:
    enables, fix = _PROGRAMS[name]
    path = system.which(name)
    if path is None:
        return Finding(name, False, "not on PATH", enables, fix)
    answer = system.run([path, "--version"])
    lines = [line.strip() for line in answer.out.splitlines() if re.search(r"\d+\.\d+", line)]
    if not answer.ok or not lines:
        return Finding(name, False, f"{name} --version does not work", enables, fix)
    line = next((line for line in lines if "release" in line), lines[0])
    return Finding(name, True, line, enables)


def _simulator(system: System) -> Finding:
    """The compiler that the lane simulator would use, whichever it is."""
    enables = "simulate: kernels on a CPU, with race and bounds checks"
    cxx = find_cxx(system)
    if cxx is None:
        return Finding("simulator's C++", False, "no ziglang wheel, and no clang++ or g++ on PATH", enables, CXX_FIX)
    answer = system.run([*cxx.command, "--version"], timeout=120)
    lines = [line.strip() for line in answer.out.splitlines() if re.search(r"\d+\.\d+", line)]
    if not answer.ok or not lines:
        return Finding("simulator's C++", False, f"the {cxx.origin} does not work", enables, CXX_FIX)
    return Finding("simulator's C++", True, f"{lines[0].split(' (')[0]}, from the {cxx.origin}", enables)


def _simulator_metal(system: System) -> Finding:
    """What Metal kernels need more than CUDA ones: clang's address spaces and vectors, and MLX's headers."""
    name, enables = "simulator's Metal", "simulate: MLX's Metal kernels on a CPU"
    cxx, headers = find_metal_cxx(system), find_mlx_headers(system)
    if isinstance(cxx, str):
        return Finding(name, False, cxx, enables, CXX_FIX)
    if headers is None:
        return Finding(name, False, "no MLX wheel with Metal headers", enables, MLX_HEADERS_FIX)
    return Finding(name, True, f"clang of the {cxx.origin}, Metal headers of the MLX wheel", enables)


def _disk(system: System) -> Finding:
    free = system.free_bytes()
    fix = None if free >= _DISK_NEEDED else "free some: MLX's CUDA wheel and its libraries alone take 4 GB"
    return Finding("disk", free >= _DISK_NEEDED, f"{free / 1e9:.0f} GB free", "wheels, an MLX build, raw profiles", fix)


def _neural_accelerators(machine: Machine) -> Finding:
    enables = "Metal's neural-accelerator kernels (NAX)"
    chip = re.search(r"Apple M(\d+)", machine.cpu)
    version = re.search(r"macOS (\d+)\.(\d+)", machine.os)
    new_chip = chip is not None and int(chip.group(1)) >= 5
    new_os = version is not None and (int(version.group(1)), int(version.group(2))) >= (26, 2)
    fix = None if new_chip and new_os else "needs an Apple M5 or newer with macOS 26.2 or newer"
    return Finding("NAX", new_chip and new_os, f"{machine.cpu}, {machine.os}", enables, fix)


def _metal_compiler(system: System) -> Finding:
    answer = system.run(["xcrun", "--find", "metal"])
    fix = None if answer.ok else "install Xcode, then xcodebuild -downloadComponent MetalToolchain"
    detail = "found by xcrun" if answer.ok else "xcrun finds no metal"
    return Finding("Metal compiler", answer.ok, detail, "a build of MLX on macOS", fix)
