"""What evidence/README.md says of the records' form is what the schema has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from upstream_patch.records.schema import SCHEMA_VERSION, Body, Record


def test_every_kind_and_field_of_a_record_is_described(root: Path) -> None:
    text = (root / "evidence" / "README.md").read_text(encoding="utf-8")
    kinds = {kind.model_fields["kind"].default for kind in get_args(get_args(Body)[0])}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == kinds
    about = text.partition("Every record:")[2].partition("says what was measured")[0]
    assert {name for name in Record.model_fields if f"`{name}" not in about} <= {"schema_version"}
    assert f"`schema_version` is {SCHEMA_VERSION}." in text
