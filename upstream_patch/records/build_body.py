"""What a record of a build of MLX holds: its own tests, by the base and by the same with the series."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SuiteRun(Model):
    """MLX's own tests of one file, by one build."""

    arm: Literal["base", "series"]
    metal_jit: bool | None = None
    """MLX_METAL_JIT; None for CUDA."""
    tf32: bool
    """False: MLX_ENABLE_TF32=0; True: MLX's default."""
    ran: Count
    skipped: Count
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
    options: list[str]
    """Of MLX's CMake."""
    tests: str
    new_tests: list[str]
    """Test methods that the series adds: each must fail on the base and pass with the series."""
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
        """New tests that fail on the base and pass with the series, in every environment."""
        base, series = self.failed("base"), self.failed("series")
        return [
            name
            for name in self.new_tests
            if all(any(self._names(test, name) for test in failed) for failed in base.values())
            and not any(self._names(test, name) for failed in series.values() for test in failed)
        ]

    def _is_new(self, test: str) -> bool:
        return any(self._names(test, name) for name in self.new_tests)

    @staticmethod
    def _names(test: str, name: str) -> bool:
        return test.split(" ", maxsplit=1)[0].rsplit(".", 1)[-1] == name
