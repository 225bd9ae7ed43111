"""Launch compiled kernels through the CUDA driver API, on buffers of exactly the bytes asked for.

``libcuda`` through ctypes, as ``compile`` calls NVRTC: some twenty functions, for which NVIDIA's bindings would be an
8 MB compiled wheel for each Python version and architecture. No MLX, no CUDA runtime. Its context is the device's
primary one, which CUDA's runtime uses too: a kernel can be launched on another library's stream and memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upstream_patch.errors import MissingTool, UserError
from upstream_patch.kernels import Variant, small_m_variant, strides
from upstream_patch.problem import Problem

_LIBRARY = "libcuda.so.1"
_FIX = "run on a machine with an NVIDIA GPU and its driver; `upstream-patch doctor` shows what is here"
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute
_MAX_DYNAMIC_SHARED = 8  # CUfunction_attribute

Grid = tuple[int, int, int]


class DriverError(UserError):
    """A call of the CUDA driver failed: what was called, and CUDA's name of the error."""

    exit_code = 4


@dataclass(frozen=True)
class Operands:
    """Device addresses of one matmul's operands."""

    x: int
    w: int
    scales: int
    biases: int | None
    """None for floating-point weights."""
    out: int


def small_m_cut(problem: Problem, capability: tuple[int, int], multiprocessors: int) -> tuple[Variant, Grid]:
    """The instance that a problem takes on a device, and its grid; the first axis shares the tiles of N."""
    variant, launch = small_m_variant(problem, capability, multiprocessors)
    return variant, launch.grid


def small_m_arguments(problem: Problem, at: Operands, x_padding: int = 0) -> list[Any]:
    """The small-M kernel's arguments in the order of ``kernels.Variant.entry_function``.

    ``x_padding`` elements lie between two rows of x; else x and out are contiguous. The one place that knows that order
    outside MLX and the simulator.
    """
    pointers = (at.x, at.w, at.scales, *(() if at.biases is None else (at.biases,)), at.out)
    sizes = problem.m, problem.n, problem.k
    steps = strides(problem, x_padding)
    return [*map(ctypes.c_void_p, pointers), *map(ctypes.c_int, sizes), *map(ctypes.c_longlong, steps)]


@dataclass(frozen=True)
class Kernel:
    """A loaded entry function. Its module stays loaded as long as the process lives."""

    name: str
    threads: int
    shared_bytes: int
    handle: Any = field(repr=False)


class Gpu:
    """CUDA device ``index`` and its primary context, current in the thread that makes this.

    Raises MissingTool where there is no driver or no such device; every method raises DriverError when CUDA does.
    """

    def __init__(self, index: int = 0, library: Any = None) -> None:
        self._cuda = library or _load()
        device, context = ctypes.c_int(), ctypes.c_void_p()
        code = self._cuda.cuInit(0) or self._cuda.cuDeviceGet(ctypes.byref(device), index)
        if code != 0:
            raise MissingTool(f"no CUDA device {index} that the driver can use ({self._error(code)})", _FIX)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._device = device

    @property
    def capability(self) -> tuple[int, int]:
        return self._attribute(_MAJOR), self._attribute(_MINOR)

    @property
    def multiprocessors(self) -> int:
        return self._attribute(_MULTIPROCESSORS)

    def load(self, variant: Variant, cubin: bytes) -> Kernel:
        """A variant's entry function, allowed its dynamic shared memory."""
        module, handle = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        self._call("cuModuleGetFunction", ctypes.byref(handle), module, variant.name.encode())
        self._call("cuFuncSetAttribute", handle, _MAX_DYNAMIC_SHARED, variant.shared_bytes)
        return Kernel(variant.name, variant.threads, variant.shared_bytes, handle)

    def allocate(self, size: int) -> int:
        """The address of exactly ``size`` new bytes, aligned to 256 or more; their content is undefined."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def upload(self, address: int, data: NDArray[Any]) -> None:
        """Copy a contiguous array to the device."""
        data = np.ascontiguousarray(data)
        self._call(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes)
        )

    def download(self, address: int, data: NDArray[Any]) -> None:
        """Fill a contiguous array from the device, once all that was launched has ended."""
        self._call(
            "cuMemcpyDtoH_v2", ctypes.c_void_p(data.ctypes.data), ctypes.c_uint64(address), ctypes.c_size_t(data.nbytes)
        )

    def launch(self, kernel: Kernel, grid: Grid, arguments: Sequence[Any], stream: int = 0) -> None:
        """Enqueue one launch on a stream (a ``CUstream`` as an integer; 0 is the default one)."""
        # CUDA copies the arguments before it returns, so they need not outlive the call
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        sizes = (*grid, kernel.threads, 1, 1, kernel.shared_bytes)
        self._call("cuLaunchKernel", kernel.handle, *sizes, ctypes.c_void_p(stream), pointers, None)

    def wait(self) -> None:
        """Return when everything enqueued has ended."""
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        """Give the primary context back: where nobody else holds it, it ends, with all that it holds."""
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise DriverError(f"{name} failed: {self._error(code)}")

    def _error(self, code: int) -> str:
        name = ctypes.c_char_p()
        self._cuda.cuGetErrorName(code, ctypes.byref(name))
        return name.value.decode() if name.value else f"CUDA error {code}"


def _load() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise MissingTool("no CUDA driver on this machine", _FIX) from error
