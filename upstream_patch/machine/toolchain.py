"""Where the compilers are: NVRTC from a wheel or a CUDA toolkit, and the headers that go with it."""

from __future__ import annotations

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
