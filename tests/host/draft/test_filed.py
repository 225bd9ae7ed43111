"""What was sent is what the gates saw, and is told apart from another text and from another GitHub."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.fake_github import FakeGitHub
from tests.host.draft.test_whole_way import FORK, MLX, Opening, opening, sent_nothing
from upstream_patch import github
from upstream_patch.draft import inputs
from upstream_patch.draft.inputs import Filed
from upstream_patch.errors import UserError
from upstream_patch.filing import duplicates
from upstream_patch.filing.desk import OtherCommit
from upstream_patch.filing.send import OtherText
from upstream_patch.github import GitHub

__all__ = ["opening"]
pytestmark = pytest.mark.needs_contract


@pytest.mark.parametrize("rehearse", ["", FORK])
def test_a_branch_that_the_gates_did_not_see_is_not_sent(
    rehearse: str, rehearsal: Any, fake: FakeGitHub, opening: Opening
) -> None:
    rehearsal.all()
    fake.repos[FORK].branches["small-m"] = "c" * 40
    with pytest.raises(OtherCommit) as other:
        opening(rehearse or MLX, rehearse=rehearse).pull("small-m")
    assert (str(other.value), other.value.exit_code) == (
        f"{FORK}'s small-m is at cccccccccccc, and the gates saw bbbbbbbbbbbb: push that commit yourself, or let them "
        f"see this one: nox -s drift -- --mlx PATH{rehearsal.where} --branch small-m",
        49,
    )
    assert sent_nothing(fake)


def test_a_branch_that_moves_under_the_preview_is_not_sent(rehearsal: Any, fake: FakeGitHub, opening: Opening) -> None:
    rehearsal.all()
    with pytest.raises(OtherCommit):
        opening(before=lambda: fake.repos[FORK].branches.update({"small-m": "c" * 40})).pull("small-m")
    assert sent_nothing(fake)


def test_what_a_stand_in_for_github_took_is_filed_nowhere_else(
    rehearsal: Any, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal.all()
    inputs.path(rehearsal.work, "filed").unlink()
    assert opening().issue().created
    rehearsal.draft("pr")
    assert "\nRefs #3765\n" in (rehearsal.work / "pr_cuda_small_m.md").read_text()
    monkeypatch.delenv("GITHUB_API_URL")
    assert inputs.read(rehearsal.work, "filed", Filed) is None
    assert "no issue is filed" in rehearsal.draft("pr").read_text()
    assert {gate.name for gate in rehearsal.status("issue") if not gate.open} == {"duplicates"}  # searched there, too


def test_a_changed_text_is_told_and_what_is_filed_is_known(rehearsal: Any, fake: FakeGitHub, opening: Opening) -> None:
    rehearsal.all()
    assert opening().issue().created
    inputs.path(rehearsal.work, "filed").unlink()
    rehearsal.change("issue", "I would send", "I will send")
    with pytest.raises(
        OtherText, match="its text differs from this one: nothing was sent; edit it on its page, or close"
    ):
        opening().issue()
    filed = inputs.read(rehearsal.work, "filed", Filed)
    assert filed is not None and filed.issue is not None and filed.issue.number == 3765


def test_no_search_before_there_is_a_title(rehearsal: Any, fake: FakeGitHub, client: GitHub) -> None:
    clock = github.Clock(fake.clock.now, fake.clock.sleep)
    rehearsal.draft("issue")
    with pytest.raises(UserError, match=r"small_m\.md has no title yet: write it first"):
        duplicates.search("issue", rehearsal.work, client, clock)
    assert fake.log == []
