"""How a person's mistake, or a missing tool, ends: one clear line with the way out."""

from __future__ import annotations


class UserError(Exception):
    """Something the person at the terminal can put right. ``str(error)`` is one line: what is wrong, and the way out.

    The command line prints it as ``error: ...`` without a traceback and exits with ``exit_code``.
    """

    exit_code: int = 2


class MissingTool(UserError):
    """A program, wheel, GPU or permission that this machine lacks."""

    exit_code = 3

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}: {fix}")
        self.what = what
        self.fix = fix


class StaleFact(MissingTool):
    """A number is asked for that was measured on another kernel than today's; ``fix`` is what measures it again."""

    exit_code = 5
