"""`simulate --full` against a record of an H200: what it compares, what it says, and that a difference is a failure."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from upstream_patch.cli import run as cli
from upstream_patch.correctness import device_bits, exact, simulation
from upstream_patch.correctness.device_bits import Difference, compare, run_recorded
from upstream_patch.correctness.outcome import Outcome
from upstream_patch.correctness.paths import H200
from upstream_patch.correctness.simulation import Front, SimulatorFinding, verdict
from upstream_patch.errors import UserError
from upstream_patch.records import kernel_hash
from upstream_patch.records.schema import Sanitized, SanitizerBody, SanitizerRun, Tool
from upstream_patch.simulate import SUMS, Sums

pytestmark = pytest.mark.needs_simulator
_EVERY = sorted(
    exact.launched(H200), key=lambda each: (each.problem.batch * each.problem.k * each.problem.n, each.seed)
)
ONE, OTHER = [each for each in _EVERY if each.problem.m > 1 and each.problem.n > 3][:2]
TODAY = kernel_hash.identity("small_m")


def outputs(launch: Sanitized, sums: Sums = "truncating") -> NDArray[Any]:
    return device_bits._simulated(launch, sums).outputs[0].copy()


def holding(launch: Sanitized, out: NDArray[Any]) -> Sanitized:
    """The launch of a GPU that gave this output."""
    return launch.model_copy(update={"output_sha256": sha256(out.tobytes()).hexdigest()})


def write(synthetic: Any, launches: Sequence[Sanitized], age_hours: int = 0, **changes: Any) -> str:
    """The id of a record of a GPU like the H200."""
    runs, logs = [], {}
    for tool in get_args(Tool):
        for plant, errors in ((None, 0), ("planted", 1)):
            logs[f"{tool}.{plant}.log"] = b"said"
            count = 1 if plant else len(launches)
            runs.append(SanitizerRun(tool=tool, plant=plant, launches=count, errors=errors, log=f"{tool}.{plant}.log"))
    body = SanitizerBody(sanitizer_version="1", options={}, launched=list(launches), runs=runs)
    gpu = synthetic.machine.gpu.model_copy(update={"compute_capability": "9.0", "multiprocessors": 132})
    given = {"kernel": TODAY, "machine": synthetic.machine.model_copy(update={"gpu": gpu}), "attachments": logs}
    return str(synthetic.write(body, age_hours, **(given | changes)).stem)


def no_plants() -> Outcome:
    return Outcome(cases=1, launches=1)


def idle_front(full: bool, seed: int | None) -> Front:
    return Front("nothing", [], run_recorded, no_plants, device_bits.kernels_of([ONE]))


def test_a_full_run_compares_every_launch_and_names_what_differs(
    synthetic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "FRONTS", (idle_front,))
    changed = outputs(OTHER)
    changed[1, 3] += 1
    record = write(synthetic, [holding(ONE, outputs(ONE)), holding(OTHER, changed), ONE])
    said: list[str] = []
    done = simulation.simulate(said.append, full=True, workers=1, evidence=synthetic.root)
    assert done.bits_said == (
        f"2 launches of {record} compared with the H200's bits, 1 identical; 1 more have no checksum, or an instance "
        "of another day"
    )
    assert done.bits is not None
    assert (done.bits.plants.cases, done.bits.plants.failures, done.bits.cover.launches) == (1, (), 1 + len(SUMS))
    assert said == list(done.failures) == list(done.bits.cover.failures)
    (line,) = said
    name = f"{OTHER.kernel}, {OTHER.problem.id}, grid {OTHER.grid}, seed {OTHER.seed}, x padded by {OTHER.x_padding}"
    assert line.startswith(f"{name}: row 1, column 3 is ")
    assert f"(0x{changed[1, 3]:04x}) on the GPU" in line and f"(0x{changed[1, 3] - 1:04x}) here" in line
    with pytest.raises(SimulatorFinding, match=r"^the simulator found: small_m_"):
        verdict(done)


def test_the_newest_record_of_an_h200_with_today_s_kernel_is_compared(synthetic: Any) -> None:
    """Others are older, of another kernel or GPU, or hold no checksum."""
    hashed = [holding(ONE, outputs(ONE))]
    write(synthetic, hashed, 1, kernel=synthetic.kernel)
    write(synthetic, [ONE], 2)
    write(synthetic, hashed, 3, machine=synthetic.machine)
    renamed = [hashed[0].model_copy(update={"kernel": "small_m_bf16_b4_g64_r8_w8_s9_t9"})]
    write(synthetic, renamed, 4)
    assert device_bits.newest(synthetic.load()) is None
    write(synthetic, hashed, 5)
    expected = write(synthetic, hashed + renamed, 6)
    write(synthetic, hashed + renamed, 7, kernel=synthetic.kernel)
    assert device_bits.newest(synthetic.load()) == device_bits.Recorded(expected, tuple(hashed), 1)


def test_a_full_run_without_a_record_says_so(
    synthetic: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(simulation, "FRONTS", (idle_front,))
    with pytest.raises(UserError, match="no folder"):
        cli.simulate(full=True, evidence=tmp_path / "none")
    (tmp_path / "empty").mkdir()
    cli.simulate(full=True, evidence=tmp_path / "empty")
    bits, summary = capsys.readouterr().out.splitlines()
    assert bits.startswith("NOT COMPARED with an H200's bits: no record of one holds checksums of today's kernel")
    assert "1 planted faults" in summary
    monkeypatch.setattr(device_bits, "newest", lambda records: pytest.fail("a run that is not full compares nothing"))
    cli.simulate(evidence=tmp_path / "none")
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_order_of_sums_is_told_where_it_explains_a_difference() -> None:
    """And where it may: the GPU's bits are of no order, and those of two orders differ."""
    ours, theirs = outputs(ONE), outputs(ONE, "descending")
    row, column = (int(at) for at in np.argwhere(ours != theirs)[0])
    found = compare(holding(ONE, theirs))
    assert (found.sums, len(found.runs)) != ("truncating", 1)
    assert found.where == Difference(row, column, int(theirs[row, column]), int(ours[row, column]))
    assert f"it sums in the order {found.sums}, an H200 truncating" in (found.why or "")
    strange = compare(holding(ONE, theirs ^ 1))
    assert (strange.sums, strange.where) == (None, None)
    assert "does not tell where; the order of sums matters: row " in (strange.why or "")


def test_a_comparison_that_sees_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_bits.find_changed_bit(ONE).failures == ()
    monkeypatch.setattr(device_bits, "compare", lambda launch: compare(holding(ONE, outputs(ONE))))
    (line,) = device_bits.find_changed_bit(ONE).failures
    assert line.startswith("blind comparison: ")
