"""The person at the terminal, who alone may send."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Protocol

from upstream_patch.errors import UserError

AUTOMATION = (
    *("CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "JENKINS_URL", "TF_BUILD"),
    *("AI_AGENT", "AGENT", "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CODEX_SANDBOX", "CODEX_THREAD_ID", "CODEX_CI"),
    *("COPILOT_CLI", "COPILOT_AGENT", "CURSOR_AGENT", "GEMINI_CLI", "OPENCODE", "OPENCODE_CLIENT", "QWEN_CODE"),
    *("AMP_CURRENT_THREAD_ID", "ANTIGRAVITY_AGENT", "AUGMENT_AGENT", "CLINE_ACTIVE", "GOOSE_TERMINAL"),
)
"""Variables that CI and coding agents set for the programs they run. Aider and Devin set none that is their own."""


class NotAPerson(UserError):
    """Nobody sits there to read the preview."""

    exit_code = 45


class Stopped(UserError):
    """The person did not confirm."""

    exit_code = 46


class Person(Protocol):
    def show(self, text: str) -> None:
        """Let them read it."""

    def answer(self, question: str) -> str:
        """What they type."""


class Terminal:
    """A person at a terminal, who may ``act``. Raises NotAPerson where input or output is none, or under automation."""

    def __init__(self, act: str = "send", environ: Mapping[str, str] = os.environ) -> None:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise NotAPerson(f"only a person at a terminal may {act}: MLX bans agents that file: run it in your shell")
        if found := [name for name in AUTOMATION if environ.get(name)]:
            raise NotAPerson(
                f"only a person may {act}, and {found[0]} is set, as CI and agents do: run it in your own shell"
            )

    def show(self, text: str) -> None:
        print(text)

    def answer(self, question: str) -> str:
        return input(question)


def confirm(person: Person, repository: str) -> None:
    """Raises Stopped unless they type the repository's name, letter by letter."""
    typed = person.answer(f"Type {repository} to send this there, anything else to stop: ").strip()
    if typed != repository:
        raise Stopped("stopped: nothing was sent")
