"""git, as the verbs use it: here, and with an error that a person can read."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from upstream_patch.errors import UserError

Git = Callable[..., str]


class GitError(UserError):
    """What git said when it failed, in one line."""


def git(*arguments: str) -> str:
    """Run git in the working folder and return what it prints; raises GitError."""
    done = subprocess.run(("git", *arguments), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise GitError(f"git {next((word for word in arguments if not word.startswith('-')), '')}: {said}")
    return done.stdout
