"""What a device job hands on: the health of the machine, how each step ended, and which records it made."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from upstream_patch.errors import UserError

FILE = "device.json"
StepOutcome = Literal["success", "failure", "cancelled", "skipped"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Check(_Data):
    """One line of a machine's health. What is not ``required`` is told and stops nothing."""

    name: str
    ok: bool
    required: bool
    found: str
    fix: str | None = None


class Health(_Data):
    machine: str
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.required and not check.ok)


class StageLine(_Data):
    """One stage of the suite, as its own summary tells it."""

    stage: str
    outcome: str
    detail: str


class RecordLine(_Data):
    path: str
    """From the repository's root."""
    sha256: str


class DeviceRun(_Data):
    machine: str
    commit: str
    health: Health | None
    """None where the check did not come to its end."""
    suite: StepOutcome
    stages: tuple[StageLine, ...]
    """Empty where the suite did not come to its end."""
    files: tuple[RecordLine, ...]
    """New records and their raw files."""


def read(path: Path) -> DeviceRun:
    """Raises UserError where the file is not one of ours."""
    try:
        return DeviceRun.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, ValidationError) as error:
        raise UserError(f"{path} is no device run: {str(error).splitlines()[0]}") from None
