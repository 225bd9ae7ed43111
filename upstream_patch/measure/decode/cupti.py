"""Kernels as CUPTI sees them, in this process: name, start and end of each, also of those inside CUDA graphs.

Only the parts of CUPTI's C interface that are used, through ctypes; the record's layout is that of
``CUpti_ActivityKernel4`` and all later ones up to ``name``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from upstream_patch.errors import MissingTool
from upstream_patch.machine.system import System

_KERNEL, _CONCURRENT_KERNEL = 3, 10  # CUpti_ActivityKind
_FORCED = 1  # flush buffers that are not full
_BUFFER_BYTES, _ALIGNMENT = 8 << 20, 8
_HELP = "install CUDA's CUPTI (pip install nvidia-cuda-cupti, or the toolkit's extras/CUPTI)"

Seen = Callable[[str, int, int], None]
"""(name, start ns, end ns) of a kernel."""


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("before", ctypes.c_uint8 * 12),  # caches, registers
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("between", ctypes.c_uint8 * 72),  # device, context, stream, grid, block, memory, ids
        ("name", ctypes.c_char_p),
    )


_Request = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class Cupti:
    """Traces every kernel of this process from now on. ``start`` it before the GPU is first used, so that no graph was
    made unseen. Raises MissingTool where there is no CUPTI, or where it refuses."""

    def __init__(self, system: System | None = None) -> None:
        self._library = _library(system or System())
        self._kernels: list[tuple[str, int, int]] | None = None
        self._buffers: dict[int, Any] = {}
        self._callbacks = (_Request(self._give), _Complete(self._take))  # kept: CUPTI holds only their addresses
        self._call("cuptiActivityRegisterCallbacks", *self._callbacks)
        self._call("cuptiActivityEnable", _CONCURRENT_KERNEL)

    def begin(self) -> None:
        """Forget what ran so far, and keep what runs from now on. The device must be idle."""
        self._flush()
        self._kernels = []

    def end(self) -> list[tuple[str, int, int]]:
        """(name, start ns, end ns) of every kernel since ``begin``. The device must be idle."""
        self._flush()
        found, self._kernels = self._kernels or [], None
        return found

    def _flush(self) -> None:
        self._call("cuptiActivityFlushAll", _FORCED)

    def _give(self, buffer: Any, size: Any, most: Any) -> None:
        made = ctypes.create_string_buffer(_BUFFER_BYTES + _ALIGNMENT)
        address = -(-ctypes.addressof(made) // _ALIGNMENT) * _ALIGNMENT
        self._buffers[address] = made
        buffer[0], size[0], most[0] = address, _BUFFER_BYTES, 0

    def _take(self, context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        if self._kernels is not None:
            self._kernels.extend(self._records(buffer, valid))
        self._buffers.pop(buffer, None)

    def _records(self, buffer: int, valid: int) -> Iterator[tuple[str, int, int]]:
        at = ctypes.c_void_p(None)
        advance = self._library.cuptiActivityGetNextRecord
        while advance(ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(at)) == 0 and at.value:
            kernel = ctypes.cast(at, ctypes.POINTER(_Kernel)).contents
            if kernel.kind in (_KERNEL, _CONCURRENT_KERNEL):
                yield demangled(kernel.name or b""), int(kernel.start), int(kernel.end)

    def _call(self, function: str, *arguments: Any) -> None:
        code = int(getattr(self._library, function)(*arguments))
        if code:
            raise MissingTool(
                f"CUPTI's {function} said {code}", "see CUpti_result; ncu's counters may be forbidden too"
            )


def _library(system: System) -> Any:
    folders = [f"{folder}/nvidia/{one}/lib" for folder in system.site_folders() for one in ("cu13", "cuda_cupti")]
    folders += ["/usr/local/cuda*/extras/CUPTI/lib64", "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib"]
    paths = [path for folder in folders for path in system.glob(f"{folder}/libcupti.so.*")]
    found = system.library(*paths, "libcupti.so.13", "libcupti.so.12", "libcupti.so")
    if found is None:
        raise MissingTool("there is no CUPTI here", _HELP)
    return found


def demangled(name: bytes) -> str:
    """A C++ name as it was written; the name itself where it is none, or where no C++ library can tell."""
    system = System()
    runtime = system.library("libstdc++.so.6")
    if runtime is None or not name.startswith(b"_Z"):
        return name.decode(errors="replace")
    runtime.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    address = runtime.__cxa_demangle(name, None, None, ctypes.byref(status))
    if not address:
        return name.decode(errors="replace")
    text = ctypes.string_at(address).decode(errors="replace")
    runtime.free(ctypes.c_void_p(address))
    return text
