"""What is built is what is applied and exported, byte for byte; and upstream is asked for those bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.host.series.conftest import STYLED
from upstream_patch.errors import UserError
from upstream_patch.series import Contribution, State, load
from upstream_patch.series.applying import apply
from upstream_patch.series.building import Plan, build, pipeline, preflight
from upstream_patch.series.checkout import Checkout, open_checkout
from upstream_patch.series.contributions import new_text
from upstream_patch.series.drift import drift
from upstream_patch.series.exporting import export

CUDA = load("cuda")
KERNEL = "mlx/backend/cuda/device/qmm_small_m.cuh"


@pytest.fixture
def repository(make_repository: Any, make_standin: Any, tmp_path: Path, clang_format: None, person: None) -> Any:
    return make_repository(tmp_path / "mlx", make_standin([CUDA]) | STYLED)


def begin(checkout: Checkout, out: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> dict[str, str]:
    """Arm -> tree of the source as its build begins. The series' build ends there, as ``ends`` says."""
    trees: dict[str, str] = {}

    def run(command: Sequence[str], cwd: Path, variables: Mapping[str, str], log: Path) -> int:
        if command[-1] == ".[dev]":
            trees[cwd.parent.name] = Checkout(cwd).working_tree()
        if "-c" in command:
            log.write_text(f"{out}\n")
        return int("series" in trees)

    monkeypatch.setattr(preflight, "findings", lambda *given: [])
    monkeypatch.setattr(pipeline, "cuda_device", lambda system: ((12, 1), 48))
    with pytest.raises(UserError, match=ends):
        build(Plan(checkout, [CUDA], "cuda", out, run, lambda line: None))
    return trees


def test_a_build_compiles_the_bytes_that_are_applied_and_exported(
    repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = open_checkout(repository.path)
    applied, planned = apply(checkout, [CUDA])
    version, *_ = export(checkout, CUDA, tmp_path / "series")
    device = next(file for file in CUDA.files if file.device)
    assert "  " in new_text(device) and "  " not in planned.changed[KERNEL]  # they are laid out
    trees = begin(checkout, tmp_path / "out", monkeypatch, "the build of series failed")
    assert trees == {"base": checkout.tree("HEAD", {}), "series": applied.tree}
    assert version.tree == applied.tree


def test_a_filter_that_changes_what_is_built_is_refused(
    repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({".gitattributes": "*.cuh filter=shout\n"})
    repository.git("config", "filter.shout.clean", "tr a-z A-Z")
    told = "series/mlx does not hold what was planned: a filter, a hook or an ignore rule of git changed it"
    assert begin(open_checkout(repository.path), tmp_path / "out", monkeypatch, told).keys() == {"base"}


def test_upstream_that_took_what_was_sent_is_known_by_it(repository: Any) -> None:
    checkout = open_checkout(repository.path)
    _, planned = apply(checkout, [CUDA])
    same = repository.commit(planned.changed, "Somebody's words")
    found = drift(open_checkout(repository.path), CUDA)
    assert {item.state for item in found.items} == {State.UPSTREAM}
    assert found.equal == [same[:12]]


def test_a_contribution_has_no_place_for_what_nobody_asks() -> None:
    with pytest.raises(ValueError, match="after"):
        Contribution.model_validate(CUDA.model_dump() | {"after": ["folding"]})
    with pytest.raises(ValueError, match="test_no_such guards, and no edit brings a test of that name"):
        Contribution.model_validate(CUDA.model_dump() | {"guards": ["test_no_such"]})
