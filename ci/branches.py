"""The two branches that this project makes: a reviewed pull request for the devices, and records for a person."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.collect import place
from ci.git import Git, git
from upstream_patch.errors import UserError

FENCED = (".github/", "ci/", "noxfile.py")
"""What decides on the devices. Its changes are tried from main, once they are merged; never from a mirror."""
_ACCOUNT = "41898282+github-actions[bot]@users.noreply.github.com"
_MACHINE = ("-c", "user.name=github-actions[bot]", "-c", f"user.email={_ACCOUNT}")


def mirror(number: int, commit: str, remote: str = "origin", run_git: Git = git) -> str:
    """Push ``commit``, the head of a pull request that was read, to ``device/pr-N``; the branch. For a maintainer.

    Raises UserError where the pull request has moved on since, or changes what decides on the devices.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UserError(f"{commit!r} is no full commit: give all 40 hexadecimal digits of the one that you read")
    run_git("fetch", "--quiet", remote, f"refs/pull/{number}/head", "refs/heads/main")
    heads = run_git("ls-remote", remote, f"refs/pull/{number}/head", "refs/heads/main").split()
    found = dict(zip(heads[1::2], heads[::2], strict=True))
    head = found.get(f"refs/pull/{number}/head", "nothing")
    if head != commit:
        raise UserError(f"pull request {number} is at {head} now, not at {commit}: read what is new first")
    # -z: git quotes odd names otherwise; --no-renames: a file that is moved away is a change, too
    between = f"{found['refs/heads/main']}...{commit}"
    changed = run_git("diff", "--name-only", "-z", "--no-renames", between).split("\0")
    # casefold: on a Mac CI/ and ci/ are one folder
    if fenced := [path for path in changed if path.casefold().startswith(FENCED)]:
        raise UserError(f"it changes {fenced[0]}, which decides on the devices: that part is merged first, by itself")
    branch = f"device/pr-{number}"
    run_git("push", "--force", remote, f"{commit}:refs/heads/{branch}")
    return branch


def propose(
    collected: Path, environment: Mapping[str, str], root: Path = Path(), run_git: Git = git
) -> tuple[str, Sequence[str]]:
    """Commit what was collected on a branch ``evidence/run-ID-ATTEMPT`` and push it; the branch and the paths.

    A person opens the pull request; the commit is a machine's, and says so. git gets its token from ``credentials``.
    """
    run, attempt = environment.get("GITHUB_RUN_ID", ""), environment.get("GITHUB_RUN_ATTEMPT", "")
    if not re.fullmatch(r"\d+ \d+", f"{run} {attempt}", re.ASCII):
        raise UserError(f"{run!r}, {attempt!r} is no run and its attempt: a workflow proposes, nobody by hand")
    paths = place(collected, root)
    if not paths:
        raise UserError(f"{collected} has no record")
    branch = f"evidence/run-{run}-{attempt}"
    run_git("switch", "--quiet", "--create", branch)
    run_git("add", "--", *paths)
    run_git(*_MACHINE, "commit", "--quiet", "--message", f"Evidence of run {run}")
    run_git("push", "--quiet", "origin", f"HEAD:refs/heads/{branch}")
    return branch, paths


def credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables under which git may push to this repository, from ``$TOKEN``; none without."""
    token = environment.get("TOKEN", "")
    if not token:
        return {}
    basic = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    server = environment.get("GITHUB_SERVER_URL", "https://github.com")
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{server}/.extraheader",
        "GIT_CONFIG_VALUE_0": f"AUTHORIZATION: basic {basic}",
    }
