"""Stands in for ``nox -s NAME -- ARGUMENTS`` in a checkout: the session must be in its noxfile and its arguments must
parse; of those in ``REAL`` the verb runs, too, as ``nox --no-venv`` would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REAL = ("draft", "records")


def main(arguments: list[str]) -> int:
    sys.path.insert(0, os.getcwd())
    import nox.registry

    import noxfile

    with Path(os.environ["NOX_CALLS"]).open("a", encoding="utf-8") as calls:
        calls.write(" ".join(arguments) + "\n")
    flag, name, *rest = arguments
    if flag != "-s" or name not in nox.registry.get() or (rest and rest.pop(0) != "--"):
        print(f"no session {name!r}", file=sys.stderr)
        return 1
    verb = next((each for each in noxfile.VERBS if each.name == name), None)
    if verb is None:
        return int(bool(rest))  # tests, lint and types: their suites are minutes long, and no workflow gives them words
    command = [sys.executable, "-m", "upstream_patch", *verb.command, *rest]
    return subprocess.run(command if name in REAL else [*command, "--help"], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
