"""Where the compilers are: NVRTC from a wheel or a CUDA toolkit, the headers that go with it, and the disassembler."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from upstream_patch.machine.system import System

NVRTC_FIX = "pip install -e '.[compile]' in the clone (NVRTC wheels for Linux; no GPU and no CUDA toolkit needed)"


@dataclass(frozen=True)
class Nvrtc:
    """Paths of one NVRTC. ``builtins`` is loaded first: the wheel's library does not find it by itself."""

    library: str
    builtins: str | None
    includes: tuple[str, ...]
    origin: str
    """``wheel`` or ``toolkit``."""


def find_nvrtc(system: System | None = None) -> Nvrtc | None:
    """The NVRTC that comes first: wheels of this Python, then $CUDA_HOME, then /usr/local/cuda. None where none is.

    Only an NVRTC that has ``cuda_bf16.h`` beside it counts.
    """
    system = system or System()
    roots = [(f"{folder}/nvidia/cu*", "wheel") for folder in system.site_folders()]
    roots += [(home, "toolkit") for name in ("CUDA_HOME", "CUDA_PATH") if (home := system.environ(name))]
    roots += [("/usr/local/cuda", "toolkit")]
    for root, origin in roots:
        headers = system.glob(f"{root}/include/cuda_bf16.h")
        libraries = system.glob(f"{root}/lib/libnvrtc.so.*") or system.glob(f"{root}/lib64/libnvrtc.so.*")
        if headers and libraries:
            library = libraries[0]
            builtins = system.glob(f"{PurePosixPath(library).parent}/libnvrtc-builtins.so.*")
            include = str(PurePosixPath(headers[0]).parent)
            return Nvrtc(library, builtins[0] if builtins else None, (include, f"{include}/cccl"), origin)
    return None


NVDISASM_FIX = "pip install -e '.[compile]' in the clone (the nvdisasm wheel for Linux; no CUDA toolkit needed)"


def find_nvdisasm(system: System | None = None) -> str | None:
    """The disassembler of machine code: the wheel of this Python, then $CUDA_HOME, then PATH. None where none is."""
    system = system or System()
    roots = [f"{folder}/nvidia/cu*" for folder in system.site_folders()]
    roots += [home for name in ("CUDA_HOME", "CUDA_PATH") if (home := system.environ(name))]
    found = (program for root in roots for program in system.glob(f"{root}/bin/nvdisasm"))
    return next(found, None) or system.which("nvdisasm")


MLX_HEADERS_FIX = "pip install -e '.[cpu]' in the clone (MLX's wheel carries its Metal headers on every platform)"


def find_mlx_headers(system: System | None = None) -> str | None:
    """The include folder of the installed MLX, if it has Metal kernels."""
    system = system or System()
    for folder in system.site_folders():
        found = system.glob(f"{folder}/mlx/include/mlx/backend/metal/kernels/quantized.h")
        if found:
            return str(PurePosixPath(found[0]).parents[4])
    return None


CXX_FIX = "pip install -e '.[simulate]' in the clone (the ziglang wheel: clang for every platform, no root needed)"
CXX_VARIABLE = "UPSTREAM_PATCH_CXX"


@dataclass(frozen=True)
class Cxx:
    """A C++ compiler for the machine we run on. ``family`` decides its options: zig, clang or gcc."""

    command: tuple[str, ...]
    family: str
    origin: str


def find_cxx(system: System | None = None) -> Cxx | None:
    """The compiler of the lane simulator: $UPSTREAM_PATCH_CXX, the ziglang wheel, then clang++ and g++ on PATH."""
    system = system or System()
    named = (system.environ(CXX_VARIABLE) or "").strip()
    if named:
        family = next((name for name in ("zig", "clang") if name in PurePosixPath(named.split()[0]).name), "gcc")
        return Cxx(tuple(named.split()), family, f"${CXX_VARIABLE}")
    for folder in system.site_folders():
        found = system.glob(f"{folder}/ziglang/zig")
        if found:
            return Cxx((found[0], "c++"), "zig", "ziglang wheel")
    for program, family in (("clang++", "clang"), ("g++", "gcc")):
        path = system.which(program)
        if path is not None:
            return Cxx((path,), family, f"{program} on PATH")
    return None


CLANG_NEEDED = 19
"""Of the simulator's Metal front: 19 and 22 find every planted fault; those of older ziglang wheels do not link."""
_APPLE_CLANG_NEEDED = 17
"""Apple counts its own versions: this one is made from LLVM 19."""


def find_metal_cxx(system: System | None = None) -> Cxx | str:
    """``find_cxx``, where that is a clang new enough for Metal kernels on a CPU; else what it needs, in words."""
    system = system or System()
    cxx = find_cxx(system)
    if cxx is None:
        return "needs clang, and there is no C++ compiler"
    if cxx.family == "gcc":
        return f"needs clang, not the {cxx.origin}"
    version = re.search(r"(Apple )?clang version (\d+)", system.run([*cxx.command, "--version"]).out)
    if version is None:
        return f"needs clang {CLANG_NEEDED} or newer, and the {cxx.origin} does not say its version"
    needed = _APPLE_CLANG_NEEDED if version[1] else CLANG_NEEDED
    if int(version[2]) < needed:
        return f"needs {version[1] or ''}clang {needed} or newer, not the {version[2]} of the {cxx.origin}"
    return cxx
