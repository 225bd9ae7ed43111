"""The matrix in several processes."""

from __future__ import annotations

import pytest

from upstream_patch.correctness import Case, MlxArms, run_cases
from upstream_patch.problem import Problem

pytest.importorskip("mlx.core")


def test_several_processes_give_what_one_gives() -> None:
    problems = [Problem(m=1 + i % 3, n=17, k=64 * (1 + i % 2), dtype=("bf16", "f16")[i % 2]) for i in range(30)]
    cases = [Case(f"case {i}", problem, seed=i, route="any") for i, problem in enumerate(problems)]
    seen: list[tuple[int, int]] = []
    several = run_cases(cases, MlxArms, lambda done, total, name: seen.append((done, total)), processes=2)
    assert several == run_cases(cases, MlxArms)
    assert [result.case for result in several.cases] == [case.name for case in cases]
    assert all(result.check.passed for result in several.cases)
    assert (seen[0][1], seen[-1]) == (30, (30, 30)) and len(seen) >= 3
