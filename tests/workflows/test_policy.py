"""The policy holds for the workflows that are here, and a workflow that is changed for the worse breaks it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from ci import allowed, policy
from ci.machines import DEVICES, LEGS
from tests.workflows import mutations


def test_every_workflow_keeps_it(texts: dict[str, str]) -> None:
    assert texts.keys() == allowed.TRIGGERS.keys() == allowed.CONCURRENCY.keys()
    assert [line for name, text in texts.items() for line in policy.violations(name, text)] == []


@pytest.mark.parametrize("name", mutations.ALL)
def test_a_worse_workflow_is_seen(texts: dict[str, str], name: str) -> None:
    file, was, becomes, said = mutations.ALL[name]
    assert was in texts[file]
    found = policy.violations(file, texts[file].replace(was, becomes, 1))
    assert [line for line in found if line.startswith(f"{file}: {said}")], found


def test_no_form_of_a_workflow_ends_the_check(texts: dict[str, str]) -> None:
    """With each value in turn of a form that does not belong there."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            yield (*path, key)
            yield from places(value[key], (*path, key))

    workflow = policy.load(texts["drift.yml"])
    for *path, last in places(workflow):
        for other in (None, [], {}, [1], {"a": 1}, 9999, "x"):
            worse = copy.deepcopy(workflow)
            inner = worse
            for key in path:
                inner = inner[key]
            if last == "name" or inner[last] == other:
                continue
            inner[last] = other
            text = json.dumps(worse)  # JSON is YAML
            found = [line for line in policy.violations("drift.yml", text) if "is not written as" not in line]
            assert found, (path, last, other)


@pytest.mark.parametrize(
    ("found", "wanted", "is_same"),
    [
        ({"a": [0, "b"]}, {"a": (0, "b")}, True),
        ({"a": [0, "b"]}, {"a": [False, "b"]}, False),
        ([1], (1.0,), False),
        ([1], [1, 2], False),
        ([1, 2], [1], False),
        ("ab", ("a", "b"), False),
        ({"a": 1}, {}, False),
        ({}, {"a": 1}, False),
        ({}, None, False),
        (None, {}, False),
        ([], {}, False),
        ("1", 1, False),
    ],
)
def test_what_is_the_same(found: object, wanted: object, is_same: bool) -> None:
    assert policy.same(found, wanted) is is_same


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n", "on: push\n", "a: 1\na: 2\n", "%YAML 1.1\n---\non: [push]\n"])
def test_what_is_no_workflow_is_a_finding(text: str) -> None:
    assert policy.violations("ci.yml", text)


def test_a_workflow_that_nobody_declared_is_seen(texts: dict[str, str]) -> None:
    assert policy.violations("extra.yml", texts["ci.yml"]) == ["extra.yml: a workflow that the policy does not know"]


def test_every_step_of_every_job_is_compared(texts: dict[str, str]) -> None:
    """Without one of its steps, with one twice, or with a key more, no job is the one that was declared."""
    for file, text in texts.items():
        for step in re.findall(r"(?m)^      - (?:(?!^      - |^\S|^  \S).*\n)+", text):
            assert policy.violations(file, text.replace(step, "", 1)), step
            assert policy.violations(file, text.replace(step, step + step, 1)), step
            assert policy.violations(file, text.replace(step, f"{step.rstrip()}\n        shell: bash\n", 1)), step


def test_the_list_itself_grants_no_more_than_the_rules_say() -> None:
    """Two edits, of a workflow and of the list, do not make a rule of this project disappear."""
    assert allowed.TRIGGERS["device.yml"].keys() == {"schedule", "push", "workflow_dispatch"}
    assert allowed.TRIGGERS["device.yml"]["push"] == {"branches": ["main", "device/**"]}
    assert not any("pull_request_target" in events for events in allowed.TRIGGERS.values())
    assert allowed.TRIGGERS["ci.yml"] == {"push": {"branches": ["main"]}, "pull_request": None}  # every one, unfiltered
    assert all(re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", pin) for pin in allowed.ACTIONS.values())
    read = {"contents": "read"}
    writers = {name for (_, name), job in allowed.JOBS.items() if job.permissions != read}
    assert writers == {"collect", "propose"}
    for (file, name), job in allowed.JOBS.items():
        said = repr(job)
        assert "secrets" not in said
        assert ("github.token" in said) == (name == "propose")
        assert "github.event" not in said
        for step in job.steps:
            if step.does == "actions/checkout":
                assert step.given["persist-credentials"] is False
                assert name not in writers or step.given["ref"] == "main"
            if step.does == "actions/cache/save":
                assert str(step.condition).startswith("github.ref == 'refs/heads/main' && ")
                assert "||" not in str(step.condition)
        if name in DEVICES:
            assert file == "device.yml"
            actions = {step.does for step in job.steps if step.does.startswith("actions/")}
            assert actions == {"actions/checkout", "actions/upload-artifact"}


def test_hosted_jobs_run_on_machines_of_github() -> None:
    runners = {leg.runner for legs in LEGS.values() for leg in legs}
    assert [name for name in runners if not re.fullmatch(r"(ubuntu|macos)-\d+(\.\d+)?(-arm)?", name)] == []
    assert {"${{ matrix.runner }}", *runners} == allowed.HOSTED


def test_limits_of_steps_fit_into_their_job(texts: dict[str, str]) -> None:
    worse = texts["drift.yml"].replace("        timeout-minutes: 8\n", "        timeout-minutes: 9\n", 1)
    assert policy.violations("drift.yml", worse) == ["drift.yml: drift: its steps may take longer than the job"]
