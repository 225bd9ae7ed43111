"""The next command as a person types it: with the folders that they named, where those are not the usual ones."""

from __future__ import annotations

import shlex
from pathlib import Path

EVIDENCE = Path("evidence")
OUT = Path("out")


def folders(out: Path, evidence: Path = EVIDENCE) -> str:
    """The options of a next command, where a person named other folders than the usual ones."""
    named = (("--out", out, OUT), ("--evidence", evidence, EVIDENCE))
    return "".join(f" {option} {shlex.quote(str(path))}" for option, path, usual in named if path != usual)
