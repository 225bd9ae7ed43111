"""What every part of a record is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import ConfigDict, Field

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Microseconds = Annotated[float, Field(ge=1e-6, le=1e12)]
"""Wide enough for any call and any machine, narrow enough that no ratio of two leaves the floats."""
Gbps = Annotated[float, Field(ge=1e-6, le=1e12)]
Error = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Samples = Annotated[list[Microseconds], Field(min_length=3)]
"""us; in the fields that end in _ms, ms."""


FORM = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
"""Of every model in a record."""
GRAPH_LIMITS = "MLX graph limits: "
"""How the note of a benchmark and of a decode begins that says how long MLX's CUDA graphs could get."""


def graph_limits(notes: Iterable[str]) -> str | None:
    """``default``, or the variables that set them; None where no note says."""
    return next((note.removeprefix(GRAPH_LIMITS) for note in notes if note.startswith(GRAPH_LIMITS)), None)
