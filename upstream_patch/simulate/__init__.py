"""The lane simulator: kernel sources on a CPU, one fiber a lane, with the checks that a GPU does not give."""

from __future__ import annotations

from upstream_patch.simulate.api import (
    CHECKS,
    ORDERS,
    SUMS,
    Buffer,
    Check,
    Fault,
    Order,
    Report,
    Run,
    Stats,
    Sums,
    run,
)
from upstream_patch.simulate.library import SimulatorCompileError, compiler
from upstream_patch.simulate.small_m import EXCUSED, Placement, run_small_m, values
from upstream_patch.simulate.source import Kernel, cuda_kernel, small_m_kernel

__all__ = [
    "CHECKS",
    "EXCUSED",
    "ORDERS",
    "SUMS",
    "Buffer",
    "Check",
    "Fault",
    "Kernel",
    "Order",
    "Placement",
    "Report",
    "Run",
    "SimulatorCompileError",
    "Stats",
    "Sums",
    "compiler",
    "cuda_kernel",
    "run",
    "run_small_m",
    "small_m_kernel",
    "values",
]
