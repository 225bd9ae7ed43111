"""A text that is not the one that stands there, and another GitHub: neither is taken for what was sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.fake_github import FakeGitHub
from tests.contract.test_filing import EMPTY, FILED, ISSUE, MLX, URL, Sending, receipts, sending, states
from upstream_patch import github
from upstream_patch.filing.receipts import Receipts
from upstream_patch.filing.send import OtherText, Sent, send
from upstream_patch.github import GitHub, Unclear

__all__ = ["receipts", "sending"]
pytestmark = pytest.mark.needs_contract
OTHER = replace(ISSUE, text="Every row reads the weights, twice.")
DIFFERS = (
    f"{URL} was there already, and its text differs from this one: nothing was sent; edit it on its page, or close it "
    "and file this text as a new one: --edition 2"
)


def test_another_text_is_told_to_be_another(fake: FakeGitHub, sending: Sending, receipts: Receipts) -> None:
    sending(ISSUE)
    for post in (OTHER, replace(ISSUE, title="[BUG] Other rows")):
        with pytest.raises(OtherText) as raised:
            sending(post)
        assert (str(raised.value), raised.value.exit_code) == (DIFFERS, 44)
    assert sending(ISSUE) == Sent(1, URL, created=False)
    assert fake.story() == FILED


def test_what_is_found_is_compared_as_it_stands_there(fake: FakeGitHub, sending: Sending, receipts: Receipts) -> None:
    fake.on_write.append("late")
    with pytest.raises(Unclear):
        sending(ISSUE)
    fake.clock.seconds += 300
    with pytest.raises(OtherText):  # the attempt before had another text
        sending(OTHER)
    with pytest.raises(OtherText):  # and its receipt says so
        sending(OTHER)
    assert sending(ISSUE) == Sent(1, URL, created=False)
    assert states(receipts, ISSUE) == ["found"]
    assert fake.story() == FILED


@pytest.mark.parametrize("lost", [False, True])
def test_an_answer_with_another_text_is_no_receipt(
    lost: bool, fake: FakeGitHub, sending: Sending, receipts: Receipts
) -> None:
    fake.on_write.append("lost" if lost else "another")
    if lost:
        with pytest.raises(Unclear, match="GitHub's answer has another text than was sent, and it was not found yet"):
            sending(ISSUE)
        assert (fake.story(), states(receipts, ISSUE)) == (EMPTY, ["unclear"])
    else:
        assert sending(ISSUE) == Sent(1, URL, created=True)
        assert (fake.story(), states(receipts, ISSUE)) == (FILED, ["found"])


def test_a_changed_text_on_github_is_told(fake: FakeGitHub, sending: Sending, receipts: Receipts) -> None:
    fake.on_write.append("changed")
    with pytest.raises(OtherText):
        sending(ISSUE)
    assert states(receipts, ISSUE) == ["found"]
    assert "| Rewritten. Every row" in fake.story()


def test_what_another_github_took_is_not_there(fake: FakeGitHub, sending: Sending, hub: GitHub, tmp_path: Path) -> None:
    clock = github.Clock(fake.clock.now, fake.clock.sleep)
    elsewhere = Receipts(tmp_path / "receipts", "http://127.0.0.1:9/api/v3/")
    send(ISSUE, hub, elsewhere, clock, login="me")
    assert states(elsewhere, ISSUE) == ["created"]
    assert (tmp_path / "receipts" / "127.0.0.1_9_api_v3").is_dir()
    fake.repos[MLX].entries.clear()
    assert sending(ISSUE).created
