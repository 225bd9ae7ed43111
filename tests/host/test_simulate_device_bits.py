"""The GPU's bits and the simulator's: what committed records hold, and that a difference would be seen."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from upstream_patch.correctness import device_bits, exact, exact_cases
from upstream_patch.correctness.device_bits import compare
from upstream_patch.correctness.outcome import Outcome
from upstream_patch.correctness.paths import H200
from upstream_patch.kernels import Variant, variants
from upstream_patch.records.schema import Sanitized
from upstream_patch.records.store import load_all
from upstream_patch.reference import make_inputs
from upstream_patch.simulate import Run
from upstream_patch.simulate.small_m import FILE, run_small_m
from upstream_patch.simulate.source import Kernel, small_m_kernel

pytestmark = pytest.mark.needs_simulator
SAMPLE = 60
"""Every so-manieth launch of a record is simulated."""


def _small(wanted: Callable[[Sanitized], bool] = lambda _: True) -> Sanitized:
    found = filter(wanted, exact.launched(H200))
    return min(found, key=lambda each: (each.problem.batch * each.problem.k * each.problem.n, each.seed))


def _with(launch: Sanitized, checksum: str) -> Sanitized:
    return launch.model_copy(update={"output_sha256": checksum})


def _simulated(launch: Sanitized, kernel: Kernel | None = None) -> str:
    inputs = make_inputs(launch.problem, launch.seed)
    run = run_small_m(
        _variant(launch),
        launch.grid[0],
        inputs,
        shared_limit=232448,
        kernel=kernel,
        x_padding=launch.x_padding,
        sums="truncating",
    )
    return sha256(run.outputs[0].tobytes()).hexdigest()


def _variant(launch: Sanitized) -> Variant:
    return next(variant for variant in variants("sm_90") if variant.name == launch.kernel)


def test_the_same_bits_are_seen_and_others_too() -> None:
    launch = _small()
    same = compare(_with(launch, _simulated(launch)))
    assert (same.sums, same.where, same.why) == ("truncating", None, None)
    other = compare(_with(launch, "0" * 64))
    assert (other.sums, other.where) == (None, None)
    assert (other.why or "").startswith(f"outputs differ, in more than one bit, and the GPU's checksum {'0' * 64} does")


@pytest.mark.parametrize(
    "wanted",
    [
        lambda launch: launch.problem.batch > 1 and launch.problem.layout == "mk",
        lambda launch: launch.problem.batch > 1 and launch.problem.layout == "b1k" and launch.problem.m > 1,
        lambda launch: launch.x_padding == 1,
        lambda launch: launch.x_padding == 8 and launch.problem.layout == "b1k",
        lambda launch: launch.kernel.endswith("s3_t4"),
        lambda launch: launch.kernel.endswith("t8"),
    ],
    ids=["batch", "b1k", "padding of 1", "padding of 8 in b1k", "long ring", "eight tiles"],
)
def test_every_kind_of_launch_is_recomputed(
    wanted: Callable[[Sanitized], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = _small(wanted)
    paddings = set()

    def watched(*given: Any, **named: Any) -> Run:
        paddings.add(named["x_padding"])
        return run_small_m(*given, **named)

    monkeypatch.setattr(device_bits, "run_small_m", watched)
    found = compare(_with(launch, _simulated(launch)))
    assert (found.sums, found.why) == ("truncating", None)
    assert paddings == {launch.x_padding}


@pytest.mark.parametrize("padding", exact_cases.PADDINGS)
def test_the_padding_of_x_reaches_the_kernel(padding: int) -> None:
    """A kernel that takes the rows of x to be contiguous gives other bits, the sound one those of contiguous rows."""
    launch = _small(lambda each: each.x_padding == padding and each.problem.batch == 1)
    contiguous = launch.model_copy(update={"x_padding": 0})
    blind = small_m_kernel(_variant(launch)).edited("rows of K", FILE, "row * o.x_row, o.x_row,", "row * o.k, o.k,")
    assert _simulated(launch) == _simulated(contiguous) == _simulated(contiguous, blind) != _simulated(launch, blind)


@pytest.mark.needs_record
def test_the_bits_of_an_h200_are_the_simulator_s(root: Path) -> None:
    recorded = device_bits.newest(load_all(root / "evidence"))
    if recorded is None:
        pytest.skip(device_bits.said(None, Outcome()))
    found = [compare(launch) for launch in recorded.launches[::SAMPLE]]
    assert [each.why for each in found if each.why] == []
