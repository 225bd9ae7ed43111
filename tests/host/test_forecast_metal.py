"""The cost model of the Metal kernels: its numbers by hand, and against what the simulator counts."""

from __future__ import annotations

import pytest

from upstream_patch.cli import main
from upstream_patch.measure.forecast.metal import LABEL, cost, report
from upstream_patch.measure.suites import REQUESTED
from upstream_patch.problem import Problem
from upstream_patch.routing_metal import M5, MetalRoute, instance, route, stock_route
from upstream_patch.simulate import Placement
from upstream_patch.simulate.metal import make_operands
from upstream_patch.simulate.metal.launches import run_matmul
from upstream_patch.simulate.metal.mutations import PROBLEMS, mutable_kernel
from upstream_patch.simulate.metal.staged import run_staged


def test_a_problem_by_hand() -> None:
    problem = Problem(m=56, n=5120, k=17408)
    stock, ours = cost(problem, stock_route(problem, M5)), cost(problem, route(problem, M5))
    weights, x = 5120 * 17408 // 2 + 2 * 2 * 5120 * 17408 // 64, 56 * 17408 * 2
    assert (stock.launches, stock.threadgroups, stock.steps, stock.barriers) == (1, 80, 272, 2)
    assert (ours.launches, ours.threadgroups, ours.steps, ours.barriers) == (2, 160, 136, 1)
    assert (stock.weight_bytes, stock.x_bytes, stock.partial_bytes) == (weights, 2 * 80 * x, 0)
    assert (ours.weight_bytes, ours.x_bytes, ours.partial_bytes) == (weights, 80 * x, 2 * 56 * 5120 * 4)
    assert (stock.shared_bytes, ours.shared_bytes) == (9216, 18432)
    # sums 32, x 16, weights 16 and the addresses; staged: sums 32, x 8 and 8 times two ahead, weights 32, 4 + 1 packed
    assert (stock.registers, ours.registers) == (32 + 16 + 16 + 12, 32 + 8 + 32 + 24 + 5 + 12)


def test_a_tile_of_32_rows_by_hand() -> None:
    problem = Problem(m=32, n=4096, k=4096)
    ours = cost(problem, route(problem, M5))
    assert (ours.route.rows, ours.threadgroups, ours.steps) == (32, 64 * 4, 64 // 4)
    # two by two simdgroups: both that share rows read their x
    assert ours.x_bytes == 2 * 64 * 32 * 4096 * 2
    assert ours.registers == 16 + 8 + 16 + 24 + 5 + 12


def test_rows_that_a_kernel_takes_at_once() -> None:
    wide = cost(Problem(m=16, n=4096, k=4096), MetalRoute("qmv_wide"))
    assert wide.weight_bytes == 4 * Problem(m=16, n=4096, k=4096).packed_bytes, "of at most five rows"
    assert cost(Problem(m=3, n=64, k=64), MetalRoute("qmv")).weight_bytes == 3 * Problem(m=3, n=64, k=64).packed_bytes
    several = Problem(m=70, n=128, k=128, batch=3)
    assert cost(several, route(several, M5)).threadgroups == 2 * 2 * 3


@pytest.mark.needs_metal_front
@pytest.mark.parametrize("rows", [64, 32])
def test_barriers_and_threadgroup_memory_are_those_of_the_simulator(rows: int) -> None:
    problem = Problem(m=33, n=128, k=384)
    stock, ours = MetalRoute("qmm_t_nax", rows=rows), MetalRoute("qmm_t_nax", rows=rows, staged=True)
    operands = make_operands(problem)
    said = cost(problem, stock)
    found = run_matmul("nax", operands, rows, Placement()).report.stats.barriers
    assert found == said.threadgroups * (said.barriers * said.steps + 1), "one more before the store"
    staged = instance(problem, ours)
    assert staged is not None
    said = cost(problem, ours)
    # launched with no byte of threadgroup memory more than predicted
    assert staged.shared_bytes == said.shared_bytes
    run = run_staged(staged, operands)
    assert not run.report.faults
    assert run.report.stats.barriers == said.threadgroups * said.barriers * said.steps


@pytest.mark.needs_metal_front
def test_the_older_kernel_too() -> None:
    problem = PROBLEMS["splitk"]
    said = cost(problem, MetalRoute("qmm_t_splitk", 2))
    run = run_matmul("splitk", make_operands(problem), 2, Placement(), kernel=mutable_kernel("splitk"))
    assert said.threadgroups == 2 * 2 * 2
    # besides, its products meet the simdgroup only
    assert run.report.stats.barriers % said.threadgroups == 0
    assert run.report.stats.barriers >= said.threadgroups * said.barriers * said.steps


def test_the_verb_says_that_it_predicts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr("sys.argv", ["upstream-patch", "metal-cost", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    code, out, _ = said()
    assert code == 0 and out.startswith(LABEL)
    assert out.strip() == report(REQUESTED, M5, "applegpu_g17s")
    assert all(f"| {problem.id} |" in out for problem in REQUESTED)
    assert "both: qmv_wide" in said("4096x14336.b4.g64.bf16.M8")[1]
    assert said("nonsense")[0] == said("--gpu", "sm_90")[0] == said("4096x64.mxfp4.bf16.M8")[0] == 2
