"""This project's own rules on workflows, as code: what no linter knows about machines that belong to people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.machines import DEVICES

FOLDER = Path(".github/workflows")
TRIGGERS = {
    "ci.yml": {"push", "pull_request"},
    "device.yml": {"schedule", "push", "workflow_dispatch"},
    "drafts.yml": {"push", "workflow_dispatch"},
    "drift.yml": {"schedule", "workflow_dispatch"},
    "nightly.yml": {"schedule", "workflow_dispatch"},
}
PUSHED = {"device.yml": ["main", "device/**"]}
"""Branches whose pushes start a workflow; ``main`` where nothing is said."""
READ = {"contents": "read"}
GRANTS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("device.yml", "collect"): {"contents": "read", "id-token": "write", "attestations": "write"},
    ("device.yml", "propose"): {"contents": "write"},
}
"""Every job reads the repository; these may do more."""
TOKEN_JOBS = {("device.yml", "propose")}
"""Jobs that name the run's token."""
ACTIONS = {
    "actions/attest-build-provenance": "a2bbfa25375fe432b6a289bc6b6cd05ecd0c4c32 # v4.1.0",
    "actions/cache/restore": "27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
    "actions/cache/save": "27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
    "actions/checkout": "df4cb1c069e1874edd31b4311f1884172cec0e10 # v6.0.3",
    "actions/download-artifact": "3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c # v8.0.1",
    "actions/setup-python": "a309ff8b426b58ec0e2a45f0f869d46889d02405 # v6.2.0",
    "actions/upload-artifact": "043fb46d1a93c77aae656e7c1c64a875d1fc6a0a # v7.0.1",
}
"""The only code of others that a job runs, by full commit."""
DEVICE_ACTIONS = {"actions/checkout", "actions/upload-artifact"}
_COMMAND = re.compile(
    r'(python3|\.venv/bin/python) -m ci( [a-z0-9./-]+)+|\.venv/bin/nox -s ("\$SESSION"|[a-z0-9]+)( --( [a-z0-9./-]+)+)?'
)
_MINUTES = re.compile(r"\$\{\{ (matrix\.minutes|fromJSON\(needs\.gate\.outputs\.(\w+)\)\.(job|suite)_minutes) \}\}")
_MOST_MINUTES = 360


@dataclass(frozen=True)
class Job:
    file: str
    name: str
    body: Mapping[str, Any]

    @property
    def labels(self) -> list[str]:
        asked = self.body.get("runs-on", [])
        return [asked] if isinstance(asked, str) else list(asked)

    @property
    def device(self) -> str | None:
        """The machine's name; any label that GitHub does not host counts as one."""
        return self.labels[-1] if "self-hosted" in self.labels else None

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        return list(self.body.get("steps", ()))


def load(text: str) -> dict[str, Any]:
    """A workflow as data, by YAML 1.2 as GitHub reads it: ``on`` is a word."""
    from ruamel.yaml import YAML

    found = YAML(typ="safe", pure=True).load(text)
    return dict(found)


def violations(file: str, text: str) -> list[str]:
    """Every rule that the workflow ``text`` breaks, as lines; ``file`` is its name."""
    if file not in TRIGGERS:
        return [f"{file}: a workflow that the policy does not know"]
    workflow = load(text)
    jobs = [Job(file, name, body) for name, body in workflow.get("jobs", {}).items()]
    found = [*_triggers(file, workflow), *_text(file, text)]
    for job in jobs:
        found += [f"{file}: {job.name}: {line}" for line in (*_job(job), *(_device(job) if job.device else ()))]
    return found


def _triggers(file: str, workflow: Mapping[str, Any]) -> Iterator[str]:
    events = workflow.get("on") or {}
    named = {events} if isinstance(events, str) else set(events)
    for event in sorted(named - TRIGGERS[file]):
        yield f"{file}: started by {event}"
    push = events.get("push") if isinstance(events, Mapping) else None
    if "push" in named and (not push or push != {"branches": PUSHED.get(file, ["main"])}):
        yield f"{file}: started by a push to other branches than {', '.join(PUSHED.get(file, ['main']))}"
    if workflow.get("permissions") != {}:
        yield f"{file}: permissions on top are not {{}}"
    if "env" in workflow or "defaults" in workflow:
        yield f"{file}: env or defaults on top reach every job"


def _text(file: str, text: str) -> Iterator[str]:
    if re.search(r"\bsecrets\b", re.sub(r"#.*", "", text)):
        yield f"{file}: names secrets"
    for action, pin in re.findall(r"^\s*-?\s*uses:\s*([^@\s]+)@?(.*)$", text, re.MULTILINE):
        if action not in ACTIONS:
            yield f"{file}: uses {action}, which nobody has read"
        elif pin.strip() != ACTIONS[action]:
            yield f"{file}: {action} is not pinned to {ACTIONS[action]}"


def _job(job: Job) -> Iterator[str]:
    if "uses" in job.body or "container" in job.body or "services" in job.body:
        yield "runs in another workflow, or in a container"
    if not _limit(job.body.get("timeout-minutes")):
        yield "no timeout"
    if job.body.get("permissions") != GRANTS.get((job.file, job.name), READ):
        yield f"permissions are not {dict(GRANTS.get((job.file, job.name), READ))}"
    if "continue-on-error" in job.body or any("continue-on-error" in step for step in job.steps):
        yield "a failure is passed over"
    if (job.file, job.name) not in TOKEN_JOBS and re.search(r"github\.token|GITHUB_TOKEN|GH_TOKEN", str(job.body)):
        yield "names the token"
    if "self-hosted" in str(job.body.get("runs-on")) and not job.device:
        yield "computes its labels"
    for step in job.steps:
        action = str(step.get("uses", "")).partition("@")[0]
        if action == "actions/checkout" and step.get("with", {}).get("persist-credentials") is not False:
            yield "checkout keeps credentials"
        if action == "actions/cache/save" and "github.ref == 'refs/heads/main' && " not in str(step.get("if")):
            yield "a cache is written from another branch than main"
        if action == "actions/upload-artifact" and step.get("with", {}).get("if-no-files-found") != "error":
            yield "an artifact may be missing in silence"
        command = str(step.get("run", "")).strip()
        if "run" in step and not _COMMAND.fullmatch(command):
            yield f"runs {command!r}: only nox and python -m ci are called"


def _device(job: Job) -> Iterator[str]:
    name = job.device or ""
    device = DEVICES.get(name)
    if job.file != "device.yml" or device is None or job.labels != list(device.labels) or job.name != name:
        yield f"{job.labels} are not the labels of a device in device.yml"
        return
    if job.body.get("environment") != name:
        yield f"not in the reviewed environment {name}"
    if job.body.get("needs") != "gate" or job.body.get("if") != f"fromJSON(needs.gate.outputs.{name}).run":
        yield "the gate does not decide"
    if job.body.get("concurrency") != {"group": f"device-{name}", "cancel-in-progress": False, "queue": "max"}:
        yield f"not one run at a time in the group device-{name}"
    if "env" in job.body or "strategy" in job.body:
        yield "env or a matrix reaches every step"
    for number, step in enumerate(job.steps, 1):
        if not _limit(step.get("timeout-minutes")):
            yield f"step {number} has no timeout"
        if "uses" in step and str(step["uses"]).partition("@")[0] not in DEVICE_ACTIONS:
            yield f"step {number} runs an action that a device does not need"
    first = job.steps[0] if job.steps else {}
    wanted = {"ref": "${{ needs.gate.outputs.commit }}", "persist-credentials": False, "clean": True}
    if first.get("with") != wanted:
        yield "the first step is not a clean checkout of the gate's commit"
    runs = [step.get("run") for step in job.steps if "run" in step]
    ordered = [
        *("python3 -m ci setup", f".venv/bin/python -m ci health {name}", f".venv/bin/nox -s {device.session}"),
        f".venv/bin/python -m ci pack {name}",
    ]
    if runs != ordered or any("if" in step for step in job.steps if step.get("id") == "suite"):
        yield "not setup, health, suite, pack: nothing may be measured before the health check passed"


def _limit(asked: object) -> bool:
    if isinstance(asked, int) and not isinstance(asked, bool):
        return 0 < asked <= _MOST_MINUTES
    return isinstance(asked, str) and _MINUTES.fullmatch(asked) is not None
