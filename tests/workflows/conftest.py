"""The repository's workflows, as text and as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci import policy


@pytest.fixture(scope="session")
def texts(root: Path) -> dict[str, str]:
    """File name -> text of every workflow."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((root / policy.FOLDER).glob("*.y*ml"))}
