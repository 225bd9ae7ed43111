"""Runs a workflow's jobs here: their ``run`` steps as they stand in the file, with env, matrix, needs and conditions
resolved. Actions are stood in for by what they leave behind. Sessions that take long are only looked up (``nox.py``).
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.policy import load
from tests.workflows.expressions import Expression, substitute, truth

NOX = Path(__file__).with_name("stand_in_nox.py")


@dataclass
class JobResult:
    result: str = "success"
    outputs: dict[str, str] = field(default_factory=dict)
    said: str = ""
    page: str = ""


@dataclass
class LocalRun:
    """One run of a workflow in ``tree``, a git checkout. ``calls``: the lines of nox, as they were called."""

    tree: Path
    text: str
    github: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    done: Mapping[str, JobResult] = field(default_factory=dict)
    """Jobs that ran elsewhere, and what they said; their artifacts lie in ``artifacts``."""

    def __post_init__(self) -> None:
        self.jobs: dict[str, list[JobResult]] = {}
        self.calls: list[str] = []
        self.workflow = load(self.text)
        self.artifacts = self.tree.parent / f"{self.tree.name}.artifacts"
        self.tools = self.tree.parent / f"{self.tree.name}.tools"
        self.tools.mkdir(exist_ok=True)
        python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
        _script(self.tools / "python3", python)
        binaries = self.tree / ".venv" / "bin"
        binaries.mkdir(parents=True, exist_ok=True)
        _script(binaries / "python", python)
        _script(binaries / "nox", f'#!/bin/sh\nexec "{sys.executable}" "{NOX}" "$@"\n')

    def run(self) -> LocalRun:
        for name, body in self.workflow["jobs"].items():
            if name in self.done:
                self.jobs[name] = [self.done[name]]
                continue
            needs = [body["needs"]] if isinstance(body.get("needs"), str) else body.get("needs", [])
            known = {need: self._needed(need) for need in needs}
            contexts = {"github": self.github, "vars": self.variables, "inputs": self.inputs, "needs": known}
            status = "success" if all(each["result"] == "success" for each in known.values()) else "failure"
            if not self._go(body.get("if"), contexts, status):
                self.jobs[name] = [JobResult("skipped")]
                continue
            legs = substitute(body.get("strategy", {}).get("matrix", {"include": [{}]}), contexts, {})["include"]
            self.jobs[name] = [self._job(body, contexts | {"matrix": leg}) for leg in legs]
        return self

    def _needed(self, name: str) -> dict[str, Any]:
        results = self.jobs[name]
        worst = next((each.result for each in results if each.result != "success"), "success")
        return {"result": worst, "outputs": results[-1].outputs}

    def _go(self, condition: Any, contexts: Mapping[str, Any], status: str) -> bool:
        functions = {
            "always": lambda: True,
            "cancelled": lambda: False,
            "success": lambda: status == "success",
            "failure": lambda: status == "failure",
        }
        if condition is None:
            return status == "success"
        text = str(condition).removeprefix("${{").removesuffix("}}")
        asks = any(f"{name}(" in text for name in functions)
        return (asks or status == "success") and truth(Expression(text, contexts, functions).value())

    def _job(self, body: Mapping[str, Any], contexts: Mapping[str, Any]) -> JobResult:
        done = JobResult()
        steps: dict[str, Any] = {}
        runner = {"os": "Linux", "arch": "X64"}
        everything = {**contexts, "steps": steps, "runner": runner, "env": {}}
        functions = {"hashFiles": lambda *names: "-".join(names)}
        limit = substitute(body["timeout-minutes"], everything, {})
        assert isinstance(limit, int) and limit > 0
        for number, step in enumerate(body["steps"]):
            identifier = step.get("id", f"step{number}")
            if not self._go(step.get("if"), everything, done.result):
                steps[identifier] = {"outcome": "skipped", "outputs": {}}
                continue
            inner = substitute(step.get("timeout-minutes", limit), everything, {})
            assert isinstance(inner, int) and 0 < inner <= limit
            given = substitute(step.get("with", {}), everything, functions)
            ok, outputs = self._action(step["uses"], given) if "uses" in step else self._run(step, everything, done)
            steps[identifier] = {"outcome": "success" if ok else "failure", "outputs": outputs}
            if not ok:
                done.result = "failure"
        done.outputs = substitute(dict(body.get("outputs", {})), everything, {})
        return done

    def _run(
        self, step: Mapping[str, Any], contexts: Mapping[str, Any], done: JobResult
    ) -> tuple[bool, dict[str, str]]:
        files = {name: self.tools / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "NOX_CALLS")}
        for path in files.values():
            path.write_text("")
        asked = substitute(step.get("env", {}), contexts, {})
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "UPSTREAM_PATCH"))},
            **{f"GITHUB_{name.upper()}": value for name, value in self.github.items()},
            **{name: "" if value is None else str(value) for name, value in asked.items()},
            **{name: str(path) for name, path in files.items()},
            "PATH": f"{self.tools}:{os.environ['PATH']}",
        }
        command = step["run"].strip()
        if command == "python3 -m ci setup":
            command += " --dry-run"  # its commands need the network
        ran = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command],
            cwd=self.tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        done.said += f"$ {command}\n{ran.stdout}{ran.stderr}"
        done.page += files["GITHUB_STEP_SUMMARY"].read_text()
        self.calls += files["NOX_CALLS"].read_text().splitlines()
        pairs = (line.partition("=") for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        return ran.returncode == 0, {name: value for name, _, value in pairs}

    def _action(self, uses: str, given: Mapping[str, Any]) -> tuple[bool, dict[str, str]]:
        action = uses.partition("@")[0]
        if action == "actions/upload-artifact":
            source = self.tree / given["path"]
            if not source.exists():
                return False, {}
            shutil.copytree(source, self.artifacts / given["name"], dirs_exist_ok=True)
        elif action == "actions/download-artifact":
            target = self.tree / given["path"]
            if "name" in given:
                shutil.copytree(self.artifacts / given["name"], target, dirs_exist_ok=True)
            for folder in sorted(self.artifacts.iterdir()) if "pattern" in given and self.artifacts.is_dir() else ():
                if fnmatch.fnmatchcase(folder.name, given["pattern"]):
                    shutil.copytree(folder, target / folder.name, dirs_exist_ok=True)
        elif action == "actions/attest-build-provenance":
            return (self.tree / given["subject-checksums"]).is_file(), {}
        elif action == "actions/checkout":
            if "path" not in given:  # each job starts from the commit alone
                git(self.tree, "clean", "-ffdxq", "--exclude=.venv")
        else:
            assert action in ("actions/setup-python", "actions/cache/restore", "actions/cache/save")
        return True, {}

    def pages(self) -> str:
        return "\n".join(each.page for each in itertools.chain(*self.jobs.values()) if each.page)


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def checkout(root: Path, folder: Path) -> Path:
    """A git checkout with what the steps need of ``root``, and an ``origin`` that has its main."""
    tree = folder / "tree"
    left_out = shutil.ignore_patterns("__pycache__")
    for name in ("ci", "upstream_patch", "evidence"):
        shutil.copytree(root / name, tree / name, ignore=left_out)
    for name in ("noxfile.py", "pyproject.toml", "constraints.txt", ".gitignore"):
        shutil.copyfile(root / name, tree / name)
    git(tree, "init", "--quiet", "--initial-branch=main")
    git(tree, "add", "--all")
    git(tree, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "--message=all")
    git(tree, "clone", "--quiet", "--bare", str(tree), str(folder / "origin.git"))
    git(tree, "remote", "add", "origin", str(folder / "origin.git"))
    git(tree, "fetch", "--quiet", "origin")
    return tree


def git(tree: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()
