"""The first step of every job that runs a session: nox, uv and this package, at the pinned versions. Standard library
only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from upstream_patch.errors import UserError

VENV = Path(".venv")
NEEDED = (3, 11)


def commands() -> list[list[str]]:
    """What makes ``.venv`` anew: the commands that README has for a fresh machine, and the package beside them."""
    python = str(VENV / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", "constraints.txt"]
    return [[sys.executable, "-m", "venv", "--clear", str(VENV)], [*pip, "nox", "uv", "--editable", "."]]


def setup(dry_run: bool = False) -> None:
    """Raises UserError where this Python is too old, or a command fails."""
    if sys.version_info < NEEDED:
        raise UserError(f"Python {'.'.join(map(str, NEEDED))} or newer is needed, this one is {sys.version.split()[0]}")
    for command in commands():
        print("+", *command, flush=True)
        if not dry_run and subprocess.run(command, check=False).returncode != 0:
            raise UserError(f"{' '.join(command[:4])} ... failed: its own words are above")
