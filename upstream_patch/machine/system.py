"""The thin seam to the operating system: commands, files, libraries. Tests give the prober another one."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a command said. ``code`` is None when it could not be started or ran out of time."""

    code: int | None
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True)
class System:
    """The machine that this process runs on."""

    name: str = field(default_factory=platform.system)
    """``Linux`` or ``Darwin``."""
    arch: str = field(default_factory=platform.machine)
    release: str = field(default_factory=platform.release)
    python: str = field(default_factory=platform.python_version)
    cpu_count: int = field(default_factory=lambda: os.cpu_count() or 1)

    def run(self, command: Sequence[str], timeout: float = 20.0) -> Answer:
        """Never raises: a missing or hanging program is an Answer without a code."""
        try:
            done = subprocess.run(
                list(command),
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Answer(None, err=str(error))
        return Answer(done.returncode, done.stdout, done.stderr)

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def library(self, *names: str) -> Any:
        """The first shared library of that name that loads, or None."""
        for name in names:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
        return None

    def module(self, name: str) -> Any:
        """An optional Python module, or None."""
        try:
            return __import__(name)
        except ImportError:
            return None

    def which(self, program: str) -> str | None:
        return shutil.which(program)

    def glob(self, pattern: str) -> list[str]:
        """Absolute pattern, sorted."""
        return sorted(str(path) for path in Path("/").glob(pattern.lstrip("/")))

    def environ(self, name: str) -> str | None:
        return os.environ.get(name)

    def site_folders(self) -> list[str]:
        """Folders that wheels may lie in."""
        return [path for path in sys.path if path and Path(path).is_dir()]

    def is_root(self) -> bool:
        return hasattr(os, "geteuid") and os.geteuid() == 0

    def free_bytes(self, path: str = ".") -> int:
        return shutil.disk_usage(path).free
