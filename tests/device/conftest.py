"""The device tests measure as the verbs do: MLX reads its graph limits when it first uses the GPU, so this is first."""

from __future__ import annotations

from typing import Any

import pytest

from upstream_patch import machine
from upstream_patch.measure.graphs import described, one_graph_a_sample
from upstream_patch.records import dispatch_hash, versions
from upstream_patch.records.kernel_hash import identity

one_graph_a_sample()


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """What a record holds of its machine, in place of pytest-benchmark's own, which names the computer."""
    machine_info.clear()
    machine_info.update(
        machine=machine.probe().model_dump(),
        versions=versions(),
        kernel=identity("small_m").model_dump(),
        dispatch_hash=dispatch_hash.today(),
        graph_limits=described(),
    )
