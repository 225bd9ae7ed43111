"""The fake GitHub, its address on loopback, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.fake_github import Clock, FakeGitHub, Repo, Stored
from tests.contract.server import serve
from upstream_patch import github

TIMEOUT_S = 0.5


@pytest.fixture
def fake() -> Iterator[FakeGitHub]:
    """With upstream, the person's fork of it and the downstream project. Ends in a failure when a request broke the
    description."""
    made = FakeGitHub(Clock())
    made.repos = {
        "ml-explore/mlx": Repo("ml-explore"),
        "me/mlx": Repo("me", parent="ml-explore/mlx"),
        "lablup/mlxcel": Repo("lablup"),
    }
    made.repos["me/mlx"].branches["small-m"] = "b" * 40
    made.repos["lablup/mlxcel"].entries.append(
        Stored("issue", 725, "they", "Small-M rows", "The rows.", made.clock.now(), state="closed")
    )
    yield made
    assert made.broken == []


@pytest.fixture
def address(fake: FakeGitHub) -> Iterator[str]:
    with serve(fake) as address:
        yield address


@pytest.fixture
def hub(fake: FakeGitHub, address: str) -> Iterator[github.GitHub]:
    """A client on the fake's clock."""
    clock = github.Clock(fake.clock.now, fake.clock.sleep)
    with github.GitHub("token", address, timeout_s=TIMEOUT_S, clock=clock) as client:
        yield client
