"""How a record gets its place: whole, with its raw files, whatever kills the writer.

A record and its raw files are first written to ``<root>/.partial/<record id>``, its text last: from that moment it is
finished, and on the disk. Then they are moved, the record last. What is cut off in between, the next writer moves the
rest of the way; what is cut off before is no record, and is taken away.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from upstream_patch.errors import UserError
from upstream_patch.files import sync_folder, write_text

PARTIAL = ".partial"
_RECORD, _RAW = "record.json", "raw"


def place(base: Path, identifier: str, text: str, raw: Mapping[str, bytes]) -> Path:
    """Store a record's text and raw files under their final names, and return the record's path.

    Nothing is overwritten. What is raised on the way, Ctrl-C too, takes what this call made with it, and nothing of
    another writer's. Raises UserError where a name is taken or the file system refuses.
    """
    target, folder = _places(base, identifier)
    stage = base / PARTIAL / identifier
    try:
        base.mkdir(parents=True, exist_ok=True)
        with _alone(base):
            _finish(base)
            for taken, what in ((target, "records"), (folder, "raw files")):
                if taken.exists():
                    raise UserError(f"{taken} exists already, {what} are never overwritten")
            try:
                stage.mkdir(parents=True)
                if raw:
                    (stage / _RAW).mkdir()
                for name, data in raw.items():
                    _write(stage / _RAW / name, data)
                if raw:
                    sync_folder(stage / _RAW)
                write_text(stage / _RECORD, text, durable=True)
                _move(stage, target, folder)
            except BaseException:
                if not target.exists():
                    shutil.rmtree(folder, ignore_errors=True)
                _remove(stage)
                raise
    except OSError as error:
        raise UserError(f"cannot store {target}: {error.strerror or error}") from None
    return target


def finish(base: Path) -> list[Path]:
    """Put what writers that were killed had finished in its place, take away what they had not; the records' paths."""
    if not (base / PARTIAL).is_dir():
        return []
    with _alone(base):
        return _finish(base)


def _finish(base: Path) -> list[Path]:
    placed = []
    for stage in sorted((base / PARTIAL).glob("*")):
        target, folder = _places(base, stage.name)
        if (stage / _RECORD).is_file():
            _move(stage, target, folder)
            placed.append(target)
        else:
            _remove(stage)  # its record had its place already, or was not finished
    _tidy(base / PARTIAL)
    return placed


def _move(stage: Path, target: Path, folder: Path) -> None:
    if (stage / _RAW).is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        (stage / _RAW).replace(folder)
        _sync_up(folder.parent, 2)
    target.parent.mkdir(parents=True, exist_ok=True)
    (stage / _RECORD).replace(target)
    _sync_up(target.parent, 3)  # who waits for this throws its journal away next
    _remove(stage)


def _sync_up(folder: Path, levels: int) -> None:
    """A folder and those above it, which may be new as well."""
    for each in (folder, *folder.parents)[:levels]:
        sync_folder(each)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _remove(stage: Path) -> None:
    shutil.rmtree(stage, ignore_errors=True)
    _tidy(stage.parent)


def _tidy(partial: Path) -> None:
    if partial.is_dir() and not any(partial.iterdir()):
        partial.rmdir()


def _places(base: Path, identifier: str) -> tuple[Path, Path]:
    host = identifier.partition("-")[0]
    return base / "records" / host / f"{identifier}.json", base / "raw" / identifier


@contextmanager
def _alone(base: Path) -> Iterator[None]:
    """One writer at a time; the lock goes with the process that holds it, however it ends."""
    handle = os.open(base, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
