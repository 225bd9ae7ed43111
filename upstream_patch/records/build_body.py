"""What a record of a build of MLX holds: its own tests, by the base and by the same with the series."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Arm = Literal["base", "series"]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SuiteRun(Model):
    """MLX's own tests of one file, by one build."""

    arm: Arm
    metal_jit: bool | None = None
    """MLX_METAL_JIT; None for CUDA."""
    tf32: bool
    """False: MLX_ENABLE_TF32=0; True: MLX's default."""
    ran: Count
    skipped: Count
    idle: list[str] = []
    """New tests that were skipped: they say nothing."""
    failed: list[str]
    """Ids of tests and subtests, with their parameters."""
    log: str
    """The attachment that holds all that was said."""


class Matrix(Model):
    """Our own cases through MLX's operation as the series changes it."""

    cases: Annotated[int, Field(ge=1)]
    wrong: list[str]
    """Complaints, with the name of their case."""
    results: str
    """The attachment that holds every result."""


class BuildBody(Model):
    """MLX built from source twice, as it is and with the series; the same test file judges both."""

    kind: Literal["build"] = "build"
    backend: Literal["cuda", "metal"]
    upstream: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    """Commit of MLX."""
    contributions: list[str]
    series_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of what they put in (``series.content_hash``)."""
    tree: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    """git's tree of what was compiled: the commit with the series in it, as applying and exporting put it there."""
    options: list[str]
    """Of MLX's CMake."""
    tests: str
    new_tests: list[str]
    """Test methods that the series adds: each must pass with the series and, unless it guards, fail on the base."""
    guards: list[str] = []
    """Those of them that must pass on the base, too."""
    runs: Annotated[list[SuiteRun], Field(min_length=2)]
    matrix: Matrix | None = None
    """None for Metal."""

    def failed(self, arm: str) -> dict[tuple[bool | None, bool], set[str]]:
        """(MLX_METAL_JIT, TF32) -> what failed."""
        return {(run.metal_jit, run.tf32): set(run.failed) for run in self.runs if run.arm == arm}

    @property
    def known(self) -> set[str]:
        """What fails on the base, new tests apart: not this change's doing."""
        return {test for failed in self.failed("base").values() for test in failed if not self._is_new(test)}

    @property
    def broken(self) -> list[str]:
        """What fails with the series and, in the same environment, not on the base; and new tests that fail with it."""
        base = self.failed("base")
        return sorted(
            {
                test
                for key, failed in self.failed("series").items()
                for test in failed
                if self._is_new(test) or test not in base.get(key, set())
            }
        )

    @property
    def proven(self) -> list[str]:
        """New tests that fail on the base and pass with the series, in every environment: they show the change."""
        base = self.failed("base").values()
        showing = [name for name in self.new_tests if name not in self.guards and self._passes(name, "series")]
        return [name for name in showing if all(self._in(name, failed) for failed in base)]

    @property
    def kept(self) -> list[str]:
        """Guards that pass on the base and with the series, in every environment."""
        return [name for name in self.guards if self._passes(name, "base") and self._passes(name, "series")]

    @property
    def unproven(self) -> list[str]:
        """New tests that neither show the change nor guard anything."""
        return sorted({*self.new_tests} - {*self.proven, *self.kept})

    def _passes(self, name: str, arm: Arm) -> bool:
        """In every environment, without being skipped."""
        runs = [run for run in self.runs if run.arm == arm]
        return not any(name in run.idle or self._in(name, run.failed) for run in runs)

    def _in(self, name: str, failed: Iterable[str]) -> bool:
        return any(self._names(test, name) for test in failed)

    def _is_new(self, test: str) -> bool:
        return any(self._names(test, name) for name in self.new_tests)

    @staticmethod
    def _names(test: str, name: str) -> bool:
        return test.split(" ", maxsplit=1)[0].rsplit(".", 1)[-1] == name
