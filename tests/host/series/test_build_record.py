"""The record of a build: stored whatever came out, and refused where the two sides cannot be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.recording import record_build
from upstream_patch.records.build_body import BuildBody, Matrix, SuiteRun
from upstream_patch.records.facts import derive
from upstream_patch.records.store import load_all
from upstream_patch.series import building, checkout

OLD = "test_quantized.TestQuantized.test_old (bits=2)"
NEW = "test_quantized.TestQuantized.test_new"


def body(base: list[str], series: list[str], **changes: Any) -> BuildBody:
    runs = [
        SuiteRun(arm=arm, tf32=tf32, ran=3, skipped=0, failed=failed, log=f"{arm}-{tf32}.log")
        for arm, failed in (("base", base), ("series", series))
        for tf32 in (False, True)
    ]
    given: dict[str, Any] = {
        "backend": "cuda",
        "upstream": "ab" * 20,
        "contributions": ["cuda"],
        "series_sha256": "cd" * 32,
        "tree": "ef" * 20,
        "options": ["-DMLX_BUILD_CUDA=ON"],
        "tests": "python/tests/test_quantized.py",
        "new_tests": ["test_new"],
        "runs": runs,
        "matrix": Matrix(cases=2, wrong=[], results="matrix.json"),
    }
    return BuildBody(**given | changes)


GUARD = {"guards": ["test_new"]}


def test_what_a_guard_and_what_a_test_that_shows_the_change_must_do() -> None:
    def said(made: BuildBody) -> tuple[list[str], list[str], list[str]]:
        return made.proven, made.kept, made.unproven

    one = ["test_new"]
    assert said(body([NEW], [])) == (one, [], [])
    assert said(body([], [])) == ([], [], one)
    assert said(body([], [], **GUARD)) == ([], one, [])
    assert said(body([NEW], [], **GUARD)) == ([], [], one)
    assert said(body([], [NEW], **GUARD)) == ([], [], one)
    for guard, base in ((GUARD, []), ({}, [NEW])):
        whole = body(base, [], **guard)
        for index, run in enumerate(whole.runs):  # skipped in one environment
            if guard or run.arm == "series":
                runs = [*whole.runs[:index], run.model_copy(update={"idle": one}), *whole.runs[index + 1 :]]
                assert said(whole.model_copy(update={"runs": runs})) == ([], [], one)


def test_its_facts_count_what_was_proven_and_what_was_broken(synthetic: Any) -> None:
    synthetic.write(body([NEW, OLD], []))
    values = {fact.id: fact.value for fact in derive(synthetic.load()) if fact.id.startswith("build.")}
    assert values == {
        "build.test.cuda.new_tests": 1,
        "build.test.cuda.proven": 1,
        "build.test.cuda.kept": 0,
        "build.test.cuda.known": 1,
        "build.test.cuda.broken": 0,
        "build.test.cuda.matrix_wrong": 0,
    }


def test_two_sides_of_other_environments_are_no_pair(synthetic: Any) -> None:
    whole = body([NEW], [])
    with pytest.raises(UserError, match="not tested in the same environments"):
        synthetic.write(whole.model_copy(update={"runs": whole.runs[:3]}))
    with pytest.raises(UserError, match=r"body\.runs"):
        synthetic.write(whole.model_copy(update={"runs": [*whole.runs, whole.runs[0]]}))


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (body([NEW], [OLD]), r"1 tests fail with the series alone, first: test_quantized\.TestQuantized\.test_old"),
        (body([NEW], [NEW]), r"1 tests fail with the series alone, first: test_quantized\.TestQuantized\.test_new"),
        (body([OLD], [OLD]), r"test_new passes on the base and does not show the change"),
        (body([NEW], [], **GUARD), r"test_new fails on the base or was skipped, and guards nothing"),
        (
            body([NEW], [], matrix=Matrix(cases=2, wrong=["case_1: wrong"], results="matrix.json")),
            r"1 complaints of our matrix about the built MLX, first: case_1: wrong",
        ),
        (body([NEW, OLD], [OLD]), None),
    ],
)
def test_what_came_out_is_stored_and_then_said(
    made: BuildBody, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {"base.log": b"all that was said\n"}
    monkeypatch.setattr(checkout, "open_or_clone", lambda mlx, cache: None)
    monkeypatch.setattr(building, "build", lambda planned: (made, logs))
    evidence = tmp_path / "evidence"
    if told is None:
        stored = record_build("python -m upstream_patch build --mlx mlx", "mlx", evidence)
        assert stored.detail == "1 new tests fail on the base and pass with the series; 1 known failures of the base"
    else:
        with pytest.raises(UserError, match=told):
            record_build("python -m upstream_patch build --mlx mlx", "mlx", evidence)
    (loaded,) = load_all(evidence)
    assert loaded.record.body == made
    assert [attachment.path for attachment in loaded.record.attachments] == ["base.log"]
