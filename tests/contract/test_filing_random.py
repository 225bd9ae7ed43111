"""Whatever fails, in whatever order, nothing is ever made twice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fake_github import LATE_S, Clock, FakeGitHub, Fault, Repo, Stored
from tests.contract.server import serve
from upstream_patch import github
from upstream_patch.errors import UserError
from upstream_patch.filing.post import Post
from upstream_patch.filing.receipts import Outcome, Receipts
from upstream_patch.filing.send import SETTLE_S, send
from upstream_patch.github import GitHub

pytestmark = pytest.mark.needs_contract
MLX = "ml-explore/mlx"
POSTS = (
    Post("issue", MLX, "issue-1", "Rows", "The rows."),
    Post("pull request", MLX, "pr-1", "Once", "Fixes #1.", head="me:small-m", base="main"),
    Post("comment", "lablup/mlxcel", "link-1", "", "Filed.", number=725),
)
WRITES: tuple[Fault | None, ...] = (
    *("502 before", "502 after", "drop before", "drop after", "late", "garbled"),
    *("busy", "busy long", "limited", "invalid", "another", "lost", None, None),
)
READS: tuple[Fault | None, ...] = ("502 before", "drop before", "busy", "busy long", *[None] * 12)
SEQUENCES, PARTS = 600, 6


class Killed(BaseException):
    """The process ends between the answer and the receipt of it."""


class Fragile(Receipts):
    """Dies while it writes an outcome, as often as told."""

    deaths = 0

    def _end(self, *given: Any) -> Outcome:
        if self.deaths:
            self.deaths -= 1
            raise Killed
        return super()._end(*given)


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_made_twice(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)  # what it is for is tested elsewhere
    clock = Clock()
    fake = FakeGitHub(clock)
    client_clock = github.Clock(clock.now, clock.sleep)
    ends: dict[str, int] = {}
    with serve(fake) as address, GitHub("token", address, clock=client_clock) as hub:
        for number in range(part, SEQUENCES, PARTS):
            chance = random.Random(number)
            post = POSTS[number % len(POSTS)]
            fake.repos = {MLX: Repo("ml-explore"), "lablup/mlxcel": Repo("lablup")}
            fake.repos["lablup/mlxcel"].entries.append(Stored("issue", 725, "they", "Rows", "The rows.", 0.0))
            fake.search_lag_s = chance.choice((0.0, 60.0, 1e9))
            receipts = Fragile(tmp_path / f"{number}", address)
            story = []
            for attempt in range(chance.randint(2, 5)):
                fake.on_write.clear()
                fake.on_read.clear()
                fake.on_write.append(chance.choice(WRITES))
                fake.on_read.extend(["502 before"] * 3 if chance.random() < 0.1 else chance.choices(READS, k=3))
                receipts.deaths = chance.random() < 0.15
                if chance.random() < 0.15 and clock.now() > fake.last_write + LATE_S:
                    receipts = Fragile(tmp_path / f"{number} again {attempt}", address)  # the work folder is lost
                story.append((list(fake.on_write), list(fake.on_read), bool(receipts.deaths)))
                try:
                    end = "sent" if send(post, hub, receipts, client_clock, login="me").created else "there"
                except (UserError, Killed) as error:
                    end = type(error).__name__
                ends[end] = ends.get(end, 0) + 1
                clock.sleep(chance.choice((1.0, LATE_S, SETTLE_S)))
            clock.sleep(LATE_S)
            fake.settle()
            made = [entry for repo in fake.repos.values() for entry in repo.entries if post.marker in entry.body]
            assert len(made) <= 1, (number, story, fake.story())
            fake.on_write.clear()
            fake.on_read.clear()
            clock.sleep(SETTLE_S)
            receipts.deaths = 0
            send(post, hub, receipts, client_clock, login="me")  # and in the end, on a good day, it is there, once
            made = [entry for repo in fake.repos.values() for entry in repo.entries if post.marker in entry.body]
            assert len(made) == 1, (number, story, fake.story())
    assert fake.broken == []
    # every end was met: a chance that never struck would test nothing
    assert ends.keys() == {"sent", "there", "Refused", "Busy", "Unclear", "Unreachable", "Killed"}
