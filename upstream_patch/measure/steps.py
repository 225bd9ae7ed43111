"""Counting steps for a progress bar."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""


def counter(progress: Progress | None, total: int) -> Callable[[], None]:
    """Reports 0 of ``total`` now, and one more on every call."""
    done = -1

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    step()
    return step
