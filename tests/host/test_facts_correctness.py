"""What facts say of a correctness matrix: our kernel's cases alone, ordinary data apart from hard data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upstream_patch.records import store
from upstream_patch.records.correctness_facts import kind
from upstream_patch.records.facts import derive
from upstream_patch.records.rules import LEAST_CASES
from upstream_patch.records.schema import CaseResult, CorrectnessBody

STEM = "correctness.test.bf16"


def case(synthetic: Any, name: str, norm: float = 0.001, **changes: Any) -> CaseResult:
    check = synthetic.good.model_copy(update={"norm_error": norm, "passed": changes.pop("passed", True)})
    one: CaseResult = synthetic.correctness(check).cases[0]
    return one.model_copy(update={"case": name, **changes})


def values(synthetic: Any, *cases: CaseResult) -> dict[str, Any]:
    numbered = [one.model_copy(update={"seed": seed}) for seed, one in enumerate(cases)]
    synthetic.write(CorrectnessBody(cases=numbered))
    return {fact.id: fact.value for fact in derive(synthetic.load(), lambda kernel: "ab" * 32)}


def test_only_our_kernels_cases_are_counted(synthetic: Any) -> None:
    f32 = case(synthetic, "f32").problem.model_copy(update={"dtype": "f32"})
    found = values(
        synthetic,
        case(synthetic, "rows"),
        case(synthetic, "rows", rows_equal_alone=False),
        case(synthetic, "rows", written=False),
        case(synthetic, "more_rows", norm=0.5, kernels=[]),
        case(synthetic, "f32", kernels=[], problem=f32),
    )
    counts = {name: found[f"{STEM}.{name}"] for name in ("cases", "passed", "rows_equal_alone", "written")}
    assert counts == {"cases": 3, "passed": 1, "rows_equal_alone": 2, "written": 2}
    assert found[f"{STEM}.max_norm_error"] == 0.001
    assert found[f"{STEM}.other_route_passed"] == 1
    assert [name for name in found if ".f32." in name] == ["correctness.test.f32.other_route_passed"]


def test_a_case_that_failed_before_its_kernel_was_named_is_counted(synthetic: Any) -> None:
    found = values(synthetic, case(synthetic, "rows"), case(synthetic, "rows", passed=False, kernels=[]))
    assert (found[f"{STEM}.cases"], found[f"{STEM}.passed"]) == (2, 1)
    assert f"{STEM}.other_route_passed" not in found


def test_hard_data_does_not_hide_in_the_ordinary(synthetic: Any) -> None:
    found = values(
        synthetic,
        case(synthetic, "rows", 0.001),
        case(synthetic, "memory.x_strided", 0.002),
        case(synthetic, "data.no_bias", 0.3),
        case(synthetic, "lane_ownership.one_hot", 0.1),
    )
    assert (found[f"{STEM}.normal.cases"], found[f"{STEM}.stress.cases"]) == (2, 2)
    errors = [found[f"{STEM}.{part}max_norm_error"] for part in ("", "normal.", "stress.")]
    assert errors == [0.3, 0.002, 0.3]
    assert found[f"{STEM}.normal.stock_max_ulp"] == 2.0


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("data", "normal"),
        ("odd_offset", "normal"),
        ("memory.w_batched", "normal"),
        ("data.large", "stress"),
        ("data.a_distribution_that_is_gone", "stress"),
        ("lane_ownership.one_hot", "stress"),
    ],
)
def test_kinds(synthetic: Any, label: str, expected: str) -> None:
    assert kind(case(synthetic, label)) == expected


def test_labels_of_the_matrix_say_their_data(synthetic: Any) -> None:
    from upstream_patch.correctness import matrix

    assert len(matrix()) > LEAST_CASES  # what the writer asks of a host's record
    for planned in matrix():
        expected = "normal" if planned.distribution == "normal" else "stress"
        assert kind(case(synthetic, planned.label)) == expected, planned.id


def test_the_committed_matrix(root: Path) -> None:
    found = {fact.id: float(fact.value) for fact in derive(store.load_all(root / "evidence")) if fact.unit != "text"}
    for dtype in ("bf16", "f16"):
        stem = f"correctness.h200.{dtype}"
        assert found[f"{stem}.cases"] == found[f"{stem}.normal.cases"] + found[f"{stem}.stress.cases"]
        assert found[f"{stem}.cases"] > 150
    assert "correctness.h200.f32.cases" not in found
