"""The matrix in several processes."""

from __future__ import annotations

import os
from functools import partial

import pytest

from upstream_patch.correctness import Case, MlxArms, run_cases
from upstream_patch.problem import Problem
from upstream_patch.records.keeping import Keeper

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


def test_at_the_end_of_its_time_the_first_cases_are_there_and_no_other_starts() -> None:
    cases = [Case(f"case {i}", Problem(m=1, n=17, k=64), seed=i, route="any") for i in range(90)]
    body = run_cases(cases, MlxArms, processes=2, first=30, limit_s=0.0)
    assert [result.case for result in body.cases][:30] == [case.name for case in cases[:30]]
    assert 30 <= len(body.cases) < 90
    names = [result.case for result in body.cases]
    assert sorted(names, key=lambda name: int(name.split()[1])) == names


def test_a_process_that_dies_fails_its_cases_and_nothing_else() -> None:
    cases = [Case(f"case {i}", Problem(m=1, n=17, k=64), seed=i, route="any") for i in range(3)]
    body = run_cases(cases, partial(os._exit, 1), processes=2)  # what a kernel may do to it
    assert [result.case for result in body.cases] == ["case 0", "case 1", "case 2"]
    assert all("died" in result.check.bound and not result.check.passed for result in body.cases)
    kept = run_cases(cases[1:2], MlxArms).cases
    keeper = Keeper([case.id for case in cases])
    keeper.keep(cases[1].id, cases=kept)
    body = run_cases(cases, partial(os._exit, 1), processes=2, keeper=keeper)
    assert [result.passed for result in body.cases] == [False, True, False], "what an earlier run has is not run again"
    assert keeper.items("cases") == body.cases
