"""This project's own rules on workflows, as code: what no linter knows about machines that belong to people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ci.allowed import ACTIONS, CONCURRENCY, HOSTED, JOBS, TRIGGERS, Job, Step
from ci.machines import DEVICES, SETUP_MINUTES, SPARE_MINUTES

FOLDER = Path(".github/workflows")
_TOP = {"name", "on", "permissions", "concurrency", "jobs"}
_JOB = {"name", "needs", "if", "runs-on", "timeout-minutes", "permissions", "strategy", "outputs", "steps"}
_DEVICE_JOB = (_JOB - {"strategy"}) | {"environment", "concurrency"}
_STEP = {"id", "name", "if", "timeout-minutes"}
_STRATEGY = {"fail-fast": False, "matrix": "${{ fromJSON(needs.plan.outputs.matrix) }}"}
_USES = re.compile(r"^\s*(?:- )?uses: ([^\s@]+)@(.*)$", re.MULTILINE)
_IGNORED = re.compile(r"runs-on: \[self-hosted, [^]]+\] # zizmor: ignore\[self-hosted-runner\] \w.*")
_LEG = "${{ matrix.name }}"
"""The one name that is an expression: the plan's, of a job with the plan's matrix."""
_MOST_MINUTES = 360
_Minutes = tuple[int, int]
"""(how often the session's own limit, which the plan or the gate gives; minutes beside it)"""


def load(text: str) -> dict[str, Any]:
    """A workflow as data, by YAML 1.2 as GitHub reads it: ``on`` is a word. Raises ValueError where it is none."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if not isinstance(found, dict):
        raise ValueError("no mapping")
    return found


def same(found: object, wanted: object) -> bool:
    """Whether a value is the one that was declared, in type too: to Python 1 is True and 0 is False, to an action not.

    A declared tuple is a list in a workflow.
    """
    if isinstance(wanted, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == wanted.keys()
            and all(same(found[k], wanted[k]) for k in wanted)
        )
    if isinstance(wanted, (list, tuple)):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and found == wanted


def violations(file: str, text: str) -> list[str]:
    """Every rule that the workflow ``text`` breaks, as lines; ``file`` is its name."""
    if file not in TRIGGERS:
        return [f"{file}: a workflow that the policy does not know"]
    try:
        workflow = load(text)
    except ValueError as error:
        return [f"{file}: no workflow: {error}"]
    try:
        return [f"{file}: {line}" for line in _rules(file, text, workflow)]
    except (AttributeError, TypeError) as error:  # a list where a mapping belongs, and the like: the schema says which
        return [f"{file}: not of the form of a workflow: {error}"]


def _rules(file: str, text: str, workflow: Mapping[str, Any]) -> Iterator[str]:
    jobs = workflow.get("jobs") or {}
    yield from _top(file, workflow)
    yield from _text(text, jobs)
    for said in filter(re.compile(r"\bsecrets\b", re.IGNORECASE).search, _strings(workflow)):
        yield f"uses secrets: {' '.join(said.split())}"
    for name in sorted({name for of, name in JOBS if of == file} ^ jobs.keys()):
        yield f"{name}: {'a job that the policy does not know' if name in jobs else 'missing'}"
    for name, body in jobs.items():
        if allowed := JOBS.get((file, name)):
            for line in (*_job(body, allowed), *_place(name, body), *_minutes(name, body)):
                yield f"{name}: {line}"


def _strings(value: object) -> Iterator[str]:
    """Every word of a workflow, keys too. Comments are none, and an escape in the text hides nothing."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _strings(list(pair))
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _top(file: str, workflow: Mapping[str, Any]) -> Iterator[str]:
    events, wanted = workflow.get("on") or {}, TRIGGERS[file]
    if not isinstance(events, Mapping):  # one event, or a list of them, each with nothing more
        events = dict.fromkeys([events] if isinstance(events, str) else events)
    for event in sorted(events.keys() ^ wanted.keys()):
        yield f"started by {event}" if event in events else f"not started by {event}"
    for event in sorted(events.keys() & wanted.keys()):
        if not same(events[event], wanted[event]):
            yield f"{event} is {events[event]}, not {wanted[event]}"
    if "${{" in str(workflow.get("name")):
        yield "its name has an expression"
    if not same(workflow.get("permissions"), {}):
        yield "permissions on top are not {}"
    if not same(workflow.get("concurrency"), CONCURRENCY[file]):
        yield f"concurrency is not {dict(CONCURRENCY[file])}"
    for key in sorted(map(str, workflow.keys() - _TOP)):
        yield f"{key} on top reaches every job"


def _text(text: str, jobs: Mapping[str, Any]) -> Iterator[str]:
    """What only the text says: the version beside a commit, and what a linter is told to pass over."""
    written = _USES.findall(text)
    used = [step["uses"] for body in jobs.values() for step in body.get("steps", ()) if "uses" in step]
    if sorted(used) != sorted(f"{action}@{pin.partition(' ')[0]}" for action, pin in written):
        yield "an action is not written as `uses: NAME@COMMIT # VERSION`"
    for action, pin in written:
        if action not in ACTIONS:
            yield f"uses {action}, which nobody has read"
        elif pin != ACTIONS[action]:
            yield f"{action} is not pinned to {ACTIONS[action]}"
    for line in text.splitlines():
        if re.search(r"#.*\b(zizmor|actionlint|shellcheck)\b", line) and not _IGNORED.fullmatch(line.strip()):
            yield f"tells a linter to pass over it: {line.strip()}"


def _job(body: Mapping[str, Any], allowed: Job) -> Iterator[str]:
    needs = body.get("needs", [])
    if not same([needs] if isinstance(needs, str) else needs, allowed.needs):
        yield f"does not need {', '.join(allowed.needs) or 'no job'}"
    if not same(body.get("if"), allowed.condition):
        yield f"its condition is not {allowed.condition!r}"
    if not same(body.get("permissions"), allowed.permissions):
        yield f"permissions are not {dict(allowed.permissions)}"
    if not same(body.get("outputs", {}), allowed.outputs):
        yield f"outputs are not {dict(allowed.outputs)}"
    if not same(body.get("strategy", _STRATEGY), _STRATEGY):
        yield "its matrix is not the plan's"
    if "${{" in str(body.get("name")) and not (body["name"] == _LEG and "strategy" in body):
        yield "its name has an expression"
    steps = list(body.get("steps", ()))
    for number, step in enumerate(steps, 1):
        for key in ("id", "name"):  # GitHub would show on the page of the run what the expression reads
            if "${{" in str(step.get(key)):
                yield f"step {number} has an expression in its {key}"
        for key in sorted(map(str, step.keys() - _STEP - set(("uses", "with") if "uses" in step else ("run", "env")))):
            yield f"step {number} has {key}"
    for number, (step, wanted) in enumerate(zip(map(_step, steps), allowed.steps, strict=False), 1):
        if not same(step.does, wanted.does):
            yield f"step {number} does {step.does!r}, not {wanted.does!r}"
        if not same(step.given, wanted.given):
            yield f"step {number} is given {step.given}, not {wanted.given}"
        if not same(step.condition, wanted.condition):
            yield f"step {number} runs if {step.condition!r}, not {wanted.condition!r}"
    if len(steps) != len(allowed.steps):
        yield f"{len(steps)} steps, not {len(allowed.steps)}"


def _step(step: Mapping[str, Any]) -> Step:
    """``does`` is the action's name without its commit, which ``_text`` judges."""
    if "uses" in step:
        return Step(str(step["uses"]).partition("@")[0], step.get("with", {}), step.get("if"))
    return Step(str(step.get("run", "")).strip(), step.get("env", {}), step.get("if"))


def _place(name: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Where a job runs. Whatever is no label of GitHub's own machines is the machine of an owner."""
    device, asked = DEVICES.get(name), body.get("runs-on")
    for key in sorted(map(str, body.keys() - (_DEVICE_JOB if device else _JOB))):
        yield f"has {key}"
    if device is None:
        if not isinstance(asked, str) or asked not in HOSTED:
            yield f"runs on {asked}, which is no machine of GitHub's"
        return
    if not same(asked, device.labels):
        yield f"{asked} are not the labels of {device.title}"
    if not same(body.get("environment"), name):
        yield f"not in the reviewed environment {name}"
    if not same(body.get("concurrency"), {"group": f"device-{name}", "cancel-in-progress": False, "queue": "max"}):
        yield f"not one run at a time in the group device-{name}"


def _minutes(name: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Every job and step has a limit, and those of the steps fit into that of their job."""
    whole = _limit(name, body.get("timeout-minutes"))
    if whole is None:
        yield "no timeout"
    limits = [_limit(name, step.get("timeout-minutes")) for step in body.get("steps", ())]
    for number, limit in enumerate(limits, 1):
        if limit is None:
            yield f"step {number} has no timeout"
    sessions, rest = (sum(limit[part] for limit in limits if limit) for part in (0, 1))
    if whole is not None and (sessions > whole[0] or rest > whole[1]):
        yield "its steps may take longer than the job"


def _limit(name: str, asked: object) -> _Minutes | None:
    if isinstance(asked, int) and not isinstance(asked, bool):
        return (0, asked) if 0 < asked <= _MOST_MINUTES else None
    own = f"fromJSON(needs.gate.outputs.{name})"
    known = {"matrix.minutes": 0, "matrix.job_minutes": SETUP_MINUTES}
    if name in DEVICES:
        known = {f"{own}.suite_minutes": 0, f"{own}.job_minutes": SPARE_MINUTES}
    beside = known.get(str(asked).removeprefix("${{ ").removesuffix(" }}"))
    return None if beside is None else (1, beside)
