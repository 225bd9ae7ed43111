"""What a step says to GitHub: its outputs, and the page of its job. On a terminal both are printed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


def set_outputs(values: Mapping[str, object]) -> None:
    """Append ``name=value`` lines to ``$GITHUB_OUTPUT``; what is not a string becomes JSON, which has no newline."""
    lines = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()]
    if broken := [line for line in lines if "\n" in line or "\r" in line]:
        raise ValueError(f"an output holds a newline: {broken[0]!r}")
    _append("GITHUB_OUTPUT", "".join(f"{line}\n" for line in lines))


def add_summary(markdown: str) -> None:
    """Append to the job's page, ``$GITHUB_STEP_SUMMARY``."""
    _append("GITHUB_STEP_SUMMARY", markdown)


def _append(variable: str, text: str) -> None:
    print(text, end="")
    if path := os.environ.get(variable):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
