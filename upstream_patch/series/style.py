"""MLX's layout of C++, by its own ``.clang-format`` and the clang-format that its pre-commit pins."""

from __future__ import annotations

import difflib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from upstream_patch.errors import UserError
from upstream_patch.machine import System
from upstream_patch.series import text
from upstream_patch.series.model import Contribution
from upstream_patch.series.planning import Plan, Reader, plan

_SUFFIXES = (".c", ".cpp", ".cu", ".cuh", ".h", ".metal")
_PIN = re.compile(r"mirrors-clang-format\s+rev:\s*v?([\d.]+)")


def laid_out(contributions: Sequence[Contribution], read: Reader, system: System | None = None) -> Plan:
    """The plan whose bytes are applied, exported and built, and no others: in MLX's layout, where its tool is there."""
    return formatted(plan(contributions, read, layout(read, system)), read, system)


def layout(read: Reader, system: System | None = None) -> Callable[[str, str], str] | None:
    """Lays out a whole text by its path, as the tree has it; None where that is not known here."""
    found = _clang_format(read, system or System())
    if isinstance(found, str):
        return None
    return lambda path, given: found.format(path, given) if PurePosixPath(path).suffix in _SUFFIXES else given


def formatted(planned: Plan, read: Reader, system: System | None = None) -> Plan:
    """The plan with our new files and our lines in MLX's layout; or as it was, and in ``unformatted`` why.

    Lines that are not ours are left as they are. Only the pinned version formats: another would make noise.
    """
    found = _clang_format(read, system or System())
    if isinstance(found, str):
        return replace(planned, unformatted=found)
    changed = dict(planned.changed)
    for path, after in planned.changed.items():
        if PurePosixPath(path).suffix in _SUFFIXES:
            before = None if path in planned.new else read(path)
            lines = [f"--lines={first}:{last}" for first, last in _ours(before, after)] if before else []
            changed[path] = found.format(path, after, lines)
    return replace(planned, changed=changed)


def clean(planned: Plan, read: Reader, system: System | None = None) -> str | None:
    """None where the pinned clang-format leaves a plan of ``formatted`` as it is; otherwise why that is not known."""
    again = formatted(planned, read, system)
    if again.unformatted is not None:
        return again.unformatted
    moved = [path for path, text in again.changed.items() if planned.changed[path] != text]
    return f"clang-format changes {', '.join(moved)} again" if moved else None


@dataclass(frozen=True)
class _ClangFormat:
    program: str
    style: str
    """Text of the tree's ``.clang-format``."""

    def format(self, path: str, given: str, lines: Sequence[str] = ()) -> str:
        with tempfile.TemporaryDirectory(prefix="upstream-patch-") as folder:
            style = Path(folder) / ".clang-format"
            style.write_bytes(self.style.encode(errors="surrogateescape"))
            done = subprocess.run(
                [self.program, f"--style=file:{style}", f"--assume-filename={path}", *lines],
                input=given.encode(errors="surrogateescape"),
                capture_output=True,
                check=False,
            )
        if done.returncode != 0:
            raise UserError(f"clang-format refused {path}: {done.stderr.decode(errors='replace').strip()[:200]}")
        return done.stdout.decode(errors="surrogateescape")


def _clang_format(read: Reader, system: System) -> _ClangFormat | str:
    """The one that a tree pins, with its style; or why there is none."""
    style, hooks = read(".clang-format"), read(".pre-commit-config.yaml") or ""
    pin = _PIN.search(hooks)
    if style is None or pin is None:
        return "the checkout names no clang-format"
    program = _program(pin[1], system)
    if program is None:
        return f"MLX's layout is that of clang-format {pin[1]}: pip install clang-format=={pin[1]}"
    return _ClangFormat(program, style)


def _program(version: str, system: System) -> str | None:
    """The clang-format of that very version: of this Python's wheel, or on PATH."""
    named = [
        path for folder in system.site_folders() for path in system.glob(f"{folder}/clang_format/data/bin/clang-format")
    ]
    on_path = system.which("clang-format")
    for program in [*named, *([on_path] if on_path else [])]:
        said = re.search(r"version ([\d.]+)", system.run([program, "--version"]).out)
        if said is not None and said[1] == version:
            return program
    return None


def _ours(before: str, after: str) -> Iterator[tuple[int, int]]:
    """First and last line, from 1, of what was put in."""
    matcher = difflib.SequenceMatcher(None, text.split(before), text.split(after), autojunk=False)
    for kind, _, _, first, last in matcher.get_opcodes():
        if kind in ("insert", "replace"):
            yield first + 1, last
