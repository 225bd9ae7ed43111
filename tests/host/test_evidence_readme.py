"""What evidence/README.md says of the records' form is what the schema has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from upstream_patch.records.schema import SCHEMA_VERSION, Body, Record


def test_every_kind_and_field_of_a_record_is_described(root: Path) -> None:
    text = (root / "evidence" / "README.md").read_text(encoding="utf-8")
    kinds = {kind.model_fields["kind"].default for kind in get_args(get_args(Body)[0])}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == kinds
    about = text.partition("Every record:")[2].partition("says what was measured")[0]
    assert {name for name in Record.model_fields if f"`{name}" not in about} <= {"schema_version"}
    assert f"`schema_version` is {SCHEMA_VERSION}." in text


def test_every_record_that_git_knows_is_here_or_said_to_be_retired(root: Path) -> None:
    git = ["git", "-C", str(root)]
    asked = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False)
    if asked.stdout.strip() != "false":
        pytest.skip("no whole history of git")
    log = [*git, "log", "--format=", "--name-only", "--no-renames", "--diff-filter=A", "--", "evidence/records"]
    ever = {Path(line).stem for line in subprocess.run(log, capture_output=True, text=True, check=True).stdout.split()}
    here = {path.stem for path in (root / "evidence" / "records").rglob("*.json")}
    rows = re.findall(
        r"^\| (h200-\S+) \| ([0-9a-f]{7}) \| ", (root / "evidence" / "retired.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(ever) >= len(here)
    assert {name for name, _ in rows} == ever - here
    for name, commit in rows:
        there = [*git, "cat-file", "-e", f"{commit}^:evidence/records/h200/{name}.json"]
        assert subprocess.run(there, capture_output=True, check=False).returncode == 0, name
