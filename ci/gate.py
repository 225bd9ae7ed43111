"""Whose code may run on an owner's machine, and on which machines: the one decision before a device job."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ci.git import Git, GitError
from ci.machines import DEVICES, SPARE_MINUTES
from upstream_patch.errors import UserError

MAIN = "refs/heads/main"
TRUSTED = (MAIN, "refs/heads/device/*")
"""Branches that only maintainers can push to (a ruleset of the repository)."""
BUILT = ("pyproject.toml", "constraints.txt", "noxfile.py")
"""What a session is made of, beside the package."""
ONLY_READ = ("draft", "filing", "github", "plots", "readme", "report", "routing_table", "targets")
"""Rooms of the package that render, or send, what was measured. A push to main of nothing but these, or of what lies
outside the package, changes nothing that a device can show; a new room is taken as one that does."""


@dataclass(frozen=True)
class Request:
    """What GitHub says about the run."""

    event: str
    ref: str
    sha: str
    before: str = ""
    """Of a push: the branch's commit before it."""
    commit: str = ""
    """Typed by a person: the reviewed commit, in full."""
    machine: str = "all"
    registered: tuple[str, ...] = ()
    """Machines that have a runner, from the repository's variable DEVICES."""


@dataclass(frozen=True)
class Decision:
    commit: str
    machines: tuple[str, ...]
    reason: str

    def outputs(self) -> dict[str, object]:
        """``commit``, and for each device an object with ``run``, ``suite_minutes`` and ``job_minutes``."""
        found: dict[str, object] = {"commit": self.commit, "any": bool(self.machines)}
        for device in DEVICES.values():
            found[device.name] = {
                "run": device.name in self.machines,
                "suite_minutes": device.suite_minutes,
                "job_minutes": device.suite_minutes + SPARE_MINUTES,
            }
        return found

    def page(self) -> str:
        """For the job's page, in Markdown."""
        runs = ", ".join(DEVICES[name].title for name in self.machines) or "no device"
        return f"## Gate\n\nRuns on {runs}: {self.reason}. Commit `{self.commit}`.\n"


def request(environment: Mapping[str, str], event: Mapping[str, object]) -> Request:
    """From the variables and the event file of a run. Raises UserError outside of one."""
    if missing := [name for name in ("GITHUB_EVENT_NAME", "GITHUB_REF", "GITHUB_SHA") if not environment.get(name)]:
        raise UserError(f"{missing[0]} is not set: the gate is a step of device.yml, and only GitHub knows the rest")
    return Request(
        event=environment["GITHUB_EVENT_NAME"],
        ref=environment["GITHUB_REF"],
        sha=environment["GITHUB_SHA"],
        before=str(event.get("before") or ""),
        commit=environment.get("COMMIT", "").strip(),
        machine=environment.get("MACHINE", "").strip() or "all",
        registered=tuple(environment.get("DEVICES", "").split()),
    )


def decide(asked: Request, git: Git) -> Decision:
    """Raise UserError where the code is not trusted; no machine where there is nothing to run on, or nothing to show.

    A commit that a person types must be on main or on a ``device/`` branch of this repository: GitHub gives out a
    fork's commits under the repository's own name, so that its form alone says nothing about who has read it.
    """
    if unknown := [name for name in asked.registered if name not in DEVICES]:
        raise UserError(f"no machine {unknown[0]!r} in the variable DEVICES: there are {', '.join(DEVICES)}")
    if asked.machine not in (*DEVICES, "all"):
        raise UserError(f"no machine {asked.machine!r}: there are {', '.join(DEVICES)}, and all")
    if asked.event not in ("workflow_dispatch", "schedule", "push"):
        raise UserError(f"{asked.event} never runs on a device: a maintainer mirrors what was read to device/pr-N")
    if not any(fnmatch.fnmatchcase(asked.ref, each) for each in TRUSTED):
        raise UserError(f"{asked.ref} is no branch that runs on a device: main and device/** are")
    if asked.commit and asked.event != "workflow_dispatch":
        raise UserError("only a person names a commit, with workflow_dispatch")
    commit = _reviewed(asked.commit, git) if asked.commit else asked.sha
    if asked.event == "push" and asked.ref == MAIN and not _measured(asked.before, asked.sha, git):
        return Decision(commit, (), "the push changes nothing that a device can show")
    machines = tuple(name for name in DEVICES if name in asked.registered and asked.machine in ("all", name))
    if not machines:
        wanted = "a runner" if asked.machine == "all" else f"a runner for {asked.machine}"
        return Decision(commit, (), f"{wanted} is not registered (variable DEVICES)")
    return Decision(commit, machines, f"{asked.event} on {asked.ref.removeprefix('refs/heads/')}")


def _reviewed(commit: str, git: Git) -> str:
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UserError(f"{commit!r} is no full commit: give all 40 hexadecimal digits of the one that was read")
    try:
        holding = git("for-each-ref", "--format=%(refname)", f"--contains={commit}", "refs/remotes/origin").split()
    except GitError:  # no branch has it
        holding = []
    branches = [ref.replace("refs/remotes/origin/", "refs/heads/") for ref in holding]
    if not any(fnmatch.fnmatchcase(ref, each) for ref in branches for each in TRUSTED):
        raise UserError(f"{commit} is neither on main nor on a device/ branch: mirror it there once it was read")
    return commit


def _measured(before: str, after: str, git: Git) -> bool:
    """True, too, where the commit before is not known: a branch's first push, or a forced one."""
    if not re.fullmatch(r"[0-9a-f]{40}", before) or not before.strip("0"):
        return True
    try:
        changed = git("diff", "--name-only", "-z", "--no-renames", before, after).split("\0")
    except GitError:
        return True
    return any(path in BUILT or _shows(path) for path in changed)


def _shows(path: str) -> bool:
    top, _, rest = path.partition("/")
    return top == "upstream_patch" and rest.partition("/")[0].removesuffix(".py") not in ONLY_READ
