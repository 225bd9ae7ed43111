"""What a build of MLX needs, asked before anything is built: disk, toolchain, SDK, deployment target."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from upstream_patch.errors import MissingTool
from upstream_patch.machine import Finding, System, cuda_device

Backend = Literal["cuda", "metal"]
DISK_NEEDED: dict[Backend, int] = {"cuda": 30 * 10**9, "metal": 15 * 10**9}
"""Bytes for two builds side by side; ours, with room to spare: nobody publishes a number."""
NAX_MACOS = (26, 2)
"""The first macOS, SDK and deployment target with the neural accelerators; MLX leaves their kernels out below it."""
CUDA_NEEDED = (12, 0)
CMAKE_NEEDED = (3, 25)
TARGET_VARIABLE = "MACOSX_DEPLOYMENT_TARGET"


def backend_of(system: System) -> Backend:
    return "metal" if system.name == "Darwin" else "cuda"


def findings(
    backend: Backend, folder: Path, system: System | None = None, free: Callable[[Path], int] | None = None
) -> list[Finding]:
    """Every requirement, met and unmet. ``free`` says how many bytes are free at a path."""
    system = system or System()
    asked = [_disk(backend, folder, free), _program(system, "git", "install git"), _cmake(system)]
    if backend == "cuda":
        return [*asked, *_cuda(system)]
    return [*asked, *_metal(system)]


def require(found: list[Finding]) -> None:
    """Raises MissingTool that names all that is missing, with the way to each."""
    missing = [finding for finding in found if not finding.ok]
    if missing:
        what = "; ".join(f"{finding.name}: {finding.detail}" for finding in missing)
        raise MissingTool(f"not ready to build MLX: {what}", "; ".join(finding.fix or "" for finding in missing))


def architecture(capability: tuple[int, int]) -> str:
    """As MLX names it for nvcc: ``80``, and from 9.0 on the architecture's own set, ``121a``."""
    number = f"{capability[0]}{capability[1]}"
    return f"{number}a" if capability[0] >= 9 else number


def _finding(name: str, ok: bool, detail: str, fix: str) -> Finding:
    return Finding(name, ok, detail, "the build of MLX", None if ok else fix)


def _disk(backend: Backend, folder: Path, free: Callable[[Path], int] | None) -> Finding:
    there = next(path for path in (folder, *folder.resolve().parents) if path.is_dir())
    size = free(there) if free is not None else shutil.disk_usage(there).free
    needed = DISK_NEEDED[backend]
    detail = f"{size / 1e9:.0f} GB free for {folder}, {needed / 1e9:.0f} GB needed"
    return _finding("disk", size >= needed, detail, "free some, or name a folder on another disk with --out")


def _program(system: System, name: str, fix: str) -> Finding:
    path = system.which(name)
    return _finding(name, path is not None, path or "not on PATH", fix)


def _version(said: str, pattern: str) -> tuple[int, ...] | None:
    found = re.search(pattern, said)
    return tuple(int(part) for part in found[1].split(".")) if found else None


def _at_least(name: str, have: tuple[int, ...] | None, needed: tuple[int, ...], fix: str) -> Finding:
    wanted = ".".join(map(str, needed))
    if have is None:
        return _finding(name, False, f"not found, {wanted} needed", fix)
    shown = ".".join(map(str, have))
    return _finding(name, have >= needed, shown if have >= needed else f"{shown}, {wanted} needed", fix)


def _cmake(system: System) -> Finding:
    have = _version(system.run(["cmake", "--version"]).out, r"cmake version (\d+\.\d+)")
    return _at_least("cmake", have, CMAKE_NEEDED, "pip install cmake")


def _cuda(system: System) -> list[Finding]:
    have = _version(system.run(["nvcc", "--version"]).out, r"release (\d+\.\d+)")
    device = cuda_device(system)
    homes = [home for name in ("CUDA_HOME", "CUDA_PATH") if (home := system.environ(name))]
    roots = [
        "/usr/include",
        "/usr/include/*-linux-gnu",
        "/usr/local/cuda/include",
        *(f"{home}/include" for home in homes),
    ]

    def header(name: str, fix: str) -> Finding:
        there = next((path for root in roots for path in system.glob(f"{root}/{name}")), None)
        return _finding(name, there is not None, there or "not found", fix)

    return [
        _at_least("nvcc", have, CUDA_NEEDED, "install the CUDA toolkit and put its bin folder on PATH"),
        _program(system, "g++", "apt-get install g++"),
        header("cudnn.h", "apt-get install libcudnn9-dev-cuda-13, or the one of your CUDA"),
        header("lapacke.h", "apt-get install libblas-dev liblapack-dev liblapacke-dev"),
        _finding(
            "GPU",
            device is not None,
            f"sm_{architecture(device[0])}" if device else "none that CUDA can use, and tests need one",
            "use a machine with an NVIDIA GPU",
        ),
    ]


def _metal(system: System) -> list[Finding]:
    macos = _version(system.run(["sw_vers", "-productVersion"]).out, r"(\d+\.\d+)")
    sdk = _version(system.run(["xcrun", "-sdk", "macosx", "--show-sdk-version"]).out, r"(\d+\.\d+)")
    compiler = system.run(["xcrun", "-sdk", "macosx", "metal", "--version"])
    named = system.environ(TARGET_VARIABLE)
    target = _version(named or "", r"(\d+\.\d+)") if named else NAX_MACOS
    wanted = ".".join(map(str, NAX_MACOS))
    return [
        _at_least("macOS", macos, NAX_MACOS, "update macOS"),
        _at_least("macOS SDK", sdk, NAX_MACOS, "install Xcode 26.2 or newer and xcode-select it"),
        _finding(
            "Metal toolchain",
            compiler.ok,
            "xcrun metal" if compiler.ok else "xcrun finds no metal",
            "xcodebuild -downloadComponent MetalToolchain",
        ),
        _at_least(TARGET_VARIABLE, target, NAX_MACOS, f"unset {TARGET_VARIABLE}, or set it to {wanted}"),
    ]
