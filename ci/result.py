"""What a device job hands on: the health of the machine, how each step ended, and which records it made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from upstream_patch.errors import UserError

FILE = "device.json"
MOST_BYTES = 50_000_000
"""Of one file. GitHub warns above it, and refuses a push of twice as much."""
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
    path: Annotated[str, Field(pattern=r"^evidence/(records/[a-z0-9]+|raw/[A-Za-z0-9-]+)/[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """From the repository's root: a record or one of its raw files, and nothing that leads elsewhere."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


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
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is no device run: it is larger than {MOST_BYTES} bytes")
        return DeviceRun.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, ValidationError) as error:
        raise UserError(f"{path} is no device run: {str(error).splitlines()[0]}") from None
