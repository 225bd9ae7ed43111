"""Our lines in MLX's layout: by the checkout's own style and pin, and no line of MLX's with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from upstream_patch.errors import UserError
from upstream_patch.machine import System
from upstream_patch.series.planning import Plan, Reader
from upstream_patch.series.style import formatted

HOOKS = "repos:\n-   repo: https://example.invalid/mirrors-clang-format\n    rev: v17.0.6\n"
BEFORE = "int a;\nint  b;\nint c;\n"
PLANNED = Plan(
    (),
    {"a.cpp": "int a;\nint  b;\nint  ours;\nint c;\n", "new.h": "int  x;\n", "t.py": "x  = 1\n"},
    frozenset({"new.h"}),
)


class Machine(System):
    """Has a clang-format of some version that notes its arguments, and takes double blanks out."""

    def __init__(self, folder: Path, version: str = "17.0.6") -> None:
        super().__init__()
        program = folder / "clang-format"
        program.write_text(
            f"#!{sys.executable}\nimport json, sys, pathlib\n"
            f"if '--version' in sys.argv:\n    print('clang-format version {version}')\n    raise SystemExit\n"
            f"pathlib.Path({str(folder / 'called.jsonl')!r}).open('a').write(json.dumps(sys.argv[1:]) + chr(10))\n"
            "text = sys.stdin.read()\n"
            "if 'refuse' in text:\n    print('bad style', file=sys.stderr)\n    raise SystemExit(1)\n"
            "chosen = [a.split('=')[1].split(':') for a in sys.argv if a.startswith('--lines')]\n"
            "for number, line in enumerate(text.splitlines(), 1):\n"
            "    ours = not chosen or any(int(f) <= number <= int(l) for f, l in chosen)\n"
            "    print(line.replace('  ', ' ') if ours else line)\n"
        )
        program.chmod(0o755)
        object.__setattr__(self, "program", str(program))

    program: str

    def which(self, program: str) -> str | None:
        return self.program

    def site_folders(self) -> list[str]:
        return []


def reader(style: str | None = "BasedOnStyle: x\n", hooks: str | None = HOOKS) -> Reader:
    files = {".clang-format": style, ".pre-commit-config.yaml": hooks, "a.cpp": BEFORE, "t.py": "x  = 1\n"}
    return files.get


def test_our_lines_and_files_are_formatted_and_nothing_else(tmp_path: Path) -> None:
    done = formatted(PLANNED, reader(), Machine(tmp_path))
    assert done.unformatted is None
    assert done.changed == {"a.cpp": "int a;\nint  b;\nint ours;\nint c;\n", "new.h": "int x;\n", "t.py": "x  = 1\n"}
    calls = [json.loads(line) for line in (tmp_path / "called.jsonl").read_text().splitlines()]
    assert [call[1:] for call in calls] == [
        ["--assume-filename=a.cpp", "--lines=3:3"],
        ["--assume-filename=new.h"],
    ]


@pytest.mark.parametrize(
    ("style", "hooks", "version", "told"),
    [
        (None, HOOKS, "17.0.6", "the checkout names no clang-format"),
        ("x: y\n", None, "17.0.6", "the checkout names no clang-format"),
        ("x: y\n", HOOKS, "22.1.0", "MLX's layout is that of clang-format 17.0.6: pip install clang-format==17.0.6"),
    ],
)
def test_without_the_pinned_one_nothing_is_formatted_and_it_is_said(
    style: str | None, hooks: str | None, version: str, told: str, tmp_path: Path
) -> None:
    done = formatted(PLANNED, reader(style, hooks), Machine(tmp_path, version))
    assert (done.changed, done.unformatted) == (PLANNED.changed, told)


def test_a_refusal_is_one_line(tmp_path: Path) -> None:
    planned = Plan((), {"new.h": "refuse\n"}, frozenset({"new.h"}))
    with pytest.raises(UserError, match=r"clang-format refused new.h: bad style"):
        formatted(planned, reader(), Machine(tmp_path))
