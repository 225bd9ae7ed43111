"""What a record is.

evidence/schema.json is generated: ``python -m upstream_patch.records.schema > evidence/schema.json``.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from upstream_patch.machine import Machine
from upstream_patch.problem import Problem
from upstream_patch.records.build_body import BuildBody
from upstream_patch.records.decode_schema import DecodeBody
from upstream_patch.records.form import FORM, Count, Error, Gbps, Microseconds, Samples, Sha256, graph_limits
from upstream_patch.records.forward import Forward
from upstream_patch.records.watched import Watched

SCHEMA_VERSION = 1
REPEATS = 20
"""A right result comes out the same, bit for bit, this many times more."""
Arm = Literal["stock", "ours"]
Tool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
"""Of compute-sanitizer."""
Cache = Literal["cold", "hot"]
Order = Literal["queue", "chain"]
Host = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*$")]


class Model(BaseModel):
    model_config = FORM


class KernelIdentity(Model):
    """Which of our kernels ran: its name, the hash of its token stream and compile options, its options."""

    name: str
    hash: Sha256
    options: list[str] = []


class Check(Model):
    """The numeric check of one problem, against the fp64 reference; ``stock_*`` is stock MLX on the same input."""

    passed: bool
    norm_error: Error
    max_ulp: Error
    stock_norm_error: Error | None = None
    stock_max_ulp: Error | None = None
    bound: str
    """In words: the bound that decided, e.g. ``within 1.1x of stock``."""
    columns: Count
    """Output columns compared with the reference (large N is sampled; the rest is compared with stock)."""


class CaseResult(Model):
    case: str
    """Short name of what the case stresses, e.g. ``n_off_tile``."""
    problem: Problem
    seed: int
    check: Check
    repeats_equal: Count
    """Repetitions that were bitwise equal to the first."""
    rows_equal_alone: bool
    """Row m of the batch is bit-identical to the same row alone, for every m."""
    written: bool
    """Every output element was written (the sentinel is gone)."""
    kernels: list[str] = []

    @property
    def passed(self) -> bool:
        """Row independence is asked of our kernel only: stock MLX changes kernels with M."""
        rows_equal = self.rows_equal_alone or not self.kernels
        return self.check.passed and self.repeats_equal >= REPEATS and rows_equal and self.written


class CorrectnessBody(Model):
    kind: Literal["correctness"] = "correctness"
    cases: list[CaseResult]
    full: bool = False
    """Of every format with every M, dtype and layout, not of the cover."""
    planned: int | None = None
    """Cases that were asked for: more than ``cases`` where the time ended before. None in older records."""
    notes: list[str] = []
    """Whether the cases are of more runs than one."""


class Protocol(Model):
    """How a row was timed. The short fact id means cold and queue."""

    cache: Cache = "cold"
    order: Order = "queue"
    copies: int
    """Distinct weight copies rotated; cold means copies * packed bytes > 3 * last-level cache."""
    ops_per_sample: int
    timer: str
    """What device clock was read, in words."""


def row_id(problem: Problem, cache: Cache, order: Order) -> str:
    """A benchmark row's part of a fact id: the problem, plus ``.hot`` and ``.chain`` where they apply."""
    return problem.id + ("" if cache == "cold" else f".{cache}") + ("" if order == "queue" else f".{order}")


class BenchRow(Model):
    """Paired samples of one problem: entry i of every list comes from round i, stock and ours on the same inputs."""

    problem: Problem
    protocol: Protocol
    stock_us: Samples
    ours_us: Samples
    aa_us: Samples
    """Stock again, in the same rounds: stock_us / aa_us is the noise of the method."""
    check: Check
    stock_kernels: list[str] = []
    """Empty in every record: only a profiler sees which kernels stock ran, and the ncu record names them."""
    ours_kernels: list[str]
    """What the launcher launched; never guessed."""
    route: str
    """The route our operation took, e.g. ``small_m`` or ``stock_folded``."""
    watched: Watched | None = None
    """None where the driver could not be asked, and in older records."""

    @model_validator(mode="after")
    def _paired(self) -> BenchRow:
        lengths = {len(self.stock_us), len(self.ours_us), len(self.aa_us)}
        if len(lengths) > 1:
            raise ValueError(
                f"stock_us, ours_us and aa_us are paired by round, their lengths differ: {sorted(lengths)}"
            )
        return self

    @property
    def fact_stem(self) -> str:
        """The row's part of a fact id."""
        return row_id(self.problem, self.protocol.cache, self.protocol.order)


class HostCost(Model):
    """What one call costs the host, paired as the samples of a row are.

    ``build`` is the call alone, never evaluated; ``run`` is the call and its share of enqueuing a chain for the device,
    without waiting for it.
    """

    call: Literal["build", "run"]
    problem: Problem
    stock_us: Samples
    ours_us: Samples
    dispatch_hash: Sha256 | None = None
    """Of the code that ran before our kernel was launched (``records.dispatch_hash``)."""

    @model_validator(mode="after")
    def _paired(self) -> HostCost:
        if len(self.stock_us) != len(self.ours_us):
            raise ValueError("stock_us and ours_us differ in length: samples are paired by round")
        return self


class BenchBody(Model):
    kind: Literal["bench"] = "bench"
    suite: str
    probe_gbps: Annotated[list[Gbps], Field(min_length=1)]
    """Read probe of this run: samples, GB/s (1e9 bytes)."""
    probe_bytes: int
    launch_floor_us: Annotated[list[Microseconds], Field(min_length=1)]
    """An empty kernel under the same timer."""
    host_cost: list[HostCost] = []
    rows: list[BenchRow]
    forwards: list[Forward] = []
    """Whole models, on a Mac."""
    notes: list[str] = []
    """What the machine did during the run: throttling, clocks, other processes; and MLX's graph limits."""

    @property
    def graph_limits(self) -> str | None:
        """``default``, or the variables that set them; None where no note says."""
        return graph_limits(self.notes)


class Metric(Model):
    value: Annotated[float, Field(ge=0, le=1e24)]
    unit: str


class NcuLaunch(Model):
    """One kernel of one call. The launches of one (problem, arm) in a record are the kernels of a single call."""

    problem: Problem
    arm: Arm
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: dict[str, Metric]


class NcuBody(Model):
    kind: Literal["ncu"] = "ncu"
    ncu_version: str
    launches: list[NcuLaunch]
    notes: list[str] = []
    """Which weights of the plan were not profiled, and why."""


class Sanitized(Model):
    """One launch of the reduced matrix that the sanitizers watched."""

    problem: Problem
    kernel: str
    grid: tuple[int, int, int]
    unaligned: bool
    """Every operand lies one element past the start of its allocation, which is aligned to 256 bytes."""
    seed: Count = 0
    """Of the operands: ``make_inputs(problem, seed)``."""
    x_padding: Count = 0
    """Elements between two rows of x."""
    output_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Of the stored bits of the output, [M, N] in row order, the entries of a batch one after another: the same under
    every tool. None in older records."""


class SanitizerRun(Model):
    """One process under one tool: all launches, or the one launch of a planted fault."""

    tool: Tool
    plant: str | None = None
    """The fault that was planted and that the tool reported; None for the sound kernel."""
    launches: Count
    """As the watched program counted them, each result checked against the fp64 reference (a plant's is not)."""
    errors: Count
    warnings: Count = 0
    log: str
    """The attachment that holds all that the tool and the watched program said."""


class SanitizerBody(Model):
    kind: Literal["sanitizer"] = "sanitizer"
    sanitizer_version: str
    options: dict[Tool, list[str]]
    """Each tool's own options."""
    launched: list[Sanitized]
    runs: list[SanitizerRun]
    notes: list[str] = []
    """Whether the processes are of more runs than one."""

    @property
    def sound(self) -> list[SanitizerRun]:
        """The runs over all launches, without planted faults."""
        return [run for run in self.runs if run.plant is None]


class PeerRow(Model):
    """Another library's kernel and ours on the same inputs; entry i of every list comes from round i."""

    problem: Problem
    copies: Annotated[int, Field(ge=1)]
    ops_per_sample: Annotated[int, Field(ge=1)]
    peer_us: Samples
    ours_us: Samples
    aa_us: Samples
    """The peer again, in the same rounds: peer_us / aa_us is the noise of the method."""
    peer_check: Check
    """Against the reference of the peer's own form of the weights, which rounds other values than MLX's."""
    check: Check
    ours_kernel: str
    watched: Watched | None = None
    """None where the driver could not be asked, and in older records."""

    @model_validator(mode="after")
    def _paired(self) -> PeerRow:
        if not len(self.peer_us) == len(self.ours_us) == len(self.aa_us):
            raise ValueError("peer_us, ours_us and aa_us differ in length: they are paired by round")
        return self


class PeerBody(Model):
    kind: Literal["peer"] = "peer"
    peer: str
    """The operation, as its library spells it."""
    peer_version: str
    timer: str
    """What device clock was read, in words."""
    rows: list[PeerRow]
    notes: list[str] = []


class WheelRow(Model):
    """One problem through MLX's own operation, before and with the series' host code in it, and through the runtime
    delivery; entry i of every list comes from round i."""

    problem: Problem
    copies: Annotated[int, Field(ge=1)]
    ops_per_sample: Annotated[int, Field(ge=1)]
    stock_us: Samples
    runtime_us: Samples
    wheel_us: Samples
    aa_us: Samples
    """The runtime delivery again, in the same rounds: runtime_us / aa_us is the noise of the method."""
    check: Check
    module: str
    """The JIT module that the host code took the kernel from."""
    watched: Watched | None = None
    """None where the driver could not be asked, and in older records."""

    @model_validator(mode="after")
    def _paired(self) -> WheelRow:
        if len({len(self.stock_us), len(self.runtime_us), len(self.wheel_us), len(self.aa_us)}) > 1:
            raise ValueError("stock_us, runtime_us, wheel_us and aa_us differ in length: they are paired by round")
        return self


class WheelDecode(Model):
    """Greedy decoding of the same model by one program in three processes: as it is, with the library preloaded, and
    after ``upstream_patch.install()``. The program knows nothing of the library."""

    batch: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    stock_s: Samples
    wheel_s: Samples
    runtime_s: Samples
    """Seconds for all steps, each process by itself: not paired."""
    same_as_runtime: bool
    """The tokens of every sequence, with the library preloaded and after install()."""


class WheelBody(Model):
    """The series' host code, compiled against a released MLX and hooked into it."""

    kind: Literal["wheel"] = "wheel"
    library_sha256: Sha256
    """Of the libmlx.so that it was linked to and ran in."""
    host_hash: Sha256
    """Of the host code (``records.wheel_facts.host_hash``)."""
    cases: list[CaseResult]
    """``kernels`` are JIT modules, named by the host code. Every result was the runtime delivery's, bit for bit."""
    planned: Count
    """Cases of the whole matrix that the host code is asked for: more than ``cases`` where only every n-th was run."""
    every: Annotated[int, Field(ge=1)] | None = None
    """Every so many-th case of the matrix was run. None in older records."""
    rows: list[WheelRow]
    model: dict[str, int | float | str | bool] = {}
    """The model of ``decode``, whose weights are random."""
    decode: list[WheelDecode] = []
    decode_environment: dict[str, str] | None = None
    """As ``Record.environment``, of the processes that decoded: without the graph limits that the rows were timed with.
    None in older records, whose processes had those limits too."""
    calls: dict[str, Count] = {}
    """Of the decoding with the library preloaded: evaluations by route (small_m, stock), and those folded first."""
    notes: list[str] = []


class Attachment(Model):
    """A raw file beside the record, at ``evidence/raw/<record id>/<path>``."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    sha256: Sha256
    size: int


Body = Annotated[
    CorrectnessBody | BenchBody | NcuBody | SanitizerBody | PeerBody | DecodeBody | WheelBody | BuildBody,
    Field(discriminator="kind"),
]


class Record(Model):
    schema_version: Literal[1] = 1
    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*-\d{8}T\d{6}Z-[a-z]+-[0-9a-f]{8}$")]
    """``<host>-<UTC time>-<kind>-<first 8 hex digits of the sha256 of everything else in the record>``."""
    host: Host
    created: AwareDatetime
    command: str
    machine: Machine
    versions: dict[str, str]
    """mlx and the sha256 of its library, cuda runtime, driver, this package, its commit."""
    environment: dict[str, str] | None = None
    """The variables of the process that MLX and CUDA read (``provenance.environment``), MLX's graph limits too.
    None in older records."""
    kernel: KernelIdentity | None
    body: Body
    attachments: list[Attachment] = []


def json_schema() -> str:
    """The JSON schema of a record, as evidence/schema.json holds it."""
    return json.dumps(Record.model_json_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")
