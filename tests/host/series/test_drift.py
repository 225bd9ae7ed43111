"""Drift: what upstream did since the base, per edit; and whether the change, or one like it, is in already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upstream_patch.errors import UserError
from upstream_patch.series import State, load, plan
from upstream_patch.series.checkout import open_checkout
from upstream_patch.series.drift import drift, touched

CUDA = load("cuda")
QUANTIZED = "mlx/backend/cuda/quantized/quantized.cpp"
CMAKE = "mlx/backend/cuda/CMakeLists.txt"


@pytest.fixture
def repository(make_repository: Any, make_standin: Any, tmp_path: Path) -> Any:
    return make_repository(tmp_path / "mlx", make_standin([CUDA]))


def states(found: Any) -> dict[str, State]:
    return {item.name: item.state for item in found.items}


def test_nothing_changed(repository: Any) -> None:
    found = drift(open_checkout(repository.path), CUDA)
    assert set(states(found).values()) == {State.APPLIES}
    assert not found.upstreamed
    assert not any(found.commits.values())


def test_moved_lines_and_a_lost_anchor_name_the_commits(repository: Any) -> None:
    text = (repository.path / QUANTIZED).read_text()
    moving = repository.commit({QUANTIZED: f"a line more\n{text}"}, "Move things")
    sources = (repository.path / CMAKE).read_text()
    losing = repository.commit({CMAKE: sources.replace("qmm_sm90.cu", "hopper.cu")}, "Rename sm90")
    checkout = open_checkout(repository.path)
    found = drift(checkout, CUDA)
    assert states(found) == {
        "new": State.APPLIES,
        "source": State.CONFLICT,
        "include": State.MOVED,
        "route": State.MOVED,
        "tests": State.APPLIES,
    }
    assert found.commits[QUANTIZED] == [f"{moving[:7]} Move things"]
    assert found.commits[CMAKE] == [f"{losing[:7]} Rename sm90"]
    assert touched(checkout, [CUDA], found.conflicts) == [
        f"{CMAKE}: 1 commits since v0.32.4\n  {losing[:7]} Rename sm90"
    ]


def test_the_very_change_is_known_by_its_patch_id(repository: Any) -> None:
    planned = plan([CUDA], open_checkout(repository.path).reader())
    same = repository.commit(planned.changed, "Somebody's words")
    repository.commit({"other.txt": "more\n"})
    found = drift(open_checkout(repository.path), CUDA)
    assert found.equal == [same[:12]]
    assert set(states(found).values()) == {State.UPSTREAM}
    assert found.upstreamed


def test_a_change_of_the_same_name_is_known_by_it(repository: Any) -> None:
    repository.commit({"mlx/backend/cuda/elsewhere.h": "bool supports_qmm_small_m(int);\n"})
    found = drift(open_checkout(repository.path), CUDA)
    assert found.symbols["supports_qmm_small_m"] == ["mlx/backend/cuda/elsewhere.h"]
    assert found.symbols["qmm_small_m"] == []  # whole words only
    assert found.upstreamed


def test_a_change_to_the_same_end_is_known_by_its_words(repository: Any) -> None:
    text = (repository.path / QUANTIZED).read_text()
    word = repository.commit({QUANTIZED: f"{text}call_multirow();\n"}, "Multirow")
    found = drift(open_checkout(repository.path), CUDA)
    assert found.keywords["multirow"] == [f"{word[:7]} Multirow"]
    assert not found.upstreamed


def test_a_clone_without_the_base_is_one_line(repository: Any) -> None:
    repository.git("tag", "--delete", "v0.32.4")
    with pytest.raises(UserError, match=r"has no tag v0.32.4: git -C \S+ fetch --tags origin first"):
        drift(open_checkout(repository.path), CUDA)


def test_a_tag_that_names_another_commit_is_refused(repository: Any) -> None:
    base = CUDA.base.model_copy(update={"commit": "ab" * 20})
    with pytest.raises(UserError, match="the series was made for abab"):
        drift(open_checkout(repository.path), CUDA.model_copy(update={"base": base}))
