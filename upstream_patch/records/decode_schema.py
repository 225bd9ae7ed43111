"""What a record of the decode of whole models holds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from upstream_patch.problem import Problem
from upstream_patch.records.form import FORM, Count, Error, Gbps, Microseconds, Samples, Sha256, graph_limits
from upstream_patch.records.watched import Watched

DecodeArmName = Literal["stock", "folded", "ours"]


class Model(BaseModel):
    model_config = FORM


class DecodeCheck(Model):
    """One step of one arm against dense weights: the same ones, dequantized to fp32, with fp32 activations.

    Errors are norms of a difference over the norm of the dense answer, the worst of all rows.
    """

    passed: bool
    logits_error: Error
    """Prompt and step together, against the dense model's."""
    matmul_error: Error
    """Of every quantized matmul of the step, against the dense product with its own input."""
    matmuls: Count
    """Quantized matmuls in the step."""
    bound: str
    """In words: the bounds that decided."""


class DecodeArm(Model):
    """One arm at one batch size; entry i of the lists comes from round i. Milliseconds a step, host clock."""

    step_ms: Samples
    host_ms: Samples
    """Of these, what the host needs to build the step and hand it over, waits included: it waits for no result, but MLX
    lets only so many graphs be in flight, and where the device is slower the host waits in here for room. So its own
    cost is at most this; MLX does not tell the two apart."""
    matmul_ms: Samples
    """The step's quantized matmuls alone, as they depend on one another in the step."""
    generator_ms: list[Microseconds] = []
    """A step of mlx-lm's BatchGenerator; empty where it did not run."""
    check: DecodeCheck


class DecodeRow(Model):
    """Decode of ``batch`` sequences: the arms in turn on one model object, from the same cache."""

    model: str
    batch: Annotated[int, Field(ge=1, le=4096)]
    prompt: Annotated[int, Field(ge=1)]
    """Tokens in the cache of every sequence before the first step of a sample."""
    steps: Annotated[int, Field(ge=1)]
    """Timed steps a sample."""
    stock: DecodeArm
    folded: DecodeArm
    """Stock, but a batch [B, 1, K] becomes rows [B, K] before stock's quantized matmul."""
    ours: DecodeArm
    aa_ms: Samples
    """Stock again, in the same rounds: stock / aa is the noise of the method."""
    ours_kernels: dict[str, str]
    """Problem id -> our kernel that took it; what is not there went to stock."""
    watched: Watched | None = None
    """Of the steps' rounds. None where the driver could not be asked, and in older records."""

    @property
    def arms(self) -> dict[DecodeArmName, DecodeArm]:
        return {"stock": self.stock, "folded": self.folded, "ours": self.ours}

    @property
    def fact_stem(self) -> str:
        """The row's part of a fact id."""
        return f"{self.model}.B{self.batch}"

    @model_validator(mode="after")
    def _paired(self) -> DecodeRow:
        counts = {len(self.aa_ms), *(len(arm.step_ms) for arm in self.arms.values())}
        if len(counts) > 1:
            raise ValueError(f"step_ms and aa_ms are paired by round, their lengths differ: {sorted(counts)}")
        return self


class DecodeModel(Model):
    """A model whose decode was measured, held once for all arms."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    weights: Literal["random", "loaded"]
    config: dict[str, int | float | bool | str | dict[str, float | str]]
    """What mlx-lm's model class was given."""
    step_bytes: Annotated[int, Field(ge=1)]
    """Packed bytes of all quantized matmuls of a step: they must be read once a step."""
    problems: list[Problem]
    """The quantized matmuls of a step at one row, in order."""


class KernelTime(Model):
    """One kernel in a traced step: its launches and their time together, means of several steps. Tracing costs time,
    so none of it is a speed."""

    kernel: str
    launches: Annotated[float, Field(gt=0)]
    us: Microseconds


class DecodeTrace(Model):
    """The kernels of one step on the device, from a run of its own under a tracer."""

    model: str
    batch: Annotated[int, Field(ge=1)]
    arm: DecodeArmName
    span_us: Microseconds
    """From the first kernel's start to the last one's end, a step."""
    kernels: list[KernelTime]


class DecodeBody(Model):
    kind: Literal["decode"] = "decode"
    loop: str
    """What was timed, in words."""
    probe_gbps: Annotated[list[Gbps], Field(min_length=1)]
    """Read probe of this run: samples, GB/s (1e9 bytes)."""
    mlx_lm: str
    """Its version."""
    dispatch_hash: Sha256
    """Of the code that ran before our kernel was launched (``records.dispatch_hash``)."""
    models: list[DecodeModel]
    rows: list[DecodeRow]
    traces: list[DecodeTrace] = []
    tracer: str = ""
    """What saw the traces' kernels, or why there is none."""
    notes: list[str] = []

    @property
    def graph_limits(self) -> str | None:
        """``default``, or the variables that set them; None where no note says."""
        return graph_limits(self.notes)
