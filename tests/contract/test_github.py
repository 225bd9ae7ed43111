"""The seam to GitHub: what is repeated, what never is, and how each answer is told."""

from __future__ import annotations

import socket
import sys
import time
from email.utils import formatdate

import pytest

from tests.contract.fake_github import LIMITS, RATE, Answer, Clock, FakeGitHub, Fault, Stored
from upstream_patch import github
from upstream_patch.errors import MissingTool, UserError
from upstream_patch.github import Busy, GitHub, Refused, Unclear, Unreachable

pytestmark = pytest.mark.needs_contract
MLX = "ml-explore/mlx"
POSTED = f"POST /repos/{MLX}/issues"


@pytest.mark.parametrize(
    ("faults", "log", "waits"),
    [
        (["502 before"], ["502", "200"], [1.0]),
        (["drop before", "502 before"], ["lost", "502", "200"], [1.0, 4.0]),
        (["slow"], ["no answer", "200"], [1.0]),
        (["busy"], ["403", "200"], [7.0]),
        (["busy bare", "busy bare"], ["403", "403", "200"], [60.0, 120.0]),
    ],
)
def test_a_read_is_sent_again(
    faults: list[Fault], log: list[str], waits: list[float], fake: FakeGitHub, hub: GitHub
) -> None:
    fake.on_read.extend(faults)
    assert hub.login() == "me"
    assert fake.log == [f"GET /user {told}" for told in log]
    assert fake.clock.waits == waits


@pytest.mark.parametrize("call", ["login", "repository", "branch", "recent", "pulls_from", "comments", "search"])
def test_an_answer_that_cannot_be_read_is_told(call: str, fake: FakeGitHub, hub: GitHub) -> None:
    fake.on_read.append("garbled")
    given = {"login": (), "repository": (MLX,), "search": ("x repo:ml-explore/mlx",), "comments": (MLX, 1)}
    with pytest.raises(Unreachable, match=r"GET /\S+: an answer that cannot be read: nothing was written"):
        getattr(hub, call)(*given.get(call, (MLX, "main")))


def test_a_read_that_keeps_failing_ends(fake: FakeGitHub, hub: GitHub) -> None:
    fake.on_read.extend(["502 before"] * 3)
    with pytest.raises(Unreachable, match=r"GET /user: GitHub answered 502, 3 times: nothing was written"):
        hub.login()
    assert len(fake.log) == 3


@pytest.mark.parametrize(
    ("fault", "log", "stored", "told"),
    [
        ("502 before", "502", 0, "GitHub answered 502: it may have been done all the same"),
        ("502 after", "502", 1, "GitHub answered 502: it may have been done all the same"),
        ("drop before", "lost", 0, "the connection was lost: it may have been done all the same"),
        ("drop after", "lost", 1, "the connection was lost: it may have been done all the same"),
        ("slow", "no answer", 1, "no answer in time: it may have been done all the same"),
        ("late", "504", 0, "GitHub answered 504: it may have been done all the same"),
        ("garbled", "201", 1, "an answer that cannot be read: it may have been done all the same"),
    ],
)
def test_a_write_of_unclear_end_is_never_sent_again(
    fault: Fault, log: str, stored: int, told: str, fake: FakeGitHub, hub: GitHub
) -> None:
    fake.on_write.append(fault)
    with pytest.raises(Unclear) as raised:
        hub.create_issue(MLX, "t", "b")
    assert str(raised.value) == f"{POSTED}: {told}"
    assert fake.log == [f"{POSTED} {log}"]
    assert len(fake.repos[MLX].entries) == stored


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("limited", f"GitHub refused, 403: {LIMITS}: the repository limits who may write there"),
        ("invalid", "GitHub refused, 422: Validation Failed; body is invalid"),
        ("moved", "the repository has moved: give its new name"),
    ],
)
def test_a_refused_write_is_told_and_not_sent_again(fault: Fault, told: str, fake: FakeGitHub, hub: GitHub) -> None:
    fake.on_write.append(fault)
    with pytest.raises(Refused) as raised:
        hub.create_issue(MLX, "t", "b")
    assert str(raised.value).startswith(f"{POSTED}: {told}")
    assert len(fake.log) == 1
    assert fake.clock.waits == []


def test_a_write_refused_for_its_rate_waits_as_told_and_is_sent_again(fake: FakeGitHub, hub: GitHub) -> None:
    fake.on_write.extend(["busy", "busy bare"])
    assert hub.create_issue(MLX, "t", "b").number == 1
    assert fake.log == [f"{POSTED} 403", f"{POSTED} 403", f"{POSTED} 201"]
    assert fake.clock.waits == [7.0, 120.0]
    assert len(fake.repos[MLX].entries) == 1


@pytest.mark.parametrize(("faults", "sent", "when"), [(["busy long"], 1, 3600), (["busy"] * 3, 3, 7)])
def test_a_long_wait_is_the_persons(faults: list[Fault], sent: int, when: int, fake: FakeGitHub, hub: GitHub) -> None:
    fake.on_write.extend(faults)
    with pytest.raises(Busy, match=rf"nothing was written; run it again in {when} s"):
        hub.create_issue(MLX, "t", "b")
    assert len(fake.log) == sent
    assert fake.repos[MLX].entries == []


@pytest.mark.parametrize("status", [403, 429])
@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ("9", 9.0),
        (" 9 ", 9.0),
        ("0", 0.0),
        ("date +90", 90.0),
        ("date -90", 60.0),  # past: no time is named, so GitHub's advice holds
        ("-5", 60.0),
        ("1.5", 60.0),
        ("soon", 60.0),
        ("", 60.0),
        ("Wed, 99 Foo 2026", 60.0),
        ("9" * 4000, 60.0),
    ],
)
def test_a_time_to_wait_is_read_in_every_form(
    header: str, wait_s: float, status: int, fake: FakeGitHub, hub: GitHub
) -> None:
    if header.startswith("date"):
        header = formatdate(fake.clock.seconds + int(header.removeprefix("date")), usegmt=True)
    fake.on_write.append(Answer(status, {"message": RATE}, (("Retry-After", header),)))
    assert hub.create_issue(MLX, "t", "b")
    assert fake.clock.waits == [wait_s]


@pytest.mark.parametrize("reset", ["soon", "-1", "1e9", ""])
def test_an_odd_time_of_reset_is_none(reset: str, fake: FakeGitHub, hub: GitHub) -> None:
    headers = (("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", reset))
    fake.on_write.append(Answer(403, {"message": RATE}, headers))
    assert hub.create_issue(MLX, "t", "b")
    assert fake.clock.waits == [60.0]


def test_an_unclear_end_after_a_wait_is_unclear(fake: FakeGitHub, hub: GitHub) -> None:
    fake.on_write.extend(["busy", "502 after"])
    with pytest.raises(Unclear):
        hub.create_issue(MLX, "t", "b")
    assert len(fake.repos[MLX].entries) == 1


def test_writes_are_a_second_apart(fake: FakeGitHub, hub: GitHub) -> None:
    for title in "ab":
        hub.create_issue(MLX, title, "b")
    fake.clock.seconds += 0.25
    hub.create_comment(MLX, 1, "c")
    assert fake.clock.waits == [1.0, 0.75]


def test_a_list_is_read_page_by_page(fake: FakeGitHub, hub: GitHub) -> None:
    fake.repos[MLX].entries = [Stored("comment", 1, "they", "", f"{i}", 0.0) for i in range(250)]
    assert [entry.body for entry in hub.comments(MLX, 1)] == [f"{i}" for i in range(250)]
    assert len(fake.log) == 3
    fake.repos[MLX].entries = [Stored("comment", 1, "they", "", f"{i}", 0.0) for i in range(501)]
    with pytest.raises(UserError, match="more than 500 entries"):
        hub.comments(MLX, 1)


def test_pulls_of_a_branch_are_open_and_closed(fake: FakeGitHub, hub: GitHub) -> None:
    heads = (("me:a", "open"), ("me:a", "closed"), ("me:b", "open"))
    fake.repos[MLX].entries = [
        Stored("pull", number, "me", "t", "b", 0.0, state=state, head=head)
        for number, (head, state) in enumerate(heads, 1)
    ]
    assert [entry.number for entry in hub.pulls_from(MLX, "me:a")] == [2, 1]


def test_what_is_missing_is_told(fake: FakeGitHub, hub: GitHub) -> None:
    assert hub.branch("me/mlx", "small-m") == "b" * 40
    assert hub.branch("me/mlx", "other") is None
    fake.repos["me/mlx"].has_issues = False
    with pytest.raises(Refused, match="issues are switched off there: a fork's owner switches them on"):
        hub.create_issue("me/mlx", "t", "b")
    with pytest.raises(Refused, match="404: Not Found: no such repository"):
        hub.repository("me/gone")


def test_no_connection_is_no_unclear_write() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        clock = Clock()
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with (
            GitHub("token", address, clock=github.Clock(clock.now, clock.sleep)) as client,
            pytest.raises(Unreachable, match="no connection to GitHub"),
        ):
            client.create_issue(MLX, "t", "b")


def test_a_client_waits_no_longer_than_its_timeout(fake: FakeGitHub, address: str) -> None:
    fake.on_write.append("slow")
    start = time.monotonic()
    with GitHub("token", address, timeout_s=0.1) as client, pytest.raises(Unclear, match="no answer in time"):
        client.create_issue(MLX, "t", "b")
    assert time.monotonic() - start < 0.9


def test_a_proxy_is_not_asked_for_loopback(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with GitHub("token", address) as client:
        assert client.login() == "me"


@pytest.mark.parametrize("address", ["http://api.github.com", "http://127.0.0.1.evil.example", "ftp://github.com"])
def test_a_token_never_travels_in_the_clear(address: str) -> None:
    with pytest.raises(UserError, match="in the clear"):
        GitHub("token", address)


def test_githubkit_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "githubkit", None)
    with pytest.raises(MissingTool, match=r"githubkit .*: pip install -e '\.\[github\]'"):
        GitHub("token")


def test_a_token_is_needed() -> None:
    with pytest.raises(MissingTool, match="no GitHub token: export GH_TOKEN"):
        github.connect({})


@pytest.mark.parametrize("name", ["mlx", "a/b/c", "a/", "/b", "a/b c", ""])
def test_a_repository_has_two_parts(name: str, hub: GitHub) -> None:
    with pytest.raises(UserError, match="write OWNER/NAME"):
        hub.repository(name)
