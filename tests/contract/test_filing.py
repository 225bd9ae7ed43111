"""Sending once: each story ends in the whole state of GitHub, and in the receipts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.fake_github import Answer, FakeGitHub, Fault, Stored
from upstream_patch import github
from upstream_patch.errors import UserError
from upstream_patch.filing.post import Post, rehearsal
from upstream_patch.filing.receipts import Receipts
from upstream_patch.filing.send import AlreadyThere, Sent, send
from upstream_patch.github import Busy, GitHub, Refused, Unclear
from upstream_patch.github.client import API

pytestmark = pytest.mark.needs_contract
MLX = "ml-explore/mlx"
ISSUE = Post("issue", MLX, "small-m-issue-1", "[BUG] Rows", "Every row reads the weights.")
PULL = Post(
    "pull request", MLX, "small-m-pr-1", "Read once", "Fixes #1.", head="me:small-m", base="main", commit="b" * 40
)
COMMENT = Post("comment", "lablup/mlxcel", "small-m-link-back-1", "", "Filed upstream.", number=725)
DOWNSTREAM = "lablup/mlxcel\n  closed issue #725 of they: Small-M rows\n  | The rows.\n"
FILED = f"""\
{MLX}
  open issue #1 of me: [BUG] Rows
  | Every row reads the weights.
  |
  | <!-- change-id: small-m-issue-1 -->
me/mlx, a fork of {MLX}
{DOWNSTREAM}"""
EMPTY = f"{MLX}\nme/mlx, a fork of {MLX}\n{DOWNSTREAM}"
URL = f"https://github.com/{MLX}/issues/1"
Sending = Callable[[Post], Sent]


@pytest.fixture
def receipts(tmp_path: Path) -> Receipts:
    return Receipts(tmp_path / "receipts", API)


@pytest.fixture
def sending(fake: FakeGitHub, hub: GitHub, receipts: Receipts) -> Sending:
    clock = github.Clock(fake.clock.now, fake.clock.sleep)
    return lambda post: send(post, hub, receipts, clock, login="me", gates="ab" * 32)


def states(receipts: Receipts, post: Post) -> list[str]:
    attempts = receipts.attempts(post.repository, post.change_id)
    return [attempt.outcome.state if attempt.outcome else "unclear" for attempt in attempts]


def test_issue_pull_request_and_comment(fake: FakeGitHub, sending: Sending, tmp_path: Path) -> None:
    assert sending(ISSUE) == Sent(1, URL, created=True)
    assert sending(PULL) == Sent(2, f"https://github.com/{MLX}/pull/2", created=True)
    assert sending(COMMENT).url == "https://github.com/lablup/mlxcel/issues/725#issuecomment-1"
    assert (
        fake.story()
        == f"""\
{MLX}
  open issue #1 of me: [BUG] Rows
  | Every row reads the weights.
  |
  | <!-- change-id: small-m-issue-1 -->
  open draft pull #2 of me me:small-m -> main: Read once
  | Fixes #1.
  |
  | <!-- change-id: small-m-pr-1 -->
me/mlx, a fork of {MLX}
{DOWNSTREAM}\
  open comment #725 of me
  | Filed upstream.
  |
  | <!-- change-id: small-m-link-back-1 -->
"""
    )
    assert fake.log == [
        f"GET /repos/{MLX}/issues 200",
        "GET /search/issues 200",
        f"POST /repos/{MLX}/issues 201",
        f"GET /repos/{MLX}/issues 200",
        f"GET /repos/{MLX}/pulls 200",
        "GET /search/issues 200",
        f"POST /repos/{MLX}/pulls 201",
        "GET /repos/lablup/mlxcel/issues/725/comments 200",
        "POST /repos/lablup/mlxcel/issues/725/comments 201",
    ]
    kept = sorted(path.relative_to(tmp_path / "receipts") for path in (tmp_path / "receipts").rglob("0*"))
    assert [str(path) for path in kept if "issue-1" in str(path)] == [
        "api.github.com/ml-explore__mlx/small-m-issue-1/01.body.md",
        "api.github.com/ml-explore__mlx/small-m-issue-1/01.intent.json",
        "api.github.com/ml-explore__mlx/small-m-issue-1/01.outcome.json",
    ]
    assert (tmp_path / "receipts" / kept[0]).read_text("utf-8") == COMMENT.body


def test_sent_again_it_asks_nobody(fake: FakeGitHub, sending: Sending, receipts: Receipts) -> None:
    sending(ISSUE)
    fake.log.clear()
    assert sending(ISSUE) == Sent(1, URL, created=False)
    assert fake.log == []
    assert states(receipts, ISSUE) == ["created"]


def test_without_its_receipts_it_is_found(fake: FakeGitHub, sending: Sending, receipts: Receipts) -> None:
    fake.search_lag_s = 1e12  # what is closed is found in the list
    fake.repos[MLX].entries.append(Stored("issue", 1, "me", ISSUE.title, ISSUE.body, 0.0, state="closed"))
    assert sending(ISSUE) == Sent(1, URL, created=False)
    assert [line for line in fake.log if "POST" in line] == []
    assert states(receipts, ISSUE) == ["found"]


@pytest.mark.parametrize("fault", ["502 after", "drop after", "slow", "garbled"])
def test_stored_behind_an_unclear_answer_it_is_found(
    fault: Fault, fake: FakeGitHub, sending: Sending, receipts: Receipts
) -> None:
    fake.search_lag_s = 1e9
    fake.on_write.append(fault)
    assert sending(ISSUE) == Sent(1, URL, created=True)
    assert fake.story() == FILED
    assert states(receipts, ISSUE) == ["found"]


@pytest.mark.parametrize("fault", ["502 before", "drop before"])
def test_lost_behind_an_unclear_answer_it_waits_for_the_person(
    fault: Fault, fake: FakeGitHub, sending: Sending, receipts: Receipts
) -> None:
    fake.on_write.append(fault)
    with pytest.raises(Unclear, match="it was not found yet: run the same command again, it looks first"):
        sending(ISSUE)
    assert fake.clock.waits == [2.0, 5.0, 15.0]
    with pytest.raises(Unclear, match=r"not found yet: run the same command again after \d\d:\d\d UTC"):
        sending(ISSUE)
    assert fake.story() == EMPTY
    fake.clock.seconds += 600
    assert sending(ISSUE) == Sent(1, URL, created=True)
    assert fake.story() == FILED
    assert states(receipts, ISSUE) == ["unclear", "created"]


def test_stored_late_it_is_found(fake: FakeGitHub, sending: Sending, receipts: Receipts) -> None:
    fake.on_write.append("late")
    with pytest.raises(Unclear):
        sending(ISSUE)
    fake.clock.seconds += 300
    assert sending(ISSUE) == Sent(1, URL, created=False)
    assert fake.story() == FILED
    assert states(receipts, ISSUE) == ["found"]


@pytest.mark.parametrize(("fault", "error"), [("limited", Refused), ("invalid", Refused), ("busy long", Busy)])
def test_a_refusal_is_kept_and_may_be_tried_again(
    fault: Fault, error: type[UserError], fake: FakeGitHub, sending: Sending, receipts: Receipts
) -> None:
    fake.on_write.append(fault)
    with pytest.raises(error) as raised:
        sending(ISSUE)
    (attempt,) = receipts.attempts(MLX, ISSUE.change_id)
    assert attempt.outcome is not None
    assert (attempt.outcome.state, attempt.outcome.reason) == ("refused", str(raised.value))
    assert fake.story() == EMPTY
    assert sending(ISSUE).created
    assert fake.story() == FILED


def test_the_intent_is_on_the_disk_before_the_request(
    fake: FakeGitHub, sending: Sending, receipts: Receipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    answer = fake.handle
    monkeypatch.setattr("os.fsync", lambda handle: order.append("fsync"))

    def handle(method: str, target: str, body: bytes) -> Answer:
        order.append(method)
        return answer(method, target, body)

    monkeypatch.setattr(fake, "handle", handle)
    sending(ISSUE)
    # a file and its folder each: body, intent, then the outcome
    assert order == ["GET", "GET", *["fsync"] * 4, "POST", *["fsync"] * 2]


def test_killed_after_the_request_it_is_found(
    fake: FakeGitHub, sending: Sending, receipts: Receipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Receipts, "done", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sending(ISSUE)
    assert states(receipts, ISSUE) == ["unclear"]
    assert sending(ISSUE) == Sent(1, URL, created=False)
    assert fake.story() == FILED


@pytest.mark.parametrize(
    ("there", "post", "told"),
    [
        (Stored("issue", 1, "they", "x", ISSUE.body, 0.0), ISSUE, "issues/1 by they is this very issue"),
        (Stored("issue", 1, "me", ISSUE.title, "by hand", 0.0), ISSUE, "is open with this title"),
        (Stored("pull", 1, "me", "x", "by hand", 0.0, head=PULL.head), PULL, "from this branch"),
        (Stored("pull", 1, "they", "x", PULL.body, 0.0), PULL, "pull/1 by they is this very pull request"),
    ],
)
def test_what_another_hand_made_is_not_doubled(
    there: Stored, post: Post, told: str, fake: FakeGitHub, sending: Sending, receipts: Receipts
) -> None:
    fake.repos[MLX].entries.append(there)
    with pytest.raises(AlreadyThere) as raised:
        sending(post)
    assert told in str(raised.value)
    assert fake.repos[MLX].entries == [there]
    assert states(receipts, post) == []


def test_a_closed_one_of_the_same_title_does_not_count(fake: FakeGitHub, sending: Sending) -> None:
    fake.repos[MLX].entries.append(Stored("issue", 1, "me", ISSUE.title, "by hand", 0.0, state="closed"))
    assert sending(ISSUE).number == 2


def test_two_terminals_do_not_file_at_once(sending: Sending, receipts: Receipts) -> None:
    with receipts.alone(), pytest.raises(UserError, match="another terminal is filing from this folder"):
        sending(ISSUE)


def test_a_damaged_receipt_stops(sending: Sending, tmp_path: Path) -> None:
    sending(ISSUE)
    (path,) = (tmp_path / "receipts").rglob("01.outcome.json")
    path.write_text("{}", "utf-8")
    with pytest.raises(UserError, match=r"01.outcome.json: not a receipt \(2 faults\)"):
        sending(ISSUE)


@pytest.mark.parametrize(
    ("post", "told"),
    [
        (replace(ISSUE, title=" "), "no title"),
        (replace(ISSUE, text="\n"), "no text"),
        (replace(ISSUE, text="x" * 65_500), "the body has 65,5"),
        (replace(ISSUE, text=f"x {COMMENT.marker}"), "a change-id line already"),
    ],
)
def test_what_cannot_be_sent_never_leaves(
    post: Post, told: str, fake: FakeGitHub, sending: Sending, receipts: Receipts
) -> None:
    with pytest.raises(UserError, match=told):
        sending(post)
    assert fake.log == []
    assert states(receipts, post) == []


def test_a_rehearsal_goes_to_the_fork_and_links_nowhere(fake: FakeGitHub, sending: Sending) -> None:
    text = (
        "See lablup/mlxcel#725, #3 and https://github.com/ml-explore/mlx/issues/9; "
        "data: https://github.com/me/data/blob/main/a.json"
    )
    sending(rehearsal(replace(ISSUE, text=text), "me/mlx"))
    assert (
        fake.story()
        == f"""\
{MLX}
me/mlx, a fork of {MLX}
  open issue #1 of me: [BUG] Rows
  | See lablup/mlxcel&#8203;#725, #3 and https://redirect.github.com/ml-explore/mlx/issues/9; data: \
https://github.com/me/data/blob/main/a.json
  |
  | <!-- change-id: small-m-issue-1 -->
{DOWNSTREAM}"""
    )
    assert sending(ISSUE).created  # the rehearsal is no receipt for upstream
