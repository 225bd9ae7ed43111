"""How the matrix is run: shared between processes, and when stock is asked at all."""

from __future__ import annotations

from test_correctness_faults import REPEATS, Array, NumpyArms, drop_tail

from upstream_patch.correctness import Case, complaints, run_case, run_cases
from upstream_patch.problem import Problem
from upstream_patch.reference import Inputs


def test_several_processes_give_what_one_gives() -> None:
    problems = [Problem(m=1 + i % 3, n=17, k=64 * (1 + i % 2), dtype=("bf16", "f16")[i % 2]) for i in range(30)]
    cases = [Case(f"case {i}", problem, seed=i) for i, problem in enumerate(problems)]
    seen: list[tuple[int, int]] = []
    several = run_cases(cases, NumpyArms, lambda done, total, name: seen.append((done, total)), processes=2)
    assert several == run_cases(cases, NumpyArms)
    assert [result.case for result in several.cases] == [case.name for case in cases]
    assert (seen[0][1], seen[-1]) == (30, (30, 30)) and len(seen) >= 3


class Expensive(NumpyArms):
    """Stock is a tile kernel that is slow to compile."""

    def stock(self, prepared: Inputs) -> Array:
        asked.append(prepared.problem.bits)
        return super().stock(prepared)


asked: list[int] = []


def test_stock_s_tile_kernel_of_another_width_runs_only_where_rounding_does_not_explain_ours() -> None:
    usual = Case("usual", Problem(m=9, n=33, k=192))
    other = Case("other", Problem(m=9, n=33, k=192, bits=5))
    few_rows = Case("few rows", Problem(m=7, n=33, k=192, bits=6))
    for case in (usual, other, few_rows):
        assert complaints(run_case(case, Expensive(), REPEATS), REPEATS) == []
    assert asked == [4, 6]
    assert run_case(other, Expensive(), REPEATS).check.stock_norm_error is None
    asked.clear()
    wrong = run_case(other, Expensive(on_output=drop_tail), REPEATS)
    assert not wrong.check.passed and asked == [5]
