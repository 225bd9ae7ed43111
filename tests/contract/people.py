"""People at a terminal, as the tests need them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Scripted:
    """Types what the script says, and keeps what was shown."""

    types: str
    before: Callable[[], object] = lambda: None
    """What happens while they read."""
    shown: list[str] = field(default_factory=list)

    def show(self, text: str) -> None:
        self.shown.append(text)

    def answer(self, question: str) -> str:
        self.shown.append(question)
        self.before()
        return self.types
