"""How long MLX's CUDA graphs may get: a sample is measured as one graph."""

from __future__ import annotations

import os
from collections.abc import Mapping

LIMITS = {"MLX_MAX_OPS_PER_BUFFER": "4096", "MLX_MAX_MB_PER_BUFFER": "100000"}
"""By default MLX cuts a graph after 30 nodes (on compute capability 9.0), and past about 10 graphs in flight it waits
for the device: 324 operations of 2 us then took 11 us each, in both arms alike."""
_REPORTED = (*LIMITS, "MLX_USE_CUDA_GRAPHS")
_raised: set[str] = set()  # by this process, not by who started it


def one_graph_a_sample() -> None:
    """Raise MLX's limits for this process, unless the caller's environment sets its own. MLX reads them when it first
    uses the GPU, so this comes before that.

    They hold for whatever else the process does on the GPU, so for every stage of the main job that is no process of
    its own: when work is submitted changes, not what is computed.
    """
    for name, value in LIMITS.items():
        if name not in os.environ:
            os.environ[name] = value
            _raised.add(name)


def as_given() -> dict[str, str]:
    """This process's environment without the limits that it raised itself: for a child that measures something else."""
    return {name: value for name, value in os.environ.items() if name not in _raised}


def described(environment: Mapping[str, str] = os.environ) -> str:
    """The limits in force, for a record."""
    return ", ".join(f"{name}={environment[name]}" for name in _REPORTED if name in environment) or "default"


RAISED = described(LIMITS)
"""What a record says that was measured with our limits."""
