"""The GPU's bits and the simulator's: what committed records hold, and that a difference would be seen."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from upstream_patch.correctness import exact
from upstream_patch.correctness.device_bits import compare
from upstream_patch.correctness.paths import H200
from upstream_patch.records import kernel_hash
from upstream_patch.records.schema import Sanitized, SanitizerBody
from upstream_patch.records.store import load_all
from upstream_patch.reference import make_inputs
from upstream_patch.simulate.small_m import run_small_m

pytestmark = pytest.mark.needs_simulator
SAMPLE = 40
"""Every so-manieth launch of a record is simulated."""


def _small() -> Sanitized:
    return min(exact.launched(H200), key=lambda each: (each.problem.k * each.problem.n, each.seed))


def _simulated(launch: Sanitized) -> str:
    variant = next(case.cut(H200)[0] for case in exact.cases() if case.cut(H200)[0].name == launch.kernel)
    inputs = make_inputs(launch.problem, launch.seed)
    return sha256(run_small_m(variant, launch.grid[0], inputs, shared_limit=232448).outputs[0].tobytes()).hexdigest()


def test_the_same_bits_are_seen_and_others_too() -> None:
    launch = _small()
    same = launch.model_copy(update={"output_sha256": _simulated(launch)})
    other = launch.model_copy(update={"output_sha256": "0" * 64})
    found = compare([same, other, launch], H200[0])
    assert [each.verdict for each in found] in (["identical", "different"], ["identical", "order of sums"])
    assert "ascending" in found[0].orders and found[1].orders == ()


def test_the_bits_of_an_h200_are_the_simulator_s_or_the_order_of_sums_explains_them(root: Path) -> None:
    records = [each.record for each in load_all(root / "evidence")]
    today = [each.body for each in records if each.kernel == kernel_hash.identity("small_m")]
    launches = [launch for body in today if isinstance(body, SanitizerBody) for launch in body.launched]
    hashed = [launch for launch in launches if launch.output_sha256 is not None]
    if not hashed:
        pytest.skip("no record of today's kernel holds hashes of outputs: a GPU makes one with `nox -s sanitize`")
    found = compare(hashed[::SAMPLE], H200[0])
    assert [each for each in found if each.verdict == "different"] == []
    assert any(each.verdict == "identical" for each in found)
