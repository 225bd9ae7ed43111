"""Changes of a workflow for the worse: the file, what is written, what becomes of it, and what the policy says."""

from __future__ import annotations

from ci.allowed import ACTIONS

_PIN = ACTIONS["actions/checkout"]
_CHECKOUT = f"actions/checkout@{_PIN}"
_SHA, _, _VERSION = _PIN.partition(" # ")
_START = "  workflow_dispatch:\n"
_PULL = "  pull_request:\n"
_GB10, _M5 = "        run: .venv/bin/nox -s gb10\n", "        run: .venv/bin/nox -s m5\n"
_HEALTH = "        run: .venv/bin/python -m ci health gb10\n"
_SUITE = "      - id: suite\n        run: .venv/bin/nox -s gb10\n"
_READ = "      contents: read # check the code out\n"
_RUNNER = "    runs-on: ${{ matrix.runner }}\n"
_TOKEN, _LEG = "${{ github.token }}", "${{ matrix.name }}"
_NEEDS = "          NEEDS: ${{ toJSON(needs) }}\n"


def _more(line: str, *more: str) -> str:
    return line + "".join(f"        {each}\n" for each in more)


Mutation = tuple[str, str, str, str]
ALL: dict[str, Mutation] = {
    # who starts it
    **{
        f"device on {event}": ("device.yml", _START, f"  {event}:\n{_START}", f"started by {event}")
        for event in ("pull_request", "pull_request_target", "workflow_run", "workflow_call", "issue_comment")
    },
    "triggers as a list": (
        "ci.yml",
        "on:\n  push:\n    branches: [main]\n  pull_request:\n",
        "on: [push]\n",
        "not started",
    ),
    "triggers as a string": (
        "ci.yml",
        "on:\n  push:\n    branches: [main]\n  pull_request:\n",
        "on: pull_request_target\n",
        "started by pull_request_target",
    ),
    "triggers by YAML 1.1": ("ci.yml", "# Every", "%YAML 1.1\n---\n# Every", "not started by"),
    "trigger of CI gone": ("ci.yml", "  pull_request:\n", "", "not started by pull_request"),
    **{
        what: (file, was, becomes, f"{event} is ")
        for what, file, was, becomes, event in (
            ("any branch", "device.yml", '[main, "device/**"]', '["**"]', "push"),
            ("tags", "device.yml", 'branches: [main, "device/**"]', "tags: [v1]", "push"),
            ("tags besides", "drafts.yml", "[main]\n", "[main]\n    tags: [v1]\n", "push"),
            ("another branch for CI", "ci.yml", "[main]", "[main, dev]", "push"),
            ("paths that CI passes over", "ci.yml", "[main]\n", "[main]\n    paths-ignore: [ci/**]\n", "push"),
            ("paths of a pull request", "ci.yml", _PULL, f"{_PULL}    paths-ignore: ['**']\n", "pull_request"),
            ("types of a pull request", "ci.yml", _PULL, f"{_PULL}    types: [closed]\n", "pull_request"),
            ("branches of a pull request", "ci.yml", _PULL, f"{_PULL}    branches: [dev]\n", "pull_request"),
            ("every five minutes", "device.yml", "23 3 * * 6", "*/5 * * * *", "schedule"),
            ("a second time", "drift.yml", _START, f'    - cron: "1 1 * * *"\n{_START}', "schedule"),
            ("a night that never is", "nightly.yml", "17 2 * * *", "17 2 31 2 *", "schedule"),
            ("an input more", "drift.yml", _START, f"{_START}    inputs: {{a: {{}}}}\n", "workflow_dispatch"),
            ("an input less", "device.yml", "      commit:\n", "      sha:\n", "workflow_dispatch"),
            ("a machine more", "device.yml", "[all, gb10, m5]", "[all, gb10, m5, x]", "workflow_dispatch"),
            ("a machine typed", "device.yml", "type: choice", "type: string", "workflow_dispatch"),
            ("another default", "device.yml", "default: all", "default: m5", "workflow_dispatch"),
            ("a commit by default", "device.yml", 'default: ""', "default: main", "workflow_dispatch"),
        )
    },
    # what it may do
    "permissions for all": ("device.yml", "permissions: {}\n", "permissions: read-all\n", "permissions on top"),
    "no permissions on top": ("device.yml", "permissions: {}\n", "", "permissions on top"),
    "env on top": ("device.yml", "permissions: {}\n", "permissions: {}\nenv:\n  A: b\n", "env on top"),
    "defaults on top": (
        "ci.yml",
        "permissions: {}\n",
        "permissions: {}\ndefaults: {run: {shell: sh}}\n",
        "defaults on",
    ),
    "run-name": ("ci.yml", "name: ci\n", "name: ci\nrun-name: ${{ github.event.x }}\n", "run-name on top"),
    "a write": ("device.yml", _READ, "      contents: write # x\n", "gate: permissions are not"),
    "a grant more": (
        "device.yml",
        "      attestations: write # store it\n",
        "      attestations: write # store it\n      packages: write # x\n",
        "collect: permissions are not",
    ),
    "issues": ("drafts.yml", "contents: read #", "issues: write #", "drafts: permissions are not"),
    "a secret": ("device.yml", _GB10, _more(_GB10, "env:", "  T: ${{ secrets.T }}"), "gb10: step 4 is given"),
    "a secret in capitals": ("device.yml", _M5, _more(_M5, "env:", "  T: ${{ SECRETS.T }}"), "m5: step 4 is given"),
    "a secret behind #": ("device.yml", _M5, _more(_M5, "env:", '  T: "#${{ secrets.T }}"'), "m5: step 4 is given"),
    "the token": ("device.yml", _M5, _more(_M5, "env:", "  T: ${{ github.token }}"), "m5: step 4 is given"),
    "all of github": ("device.yml", _M5, _more(_M5, "env:", "  T: ${{ toJSON(github) }}"), "m5: step 4 is given"),
    **{
        f"a secret in {what}": (file, was, becomes, "uses secrets: ")
        for what, file, was, becomes in (
            ("a step's name", "device.yml", _GB10, _more(_GB10, "name: ${{ secrets.T }}")),
            ("a step's name, escaped", "device.yml", _GB10, _more(_GB10, 'name: "$\\x7b{ s\\x65crets.T }}"')),
            ("a limit", "drift.yml", "minutes: 30\n", "minutes: ${{ fromJSON(toJSON(SECRETS)) }}\n"),
            ("a job's name", "drift.yml", "name: drift against", "name: ${{ secrets['T'] }} against"),
            ("the name", "ci.yml", "name: ci\n", "name: ci ${{ secrets.T }}\n"),
            ("a trigger", "device.yml", 'default: ""', "default: ${{ secrets.T }}"),
            ("a key", "drift.yml", "    name: drift ", "    secrets: inherit\n    name: drift "),
        )
    },
    **{
        f"an expression in {what}": (file, was, becomes, said)
        for what, file, was, becomes, said in (
            ("a step's name", "device.yml", _GB10, _more(_GB10, f"name: {_TOKEN}"), "gb10: step 4 has an expression"),
            ("an escaped name", "device.yml", _M5, _more(_M5, 'name: "$\\x7b{ a }}"'), "m5: step 4 has an expression"),
            ("an id", "device.yml", "id: suite", f"id: {_TOKEN}", "gb10: step 4 has an expression in its id"),
            ("a job's name", "device.yml", "name: gb10", f"name: {_TOKEN}", "gb10: its name has an expression"),
            ("a job without a matrix", "device.yml", "name: m5", f"name: {_LEG}", "m5: its name has an expression"),
            ("a name beside the plan's", "ci.yml", _LEG, _LEG + _TOKEN, "hosted: its name has an expression"),
            ("the name", "ci.yml", "name: ci\n", f"name: ci {_TOKEN}\n", "its name has an expression"),
        )
    },
    "credentials kept": (
        "device.yml",
        "persist-credentials: false",
        "persist-credentials: true",
        "gate: step 1 is given",
    ),
    # whose code
    "a tag": ("device.yml", _CHECKOUT, "actions/checkout@v6", "actions/checkout is not pinned"),
    "another commit": ("device.yml", _SHA, f"{_SHA[:-1]}f", "actions/checkout is not pinned"),
    "no version": ("device.yml", f"{_SHA} # {_VERSION}", _SHA, "actions/checkout is not pinned"),
    "a version that is not the commit's": ("ci.yml", _VERSION, "v6.0.2", "actions/checkout is not pinned"),
    "a quoted key": ("drift.yml", f"- uses: {_CHECKOUT}", '- "uses": actions/checkout@v6', "an action is not written"),
    "somebody's": ("device.yml", _CHECKOUT, f"somebody/checkout@{_PIN}", "uses somebody/checkout, which nobody"),
    "docker": ("drift.yml", "actions/setup-python@", "docker://alpine@", "uses docker://alpine, which nobody"),
    "in the repository": ("drift.yml", _CHECKOUT, "./.github/actions/x", "an action is not written"),
    "an anchor": ("drift.yml", f"- uses: {_CHECKOUT}", f"- uses: &a {_CHECKOUT}", "an action is not written"),
    "a merge": ("drift.yml", "    name: drift ", "    <<: {container: x}\n    name: drift ", "drift: has container"),
    "a reusable workflow": ("drift.yml", "jobs:\n", "jobs:\n  x:\n    uses: a/b/c.yml@main\n", "x: a job that"),
    "a job gone": ("nightly.yml", "  simulator:\n", "  simulation:\n", "simulator: missing"),
    "a container": ("ci.yml", _RUNNER, f"{_RUNNER}    container: x\n", "hosted: has container"),
    "not clean": ("device.yml", "          clean: true", "          clean: false", "gb10: step 1 is given"),
    "not the gate's commit": (
        "device.yml",
        "ref: ${{ needs.gate.outputs.commit }}",
        "ref: ${{ inputs.commit }}",
        "gb10: step 1 is given",
    ),
    "a gate that passes all": (
        "device.yml",
        "commit: ${{ steps.gate.outputs.commit }}",
        "commit: ${{ inputs.commit || steps.gate.outputs.commit }}",
        "gate: outputs are not",
    ),
    "a device's code that may write": ("device.yml", "          ref: main", "          ref: dev", "collect: step 1"),
    "another run's artifacts": (
        "device.yml",
        "          pattern: device-*\n",
        "          pattern: device-*\n          run-id: 7\n",
        "collect: step 3 is given",
    ),
    # where and when
    "labels short": ("device.yml", "[self-hosted, Linux, ARM64, gb10]", "[self-hosted, gb10]", "gb10: ['self-hosted'"),
    "labels by expression": (
        "device.yml",
        "[self-hosted, macOS, ARM64, m5]",
        "${{ fromJSON('[1]') }}",
        "m5: ${{ fromJSON",
    ),
    "CI on a device": ("ci.yml", _RUNNER, "    runs-on: [self-hosted, gb10]\n", "hosted: runs on"),
    "CI on a bare label": ("ci.yml", _RUNNER, "    runs-on: gb10\n", "hosted: runs on gb10"),
    "CI on a group": ("ci.yml", _RUNNER, "    runs-on:\n      labels: gb10\n", "hosted: runs on"),
    "CI on a variable": ("ci.yml", _RUNNER, "    runs-on: ${{ vars.R }}\n", "hosted: runs on"),
    "another environment": ("device.yml", "    environment: m5 ", "    environment: gb10 ", "m5: not in the reviewed"),
    "no environment": ("device.yml", "    environment: gb10 #", "    #", "gb10: not in the reviewed environment"),
    "another group": ("device.yml", "      group: device-gb10", "      group: device", "gb10: not one run at a time"),
    "no queue": ("device.yml", "      queue: max # a", "      # a", "gb10: not one run at a time"),
    "a run that is cancelled": ("device.yml", "cancel-in-progress: false", "cancel-in-progress: true", "concurrency"),
    "a run that waits for itself": ("device.yml", "devices-${{ github.ref }}", "device-gb10", "concurrency is not"),
    "no concurrency": ("drift.yml", "concurrency:", "concurrent:", "concurrency is not"),
    "no gate": ("device.yml", "    if: fromJSON(needs.gate.outputs.gb10).run\n", "", "gb10: its condition"),
    "collected always": (
        "device.yml",
        "${{ !cancelled() && needs.gate.outputs.any == 'true' }}",
        "always()",
        "collect",
    ),
    "proposed unseen": ("device.yml", "    needs: collect\n", "", "propose: does not need collect"),
    "passed without the matrix": ("ci.yml", "needs: [plan, hosted]", "needs: [plan]", "passed: does not need"),
    "passed where skipped": ("ci.yml", "    if: always()\n", "", "passed: its condition"),
    "passed by another verb": ("ci.yml", "-m ci passed", "-m ci plan ci", "passed: step 2 does"),
    "passed by its word": ("ci.yml", _NEEDS, "          NEEDS: '{}'\n", "passed: step 2 is given"),
    "a session that is skipped": (
        "ci.yml",
        '      - run: .venv/bin/nox -s "$SESSION"',
        '      - if: false\n        run: .venv/bin/nox -s "$SESSION"',
        "hosted: step 5 runs if False",
    ),
    "skips that are passed over": ("ci.yml", 'STRICT: "1"', 'STRICT: "0"', "hosted: step 5 is given"),
    "a cache from anywhere": ("ci.yml", "github.ref == 'refs/heads/main' && ", "", "hosted: step 6 runs if"),
    "a cache by the way": (
        "ci.yml",
        "          python-version: ${{ matrix.python }}\n",
        "          python-version: ${{ matrix.python }}\n          cache: pip\n",
        "hosted: step 2 is given",
    ),
    # what Python takes for the same
    "1 for True": ("device.yml", "          clean: true", "          clean: 1", "gb10: step 1 is given"),
    "1.0 for True": ("device.yml", "          clean: true", "          clean: 1.0", "gb10: step 1 is given"),
    "False for 0": ("device.yml", "fetch-depth: 0", "fetch-depth: false", "gate: step 1 is given"),
    "0 for False": ("ci.yml", "credentials: false", "credentials: 0", "plan: step 1 is given"),
    "0.0 for 0": ("drift.yml", "fetch-depth: 0", "fetch-depth: 0.0", "drift: step 2 is given"),
    "0 for False in a matrix": ("ci.yml", "fail-fast: false", "fail-fast: 0", "hosted: its matrix"),
    "0 for False on top": ("nightly.yml", "in-progress: false", "in-progress: 0", "concurrency is not"),
    "1 for True on top": ("drafts.yml", "in-progress: true", "in-progress: 1", "concurrency is not"),
    "0 for False on a device": (
        "device.yml",
        "      cancel-in-progress: false\n      queue: max # a",
        "      cancel-in-progress: 0\n      queue: max # a",
        "gb10: not one run at a time",
    ),
    # what runs
    "another machine's health": ("device.yml", _HEALTH, _HEALTH.replace("gb10", "m5"), "gb10: step 3 does"),
    "measured all the same": ("device.yml", _SUITE, f"{_SUITE}        if: always()\n", "gb10: step 4 runs if 'always"),
    "a failure passed over": ("device.yml", _HEALTH, _more(_HEALTH, "continue-on-error: true"), "gb10: step 3 has"),
    "a job's failure passed over": ("ci.yml", _RUNNER, f"{_RUNNER}    continue-on-error: true\n", "hosted: has"),
    "another shell": ("device.yml", _HEALTH, _more(_HEALTH, "shell: sh -c x {0}"), "gb10: step 3 has shell"),
    "another folder": ("device.yml", _HEALTH, _more(_HEALTH, "working-directory: /x"), "gb10: step 3 has working"),
    "bash from a file": ("device.yml", _HEALTH, _more(_HEALTH, "env:", "  BASH_ENV: x"), "gb10: step 3 is given"),
    "a second checkout": (
        "device.yml",
        _SUITE,
        f"      - uses: {_CHECKOUT}\n        timeout-minutes: 5\n{_SUITE}",
        "gb10: 7 steps, not 6",
    ),
    "inputs where no action reads them": ("drift.yml", "        with:\n", "        env:\n", "drift: step 1 has env"),
    "a gate that always opens": ("device.yml", "-m ci gate", "-m ci gate || true", "gate: step 2 does"),
    "a second line": ("device.yml", "run: python3 -m ci gate", "run: |\n          a\n          b", "gate: step 2 does"),
    "an injection": ("drift.yml", "nox -s drift", "nox -s drift ${{ github.head_ref }}", "drift: step 5 does"),
    "a draft that is sent": ("drafts.yml", "nox -s draft", "nox -s file", "drafts: step 5 does"),
    "the whole home": ("device.yml", "path: out/device/", "path: ~/", "gb10: step 6 is given"),
    "the collector's name": ("device.yml", "name: device-gb10", "name: evidence", "gb10: step 6 is given"),
    "an artifact that may lack": ("device.yml", "          if-no-files-found: error\n", "", "gb10: step 6 is given"),
    "a matrix of its own": ("ci.yml", "fail-fast: false", "max-parallel: 1", "hosted: its matrix"),
    "a linter that is told to pass over": ("ci.yml", _READ, f"{_READ[:-1]} zizmor: ignore[x]\n", "tells a linter"),
    "no reason": ("device.yml", " gate, reviewed environment, one job a runner: CONTRIBUTING.md", "", "tells a linter"),
    # for how long
    "no limit of a job": ("device.yml", "    timeout-minutes: 30\n", "", "collect: no timeout"),
    "no limit of a device's job": (
        "device.yml",
        "    timeout-minutes: ${{ fromJSON(needs.gate.outputs.gb10).job_minutes }}\n",
        "",
        "gb10: no timeout",
    ),
    "the other device's limit": (
        "device.yml",
        "    timeout-minutes: ${{ fromJSON(needs.gate.outputs.gb10).job_minutes }}",
        "    timeout-minutes: ${{ fromJSON(needs.gate.outputs.m5).job_minutes }}",
        "gb10: no timeout",
    ),
    "too long": ("drift.yml", "    timeout-minutes: 30\n", "    timeout-minutes: 9999\n", "drift: no timeout"),
    "a limit that somebody types": (
        "drift.yml",
        "    timeout-minutes: 30\n",
        "    timeout-minutes: ${{ inputs.minutes }}\n",
        "drift: no timeout",
    ),
    "no limit of a step": (
        "device.yml",
        "        timeout-minutes: ${{ fromJSON(needs.gate.outputs.m5).suite_minutes }}\n",
        "",
        "m5: step 4 has no timeout",
    ),
    "no limit of a hosted step": (
        "nightly.yml",
        "        timeout-minutes: 330\n",
        "",
        "simulator: step 4 has no timeout",
    ),
    "a step as long as its job": (
        "ci.yml",
        "        timeout-minutes: ${{ matrix.minutes }}\n",
        "        timeout-minutes: ${{ matrix.job_minutes }}\n",
        "hosted: its steps may take longer",
    ),
}
