"""What is known about a machine, as data: stored in records, printed by doctor."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


class Gpu(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    vendor: str
    compute_capability: str | None = None
    """CUDA only, e.g. ``9.0``."""
    multiprocessors: int | None = None
    """CUDA SMs, or Apple GPU cores."""
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    shared_memory_per_block: int | None = None
    """The opt-in limit, bytes."""
    driver: str | None = None


class Machine(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    os: str
    arch: str
    cpu: str
    cpu_count: int
    memory_bytes: int
    python: str
    gpu: Gpu | None = None


@dataclass(frozen=True)
class Finding:
    """One line of doctor: a piece of the machine, what it enables, and the way to get it."""

    name: str
    ok: bool
    detail: str
    """What was found, or what is missing."""
    enables: str
    fix: str | None = None
    """The way out; None where there is nothing to do, or nothing can be done."""
