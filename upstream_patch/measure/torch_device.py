"""The timer's device on PyTorch: one CUDA stream, events for clocks, and operations as CUDA graphs.

A batch is a list of captured graphs, so that the host enqueues a sample in one call whatever the operations are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from upstream_patch.errors import MissingTool
from upstream_patch.measure.timer import Work

_CYCLES_PER_US = 2000
"""About the clock of the cards this runs on; how long a hold really was is measured."""


def torch_here() -> Any:
    """The torch module. Raises MissingTool where it is not installed, or sees no CUDA device."""
    try:
        torch: Any = import_module("torch")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise MissingTool(
            "PyTorch is not installed", "pip install torch beside this package, on a machine with an NVIDIA GPU"
        ) from error
    if not torch.cuda.is_available():
        raise MissingTool("PyTorch sees no CUDA device", "take a CUDA build of torch, on a machine with an NVIDIA GPU")
    return torch


class TorchDevice:
    """PyTorch's current CUDA stream."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._begin: Any = None

    def host_us(self) -> float:
        return time.perf_counter_ns() / 1e3

    def hold(self, us: float) -> Any:
        self._begin = self._event()
        self._torch.cuda._sleep(round(us * _CYCLES_PER_US))
        return self._begin, self._begin, self._event()

    def submit(self, batch: Sequence[Any]) -> None:
        for graph in batch:
            graph.replay()

    def stamp(self) -> Any:
        return self._begin, self._event()

    def wait(self) -> None:
        self._torch.cuda.synchronize()

    def read(self, handle: Any) -> tuple[int, ...]:
        """ns since the hold of the sample began."""
        origin, *events = handle
        return tuple(0 if event is origin else round(origin.elapsed_time(event) * 1e6) for event in events)

    def capture(self, enqueue: Callable[[], None]) -> Any:
        """A graph of what ``enqueue`` puts on the current stream; every operation in it waits for the one before."""
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            enqueue()
        return graph

    def _event(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def graph_work(device: TorchDevice, launch: Callable[[int], object], copies: int) -> Work:
    """Work of n operations, as one graph; ``launch(i)`` enqueues one on copy i of the weights.

    The rotation goes on from call to call, so a copy comes back only when all others have been used. Graphs are kept:
    there is one for each place in the rotation at which a batch of n begins.
    """
    graphs: dict[tuple[int, int], Any] = {}
    following = 0

    def work(n: int) -> Sequence[Any]:
        nonlocal following
        start = following
        following = (start + n) % copies
        if (n, start) not in graphs:

            def enqueue() -> None:
                for i in range(n):
                    launch((start + i) % copies)

            graphs[n, start] = device.capture(enqueue)
        return [graphs[n, start]]

    return work
