"""What the verbs share: options, folders, and the line that a record keeps of its command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from upstream_patch.draft import commands
from upstream_patch.errors import UserError

if TYPE_CHECKING:
    from upstream_patch.records.facts import Fact


Evidence = Annotated[Path, typer.Option(help="Folder of the records.")]
Contributed = Annotated[
    str, typer.Option("--contribution", help="Which of the two changes it is about: cuda or metal.")
]
Out = Annotated[Path, typer.Option(help="Folder that drafts are written to.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Do not go on where a run stopped: measure all of it.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Check = Annotated[bool, typer.Option("--check", help="Change nothing; fail where the file differs.")]
Suite = Annotated[
    str,
    typer.Option(
        help="Problems: small-m, formats, formats-full, models, boundary, smoke (seconds), or request-metal (M5)."
    ),
]
EVIDENCE, OUT, folders = commands.EVIDENCE, commands.OUT, commands.folders
SUITE = "small-m"
CONTRIBUTION = "cuda"


def command_line() -> str:
    """This command as a record keeps it: the verb and its options, no paths of this machine."""
    return shlex.join(["python", "-m", "upstream_patch", *sys.argv[1:]])


def existing(path: Path, *, folder: bool = True) -> Path:
    """The path, if it is there: a wrong folder must not look like one without records."""
    if not (path.is_dir() if folder else path.is_file()):
        raise UserError(
            f"no {'folder' if folder else 'file'} {path} here: run from the repository's root, or name another"
        )
    return path


def read_facts(evidence: Path) -> list[Fact]:
    """Those of the records in an evidence folder."""
    from upstream_patch.records import facts, store

    return facts.derive(store.load_all(existing(evidence)))
