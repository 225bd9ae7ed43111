"""What the workflows may do, as data: triggers, actions, and every step of every job. ``ci.policy`` holds them to it.

The list is whole: a step, a condition or an input that is not here is refused, and so a change of a workflow that
nobody meant shows twice in a review.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ci.machines import DEVICES, LEGS, Device

_MAIN = {"branches": ["main"]}
_DISPATCH = {
    "machine": {
        "description": "Which machine",
        "type": "choice",
        "options": ["all", *DEVICES],
        "default": "all",
    },
    "commit": {
        "description": "Full SHA of a reviewed commit on main or device/**; empty for this branch's own",
        "type": "string",
        "default": "",
    },
}
TRIGGERS: Mapping[str, Mapping[str, object]] = {
    "ci.yml": {"push": _MAIN, "pull_request": None},
    "device.yml": {
        "schedule": [{"cron": "23 3 * * 6"}],
        "push": {"branches": ["main", "device/**"]},
        "workflow_dispatch": {"inputs": _DISPATCH},
    },
    "drafts.yml": {"push": _MAIN, "workflow_dispatch": None},
    "drift.yml": {"schedule": [{"cron": "41 5 * * *"}], "workflow_dispatch": None},
    "nightly.yml": {"schedule": [{"cron": "17 2 * * *"}], "workflow_dispatch": None},
}
"""What stands under ``on``, whole: every event with its branches, times and inputs, and with no filter but these."""
CONCURRENCY: Mapping[str, Mapping[str, object]] = {
    "ci.yml": {"group": "ci-${{ github.ref }}", "cancel-in-progress": "${{ github.ref != 'refs/heads/main' }}"},
    # another name than the machines' own groups, or a run would wait for itself
    "device.yml": {"group": "devices-${{ github.ref }}", "cancel-in-progress": False, "queue": "max"},
    "drafts.yml": {"group": "drafts-${{ github.ref }}", "cancel-in-progress": True},
    "drift.yml": {"group": "drift-${{ github.ref }}", "cancel-in-progress": True},
    "nightly.yml": {"group": "nightly-${{ github.ref }}", "cancel-in-progress": False},
}
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
HOSTED = {"${{ matrix.runner }}", *(leg.runner for legs in LEGS.values() for leg in legs)}
"""Labels of GitHub's own machines, and the plan's, which has no other. All else is somebody's machine."""


@dataclass(frozen=True)
class Step:
    """A command or an action, with all that it is given: the command's environment, or the action's inputs."""

    does: str
    given: Mapping[str, object] = field(default_factory=dict)
    condition: str | None = None


@dataclass(frozen=True)
class Job:
    steps: tuple[Step, ...]
    needs: tuple[str, ...] = ()
    condition: str | None = None
    permissions: Mapping[str, str] = field(default_factory=lambda: {"contents": "read"})
    outputs: Mapping[str, str] = field(default_factory=dict)


def _checkout(**given: object) -> Step:
    return Step("actions/checkout", {"persist-credentials": False, **given})


def _python(version: str = "3.12") -> Step:
    return Step("actions/setup-python", {"python-version": version})


def _upload(name: str, path: str, condition: str | None = None) -> Step:
    return Step("actions/upload-artifact", {"name": name, "path": path, "if-no-files-found": "error"}, condition)


_SETUP = Step("python3 -m ci setup")
_MATRIX = "${{ steps.plan.outputs.matrix }}"
_SESSION = Step('.venv/bin/nox -s "$SESSION"', {"SESSION": "${{ matrix.session }}", "UPSTREAM_PATCH_STRICT": "1"})
_CACHE = {
    "path": "~/.cache/uv",
    "key": "uv-${{ runner.os }}-${{ runner.arch }}-${{ matrix.python }}-${{ hashFiles('constraints.txt') }}",
}
_FROM_MAIN = "github.ref == 'refs/heads/main' && steps.cache.outputs.cache-hit != 'true' && matrix.session == 'tests'"
_HOSTED = (_checkout(), _python("${{ matrix.python }}"))


def _plan(workflow: str) -> Job:
    return Job((_checkout(), Step(f"python3 -m ci plan {workflow}")), outputs={"matrix": _MATRIX})


def _device(device: Device) -> Job:
    """Health before anything is measured; what there is leaves the machine even when the suite was cut off."""
    name, always = device.name, "always() && steps.setup.outcome == 'success'"
    return Job(
        (
            _checkout(ref="${{ needs.gate.outputs.commit }}", clean=True),
            _SETUP,
            Step(f".venv/bin/python -m ci health {name}"),
            Step(f".venv/bin/nox -s {device.session}"),
            Step(f".venv/bin/python -m ci pack {name}", {"SUITE": "${{ steps.suite.outcome }}"}, always),
            _upload(f"device-{name}", "out/device/", always),
        ),
        ("gate",),
        f"fromJSON(needs.gate.outputs.{name}).run",
    )


_ASKED = {"MACHINE": "${{ inputs.machine }}", "COMMIT": "${{ inputs.commit }}", "DEVICES": "${{ vars.DEVICES }}"}
JOBS: Mapping[tuple[str, str], Job] = {
    ("ci.yml", "plan"): _plan("ci"),
    ("ci.yml", "hosted"): Job(
        (
            *_HOSTED,
            Step("actions/cache/restore", _CACHE),
            _SETUP,
            _SESSION,
            Step("actions/cache/save", _CACHE, _FROM_MAIN),
        ),
        ("plan",),
    ),
    ("ci.yml", "passed"): Job(
        (_checkout(), Step("python3 -m ci passed", {"NEEDS": "${{ toJSON(needs) }}"})), ("plan", "hosted"), "always()"
    ),
    ("device.yml", "gate"): Job(
        (_checkout(**{"fetch-depth": 0}), Step("python3 -m ci gate", _ASKED)),
        outputs={name: f"${{{{ steps.gate.outputs.{name} }}}}" for name in ("commit", "any", *DEVICES)},
    ),
    **{("device.yml", device.name): _device(device) for device in DEVICES.values()},
    # main's code judges and commits what a device sent, never that of a device/ branch: these jobs may write
    ("device.yml", "collect"): Job(
        (
            _checkout(ref="main"),
            _python(),
            Step("actions/download-artifact", {"pattern": "device-*", "path": "out/artifacts"}),
            _SETUP,
            Step(
                ".venv/bin/python -m ci collect out/artifacts --out out/evidence",
                {"COMMIT": "${{ needs.gate.outputs.commit }}"},
            ),
            Step(
                "actions/attest-build-provenance",
                {"subject-checksums": "out/evidence/manifest.sha256"},
                "steps.collect.outputs.records != '0'",
            ),
            _upload("evidence", "out/evidence/"),
        ),
        ("gate", *DEVICES),
        "${{ !cancelled() && needs.gate.outputs.any == 'true' }}",
        {"contents": "read", "id-token": "write", "attestations": "write"},
        {"records": "${{ steps.collect.outputs.records }}"},
    ),
    ("device.yml", "propose"): Job(
        (
            _checkout(ref="main"),
            _python(),
            Step("actions/download-artifact", {"name": "evidence", "path": "out/evidence"}),
            _SETUP,
            Step(".venv/bin/python -m ci propose out/evidence", {"TOKEN": "${{ github.token }}"}),
        ),
        ("collect",),
        "${{ !cancelled() && needs.collect.result == 'success' && needs.collect.outputs.records != '0' }}",
        {"contents": "write"},
    ),
    ("drafts.yml", "drafts"): Job(
        (
            _checkout(),
            _python(),
            _SETUP,
            Step(".venv/bin/nox -s records"),
            Step(".venv/bin/nox -s draft"),
            _upload("drafts", "out/"),
        )
    ),
    ("drift.yml", "drift"): Job(
        (
            _checkout(),
            _checkout(repository="ml-explore/mlx", path="out/mlx", **{"fetch-depth": 0}),
            _python(),
            _SETUP,
            Step(".venv/bin/nox -s drift -- --mlx out/mlx"),
        )
    ),
    ("nightly.yml", "plan"): _plan("nightly"),
    ("nightly.yml", "hosted"): Job((*_HOSTED, _SETUP, _SESSION), ("plan",)),
    ("nightly.yml", "simulator"): Job((_checkout(), _python(), _SETUP, Step(".venv/bin/nox -s simulate -- --full"))),
}
