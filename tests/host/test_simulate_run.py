"""The simulator's whole run: every front, what it prints, and what it says of a front that cannot run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from upstream_patch.cli import run as cli
from upstream_patch.contribution import Context, stages
from upstream_patch.correctness import cover as covering
from upstream_patch.correctness import metal_cover as metal_covering
from upstream_patch.correctness import metal_plants, simulated, simulation, staged_plants
from upstream_patch.correctness import staged_cover as staged_covering
from upstream_patch.correctness.outcome import Outcome
from upstream_patch.correctness.simulation import Front, FrontSummary, SimulatorFinding, Summary, verdict
from upstream_patch.errors import MissingTool, UserError


def summary(plants: Outcome, cover: Outcome, missing: tuple[str, ...] = ()) -> Summary:
    return Summary((FrontSummary("a kernel", plants, cover),), 0.0, 1.0, missing)


def test_a_finding_ends_in_one_line_and_a_failure() -> None:
    bad = summary(Outcome(failures=("blind checker: x",)), Outcome(failures=("a", "b")))
    with pytest.raises(SimulatorFinding, match=r"^the simulator found: blind checker: x \(and 2 more\)$"):
        verdict(bad)
    good = summary(Outcome(cases=3), Outcome(cases=5, launches=15), missing=("no clang: get one",))
    assert verdict(good).startswith("5 cases (15 launches) of a kernel agree")
    assert verdict(good).endswith("3 planted faults and deleted barriers are found; NOT RUN: no clang: get one")


def no_front(full: bool, seed: int | None) -> Front:
    raise MissingTool("no clang", "get one")


def no_plants() -> Outcome:
    return Outcome(cases=1, launches=1)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cases of each front, and no planted faults: those have tests of their own."""
    cuda = covering.cover()[:2]
    q = metal_covering.ALL[12]
    metal = [case for case in metal_covering.metal_cover() if case.route == "nax" and case.quantization == q][:2]
    monkeypatch.setattr(covering, "cover", lambda count, seed: cuda)
    monkeypatch.setattr(covering, "fixed_launches", list)
    monkeypatch.setattr(covering, "turning_launches", list)
    of_ours = [case for case in staged_covering.staged_cover() if case.quantization == q and case.form.parts == 1][:2]
    monkeypatch.setattr(staged_covering, "staged_cover", lambda full, seed: of_ours)
    monkeypatch.setattr(metal_covering, "metal_cover", lambda full, seed: metal)
    monkeypatch.setattr(simulated, "find_plants", no_plants)
    monkeypatch.setattr(metal_plants, "find_metal_plants", no_plants)
    monkeypatch.setattr(simulated, "_mutants", lambda: iter(()))
    monkeypatch.setattr(metal_plants, "kernels", lambda: iter(()))
    monkeypatch.setattr(staged_plants, "find_staged_plants", no_plants)
    monkeypatch.setattr(staged_plants, "kernels", lambda: iter(()))


@pytest.mark.needs_metal_front
@pytest.mark.usefixtures("few")
def test_the_verb_and_the_stage_run_every_front(capsys: pytest.CaptureFixture[str]) -> None:
    cli.simulate(stats=True)
    cuda, metal, ours, compiled, said = capsys.readouterr().out.splitlines()
    assert cuda.startswith("the CUDA kernel: ")
    assert metal.startswith("MLX's Metal kernels: ")
    assert ours.startswith("our Metal kernels: ")
    assert "KiB of arguments a tile" in cuda and "MiB a process" in metal
    assert "to compile or find" in compiled
    assert said.startswith(
        "2 cases (4 launches) of the CUDA kernel, 2 cases (4 launches) of MLX's Metal kernels, "
        "2 cases (6 launches) of our Metal kernels agree"
    )
    stage = next(stage for stage in stages.STAGES if stage.name == "simulate")
    assert stage.run(Context()).detail.split(" in ")[0] == said.split(" in ")[0]


def test_the_verb_prints_a_line_for_each_finding_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(say: Callable[[str], None], *_: object, **__: object) -> Summary:
        result = summary(Outcome(), Outcome(failures=("a", "b")))
        for line in result.failures:
            say(line)
        return result

    monkeypatch.setattr(simulation, "simulate", found)
    with pytest.raises(SimulatorFinding):
        cli.simulate()
    assert capsys.readouterr().out.splitlines() == ["a", "b"]


@pytest.mark.needs_metal_front
@pytest.mark.usefixtures("few")
def test_a_front_that_cannot_run_is_named_and_under_strict_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(simulation.STRICT, raising=False)
    monkeypatch.setattr(simulation, "FRONTS", (simulation.cuda_front, no_front))
    done = simulation.simulate(print)
    assert verdict(done).endswith("NOT RUN: no clang: get one")
    monkeypatch.setenv(simulation.STRICT, "1")
    with pytest.raises(UserError, match="a front of the simulator cannot run: no clang: get one"):
        simulation.simulate(print)
    monkeypatch.setattr(simulation, "FRONTS", (no_front,))
    with pytest.raises(MissingTool, match="no clang: get one"):
        simulation.simulate(print)
