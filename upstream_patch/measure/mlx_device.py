"""The timer's device on real MLX CUDA: stamp, hold, link and empty kernels through ``mx.fast.cuda_kernel``.

MLX gives Python no CUDA events. Each ``mx.async_eval`` commits its own CUDA graph, and the graphs of one stream run in
order, so a one-thread kernel that stores ``%globaltimer`` is a time stamp of its place in the stream.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

_CLOCK = """
__device__ __forceinline__ unsigned long long upstream_patch_clock() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}
__device__ __forceinline__ void upstream_patch_store(unsigned int* out, unsigned long long t) {
  out[0] = static_cast<unsigned int>(t);
  out[1] = static_cast<unsigned int>(t >> 32);
}
"""
# The first store is made before the spin: where the page of the output must first move to the GPU, it moves meanwhile.
_HOLD = """
  const unsigned int ns = hold_ns[0];
  const unsigned long long begin = upstream_patch_clock();
  upstream_patch_store(times, begin);
  unsigned long long now = begin;
  while (now - begin < ns) now = upstream_patch_clock();
  upstream_patch_store(times + 2, upstream_patch_clock());
"""
# The clock is read before anything is loaded or stored.
_STAMP = "  upstream_patch_store(times, upstream_patch_clock());\n"
_RESOLUTION = """
  unsigned long long last = upstream_patch_clock();
  unsigned int smallest = 0xffffffffu;
  for (unsigned int i = 0; i < rounds[0]; ++i) {
    const unsigned long long now = upstream_patch_clock();
    const unsigned long long step = now - last;
    if (step > 0 && step < smallest) smallest = static_cast<unsigned int>(step);
    last = now;
  }
  step_ns[0] = smallest;
"""
_EMPTY = "  if (unused[0] == 0xffffffffu) out[0] = 1;\n"
# The next x is this x, but only once y is there; a NaN in y is passed on, so the read is no decoration.
_LINK = """
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const T first = y[0];
  next[i] = (first == first) ? x[i] : first;
"""


class MlxDevice:
    """MLX's default GPU stream. Raises MissingTool where MLX cannot use a CUDA GPU."""

    def __init__(self) -> None:
        from upstream_patch import ops

        ops.require_cuda()
        mx: Any = import_module("mlx.core")  # its stubs leave async_eval untyped
        self._mx = mx
        kernel = mx.fast.cuda_kernel
        self._hold_kernel = kernel("upstream_patch_hold", ["hold_ns"], ["times"], _HOLD, _CLOCK)
        self._stamp_kernel = kernel("upstream_patch_stamp", ["unused"], ["times"], _STAMP, _CLOCK)
        self._empty_kernel = kernel("upstream_patch_empty", ["unused"], ["out"], _EMPTY)
        self._link_kernel = kernel("upstream_patch_link", ["x", "y"], ["next"], _LINK)
        self._unused = mx.array([0], dtype=mx.uint32)
        self._holds: dict[int, Any] = {}
        mx.eval(self._unused)

    def host_us(self) -> float:
        return time.perf_counter_ns() / 1e3

    def hold(self, us: float) -> Any:
        ns = self._hold_ns(us)
        handle = self._one_thread(self._hold_kernel, ns, 4)
        self._mx.async_eval(handle)
        return handle

    def submit(self, batch: Sequence[Any]) -> None:
        self._mx.async_eval(*batch)

    def stamp(self) -> Any:
        handle = self._one_thread(self._stamp_kernel, self._unused, 2)
        self._mx.async_eval(handle)
        return handle

    def wait(self) -> None:
        self._mx.synchronize()

    def read(self, handle: Any) -> tuple[int, ...]:
        words: list[int] = handle.tolist()
        return tuple(low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True))

    def empty(self, n: int) -> list[Any]:
        """n independent kernels that do nothing (a Work: the launch floor)."""
        return [self._one_thread(self._empty_kernel, self._unused, 1) for _ in range(n)]

    def link(self, x: Any, y: Any) -> Any:
        """x again, as the output of one small kernel that also reads y: x of the next operation of a chain."""
        size = int(x.size)
        (following,) = self._link_kernel(
            inputs=[x, y],
            template=[("T", x.dtype)],
            grid=(size, 1, 1),
            threadgroup=(math.gcd(size, 256), 1, 1),  # divides the grid: the kernel has no bounds check
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
        )
        return following

    @cached_property
    def resolution_ns(self) -> int:
        """The smallest step the device clock was seen to make."""
        mx = self._mx
        kernel = mx.fast.cuda_kernel("upstream_patch_resolution", ["rounds"], ["step_ns"], _RESOLUTION, _CLOCK)
        rounds = mx.array([20_000], dtype=mx.uint32)
        return int(self._one_thread(kernel, rounds, 1).item())

    def _hold_ns(self, us: float) -> Any:
        # in steps of 50 us, so that few arrays are ever made
        step = max(1, round(us / 50.0))
        if step not in self._holds:
            array = self._mx.array([step * 50_000], dtype=self._mx.uint32)
            self._mx.eval(array)
            self._holds[step] = array
        return self._holds[step]

    def _one_thread(self, kernel: Any, argument: Any, words: int) -> Any:
        (out,) = kernel(
            inputs=[argument],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[(words,)],
            output_dtypes=[self._mx.uint32],
        )
        return out
