"""Whose code may run on a device: every way in, and every way that is shut."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ci.gate import MAIN, ONLY_READ, Request, decide, request
from ci.git import GitError
from ci.machines import DEVICES, LEGS, MINUTES, SPARE_MINUTES
from ci.plan import matrix, require_success
from tests.host.test_layout import LAYERS
from upstream_patch.errors import UserError

HEAD, READ, FORK = "a" * 40, "b" * 40, "c" * 40
BOTH = ("gb10", "m5")
ASKED = Request("workflow_dispatch", MAIN, HEAD, registered=BOTH)


def git(*arguments: str) -> str:
    """READ is on device/pr-7, HEAD on main, FORK nowhere; a push from READ changes a kernel, one from HEAD a page."""
    if arguments[0] == "for-each-ref":
        commit = arguments[2].removeprefix("--contains=")
        if commit == FORK:
            raise GitError("no such commit")
        return "refs/remotes/origin/device/pr-7\n" if commit == READ else "refs/remotes/origin/main\n"
    before = arguments[-2]
    return "upstream_patch/kernels/cuda/small_m.cuh\0README.md\0" if before == READ else "README.md\0"


@pytest.mark.parametrize(
    ("changes", "machines", "commit"),
    [
        ({}, BOTH, HEAD),
        ({"machine": "m5"}, ("m5",), HEAD),
        ({"commit": READ}, BOTH, READ),
        ({"ref": "refs/heads/device/pr-7"}, BOTH, HEAD),
        ({"event": "schedule"}, BOTH, HEAD),
        ({"event": "push", "ref": "refs/heads/device/pr-7", "before": "0" * 40}, BOTH, HEAD),
        ({"event": "push", "before": READ}, BOTH, HEAD),
        ({"event": "push", "before": ""}, BOTH, HEAD),
        ({"event": "push", "before": HEAD}, (), HEAD),
        ({"registered": ("gb10",)}, ("gb10",), HEAD),
        ({"registered": ("gb10",), "machine": "m5"}, (), HEAD),
        ({"registered": ()}, (), HEAD),
    ],
)
def test_trusted_code_runs_where_there_is_a_machine(
    changes: dict[str, str], machines: tuple[str, ...], commit: str
) -> None:
    decision = decide(replace(ASKED, **changes), git)  # type: ignore[arg-type]
    assert (decision.machines, decision.commit) == (machines, commit)
    assert decision.reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"event": "pull_request"}, "never runs on a device"),
        ({"event": "pull_request_target"}, "never runs on a device"),
        ({"event": "workflow_run"}, "never runs on a device"),
        ({"ref": "refs/heads/feature"}, "no branch that runs on a device"),
        ({"ref": "refs/pull/3/merge"}, "no branch that runs on a device"),
        ({"ref": "refs/tags/device/x"}, "no branch that runs on a device"),
        ({"ref": "refs/heads/mydevice/x"}, "no branch that runs on a device"),
        ({"commit": "main"}, "no full commit"),
        ({"commit": READ[:12]}, "no full commit"),
        ({"commit": READ.upper()}, "no full commit"),
        ({"commit": FORK}, "neither on main nor on a device/ branch"),
        ({"event": "schedule", "commit": READ}, "only a person names a commit"),
        ({"machine": "h100"}, "no machine 'h100'"),
        ({"registered": ("gb10", "m6")}, "no machine 'm6' in the variable DEVICES"),
        ({"registered": ("all",)}, "no machine 'all' in the variable DEVICES"),
    ],
)
def test_nothing_else_does(changes: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        decide(replace(ASKED, **changes), git)  # type: ignore[arg-type]


def test_a_branch_that_only_holds_the_word_does_not_make_a_commit_trusted() -> None:
    with pytest.raises(UserError, match="neither on main"):
        decide(replace(ASKED, commit=READ), lambda *_: "refs/remotes/origin/feature/device/x\n")


def test_the_request_is_what_github_says() -> None:
    said = {"GITHUB_EVENT_NAME": "push", "GITHUB_REF": MAIN, "GITHUB_SHA": HEAD, "DEVICES": "m5 gb10", "COMMIT": ""}
    assert request(said, {"before": READ}) == Request("push", MAIN, HEAD, before=READ, registered=("m5", "gb10"))


@pytest.mark.parametrize("missing", ["GITHUB_EVENT_NAME", "GITHUB_REF", "GITHUB_SHA"])
def test_outside_of_a_run_there_is_no_request(missing: str) -> None:
    said = {"GITHUB_EVENT_NAME": "push", "GITHUB_REF": MAIN, "GITHUB_SHA": HEAD}
    with pytest.raises(UserError, match=f"{missing} is not set"):
        request(said | {missing: ""}, {})


@pytest.mark.parametrize(
    ("path", "machines"),
    [
        ("upstream_patch/routing.py", BOTH),
        ("upstream_patch/reference.py", BOTH),
        ("upstream_patch/a_new_room/x.py", BOTH),
        ("constraints.txt", BOTH),
        ("upstream_patch/readme.py", ()),
        ("upstream_patch/draft/templates/issue.md", ()),
        ("README.md", ()),
        ("evidence/records/gb10/x.json", ()),
        ("tests/host/upstream_patch/x.py", ()),
    ],
)
def test_a_push_to_main_runs_for_what_a_device_can_show(path: str, machines: tuple[str, ...]) -> None:
    asked = replace(ASKED, event="push", before=READ)
    assert decide(asked, lambda *_: f"README.md\0{path}\0").machines == machines


def test_no_room_that_measures_is_left_out() -> None:
    """The rooms left out are those above all that measures, so nothing there imports them."""
    assert set(ONLY_READ) == LAYERS[5] | {"filing"}


def test_limits_of_the_suite_are_shorter_than_those_of_the_job() -> None:
    outputs = decide(replace(ASKED, machine="m5"), git).outputs()
    assert outputs["gb10"] == {"run": False, "suite_minutes": 240, "job_minutes": 270}
    assert outputs["m5"] == {"run": True, "suite_minutes": 180, "job_minutes": 210}
    # setup, health, pack and upload: what stands beside the suite in device.yml
    assert SPARE_MINUTES >= 5 + 15 + 5 + 2 + 3
    assert outputs.keys() == {"commit", "any", *DEVICES}


def test_the_plan_has_every_leg_and_a_limit_for_each() -> None:
    for workflow, legs in LEGS.items():
        entries = matrix(workflow)["include"]
        assert len({entry["name"] for entry in entries}) == len(entries) == sum(len(leg.sessions) for leg in legs)
        assert all(entry["minutes"] == MINUTES[str(entry["session"])] for entry in entries)
    with pytest.raises(UserError, match="no matrix for 'device'"):
        matrix("device")


@pytest.mark.parametrize("result", ["failure", "cancelled", "skipped"])
def test_the_check_of_all_jobs_wants_success(result: str) -> None:
    require_success(json.dumps({"plan": {"result": "success"}}))
    with pytest.raises(UserError, match=f"not passed: hosted: {result}"):
        require_success(json.dumps({"plan": {"result": "success"}, "hosted": {"result": result}}))
    with pytest.raises(UserError, match="no job"):
        require_success("")
    for garbage in ("x", "[]", '{"plan": 1}', '{"plan": {}}'):
        with pytest.raises(UserError, match="not what GitHub says"):
            require_success(garbage)


@pytest.mark.parametrize("verb", ["plan ci", "plan nightly", "passed", "gate", "setup --dry-run"])
def test_what_runs_before_setup_needs_nothing_but_python(root: Path, verb: str) -> None:
    """-S: as on a machine where nothing is installed."""
    needs = json.dumps({"plan": {"result": "success"}})
    said = {"GITHUB_EVENT_NAME": "push", "GITHUB_REF": MAIN, "GITHUB_SHA": HEAD, "NEEDS": needs}
    command = [sys.executable, "-S", "-m", "ci", *verb.split()]
    ran = subprocess.run(command, cwd=root, env=said, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
