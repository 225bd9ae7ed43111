"""On a hosted runner: are the files that the devices sent records, of the commit that was asked for, and whole?"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from ci.machines import DEVICES
from ci.pack import sha256
from ci.result import FILE, MOST_BYTES, DeviceRun, RecordLine, read
from upstream_patch.errors import UserError
from upstream_patch.files import write_text
from upstream_patch.records import store

MANIFEST = "manifest.sha256"


def collect(artifacts: Path, commit: str, evidence: Path, out: Path) -> tuple[list[DeviceRun], int]:
    """Add the records of every artifact to ``evidence``, verify all of it, and write the manifest that is attested.

    The files are data of a machine that ran reviewed code, and are trusted no further: each must be listed with its
    hash, lie under records or raw, and be new, and each record must name ``commit`` as the code that it measured.
    Raises UserError at the first that does not, and when no artifact is there. Returns the runs and the number of
    records that they brought.
    """
    runs = []
    brought: dict[str, Path] = {}
    for folder in sorted(path for path in artifacts.iterdir() if path.is_dir()) if artifacts.is_dir() else ():
        run = read(folder / FILE)
        if run.machine not in DEVICES or run.commit != commit:
            raise UserError(f"{folder.name} is of {run.machine} at {run.commit}, not of a device at {commit}")
        if folder.name != f"device-{run.machine}":
            raise UserError(f"{folder.name} says that it is of {run.machine}")
        brought |= _listed(folder, run)
        runs.append(run)
    if not runs:
        raise UserError("no device sent an artifact: see its job's page")
    for path, source in brought.items():
        target = evidence.parent / path
        if target.exists():
            raise UserError(f"{path} is committed already: records are only added")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    if findings := store.verify(evidence):
        raise UserError(f"{len(findings)} faults in what the devices sent, first: {findings[0]}")
    records = [path for path in brought if path.startswith("evidence/records/")]
    for path in records:
        measured = json.loads(brought[path].read_bytes())["versions"].get("commit")
        if measured != commit:
            raise UserError(f"{path} was measured on commit {measured}, not on {commit}")
    for path, source in brought.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, out / path)
    write_text(out / MANIFEST, "".join(f"{sha256(brought[path])}  {path}\n" for path in sorted(brought)))
    return runs, len(records)


def _listed(folder: Path, run: DeviceRun) -> dict[str, Path]:
    """Path from the repository's root -> the file, of every file that the run lists; there must be no other."""
    everything = sorted(folder.rglob("*"))
    if links := [path.name for path in everything if path.is_symlink()]:
        raise UserError(f"{folder.name}: {links[0]} is a link")
    found = {path.relative_to(folder).as_posix() for path in everything if not path.is_dir()}
    listed = {line.path: line.sha256 for line in run.files}
    if odd := sorted(found ^ {FILE, *listed}):
        raise UserError(f"{folder.name}: {odd[0]} is not both listed and there")
    for path, expected in listed.items():
        _, kind, owner, _ = PurePosixPath(path).parts
        if kind == "records" and owner != run.machine:
            raise UserError(f"{folder.name}: {path} is no record of {run.machine}")
        if (folder / path).stat().st_size > MOST_BYTES:
            raise UserError(f"{folder.name}: {path} is larger than {MOST_BYTES} bytes")
        if sha256(folder / path) != expected:
            raise UserError(f"{folder.name}: {path} is not the file that was listed")
    return {path: folder / path for path in listed}


def place(collected: Path, root: Path) -> Sequence[str]:
    """Copy what was collected into a checkout, for committing; the paths.

    Raises UserError where a path is none of a record or its raw file, or is there already, and when a hash differs.
    """
    lines = (collected / MANIFEST).read_text(encoding="utf-8").splitlines()
    pairs = [(digest, path) for digest, _, path in (line.partition("  ") for line in lines)]
    try:
        files = [RecordLine(path=path, sha256=digest) for digest, path in pairs]
    except ValidationError as error:
        raise UserError(f"{MANIFEST} is not the collector's: {error.errors()[0]['msg']}") from None
    for file in files:
        if sha256(collected / file.path) != file.sha256:
            raise UserError(f"{file.path} is not the file that was attested")
        if (root / file.path).exists():
            raise UserError(f"{file.path} is committed already: records are only added")
        (root / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(collected / file.path, root / file.path)
    return [file.path for file in files]
