"""Every linter of the workflows and of the runners' scripts, offline, then the policy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ci.allowed import TRIGGERS
from ci.machines import DEVICES
from ci.policy import FOLDER, load, violations
from upstream_patch.errors import MissingTool

SCRIPTS = Path("ci/runners")
LABELS = Path(".github/actionlint.yaml")
FIX = "pip install -c constraints.txt --group test . (shellcheck on Linux arm64: apt-get install shellcheck)"
TOOLS = ("zizmor", "actionlint", "check-jsonschema", "shellcheck")


def tool(name: str) -> str:
    """Beside this Python, or on PATH. Raises MissingTool."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise MissingTool(f"no {name}", FIX)
    return found


def lint(root: Path) -> list[str]:
    """Findings of every linter and of the policy, as lines; none where all is well. Raises MissingTool."""
    files = sorted((root / FOLDER).glob("*.y*ml"))
    found = [f"{name}: missing" for name in sorted(TRIGGERS.keys() - {file.name for file in files})]
    for command in commands(root, files):
        ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            said = (ran.stdout + ran.stderr).strip() or f"exit {ran.returncode}"
            found += [f"{Path(command[0]).name}: {line}" for line in said.splitlines()]
    wanted = {"self-hosted-runner": {"labels": list(DEVICES)}}
    if load((root / LABELS).read_text(encoding="utf-8")) != wanted:
        found.append(f"{LABELS}: not {wanted}: what else it says may silence actionlint")
    for file in files:
        found += violations(file.name, file.read_text(encoding="utf-8"))
    return found


def commands(root: Path, files: list[Path]) -> Iterator[list[str]]:
    names = [str(file.relative_to(root)) for file in files]
    # what a linter passes over stands beside the line, where the policy sees it: no configuration but the labels
    yield [tool("zizmor"), "--offline", "--no-config", "--no-progress", "--quiet", "--persona=pedantic", *names]
    labels = f"-config-file={LABELS}"  # by itself it looks only in a git checkout
    yield [tool("actionlint"), "-no-color", labels, f"-shellcheck={tool('shellcheck')}", "-pyflakes=", *names]
    schema = "vendor.github-workflows"
    yield [tool("check-jsonschema"), "--builtin-schema", schema, *names]
    scripts = sorted(str(path.relative_to(root)) for path in (root / SCRIPTS).rglob("*.sh"))
    yield [tool("shellcheck"), "--severity=style", "--shell=bash", *scripts]
