"""What leaves a device: the new records, their raw files, and a page of data on how the run went. Nothing else."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from ci.git import Git, git
from ci.result import FILE, DeviceRun, Health, RecordLine, StageLine, StepOutcome
from upstream_patch.contribution import STAGES_FILE
from upstream_patch.errors import UserError
from upstream_patch.files import write_text

FOLDERS = ("evidence/records", "evidence/raw")
HEALTH = "health.json"


def pack(machine: str, suite: str, root: Path, out: Path, run_git: Git = git) -> DeviceRun:
    """Copy what is new under ``FOLDERS`` to ``out``, with ``device.json`` beside it, and return that.

    ``suite`` is the outcome of the suite's step, as GitHub says it. Raises UserError where a committed file of the
    evidence was changed or deleted: records are only ever added; and where what the steps left cannot be read.
    """
    if suite not in get_args(StepOutcome):
        raise UserError(f"{suite!r} is no outcome of a step: {', '.join(get_args(StepOutcome))}")
    outcome = TypeAdapter[StepOutcome](StepOutcome).validate_python(suite)
    if changed := run_git("diff", "--name-only", "HEAD", "--", *FOLDERS).split():
        raise UserError(f"{changed[0]} differs from the commit: records are only added")
    listed = run_git("ls-files", "--others", "-z", "--", *FOLDERS).split("\0")
    files = sorted(path for path in listed if path)
    if odd := [path for path in files if (root / path).is_symlink() or not (root / path).is_file()]:
        raise UserError(f"{odd[0]} is a link, or no file: nothing from elsewhere leaves the machine")
    if out.exists():
        shutil.rmtree(out)
    for path in files:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, out / path)
    health, stages = root / "out" / HEALTH, root / "out" / STAGES_FILE
    try:
        run = DeviceRun(
            machine=machine,
            commit=run_git("rev-parse", "HEAD").strip(),
            health=Health.model_validate_json(health.read_bytes()) if health.is_file() else None,
            suite=outcome,
            stages=TypeAdapter(tuple[StageLine, ...]).validate_json(stages.read_bytes()) if stages.is_file() else (),
            files=tuple(RecordLine(path=path, sha256=sha256(out / path)) for path in files),
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"what the steps left cannot be packed: {error.title} {where}: {first['msg']}") from None
    write_text(out / FILE, run.model_dump_json(indent=1) + "\n")
    return run


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
