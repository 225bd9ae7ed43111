"""Write a file whole or not at all; name one by its bytes."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from hashlib import file_digest
from pathlib import Path


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write UTF-8 beside ``path``, then put it in place in one step. Makes the folder where it is missing.

    With ``durable``, the file and its name are on the disk when this returns: a crash of the machine loses neither.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        # mkstemp makes it private; a new file here is as open as the umask says.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask)
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """The names in a folder are on the disk when this returns."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_changed(path: Path, text: str) -> bool:
    """``write_text`` where the file does not hold the text already; True when it was written."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def sha256_of(path: Path) -> str:
    """Of the file's bytes, in hex; read once a process, unless it changes: MLX's library for CUDA is large."""
    return _sha256_of(path, path.stat().st_mtime_ns)


@cache
def _sha256_of(path: Path, changed_ns: int) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
