"""The two GPUs of the forecast as data, each number with where it comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from upstream_patch.errors import UserError
from upstream_patch.kernels.tuning import DEVICE_CLASSES, DeviceClass
from upstream_patch.records.facts import Fact
from upstream_patch.records.schema import BenchBody
from upstream_patch.records.store import LoadedRecord

SCHEDULERS = 4  # of a multiprocessor; each issues one warp-instruction a cycle
REGISTERS = 65536  # 32-bit ones of a multiprocessor
SHARED_BYTES_A_CYCLE = 128  # of a multiprocessor: one wavefront


@dataclass(frozen=True)
class Value:
    """One constant and its source: measured by us, reported by others, or assumed."""

    value: float
    source: str


@dataclass(frozen=True)
class Hardware:
    name: str
    capability: tuple[int, int]
    multiprocessors: Value
    max_warps: Value
    """Of a multiprocessor."""
    clock_ghz: Value
    read_gbps: Value
    """1e9 bytes a second that a read probe gets."""
    floor_us: Value
    """A kernel that does nothing, in a queue of kernels."""
    memory_ns: Value
    """From a load to its data, from memory that is busy."""
    l2_ns: Value
    l2_bytes_a_cycle: Value
    """What one multiprocessor gets from the L2 cache."""
    mma_cycles: Value
    """Of one quarter of a multiprocessor: m16n8k16 of bf16 with fp32 sums, and m16n8k8 of TF32."""

    @property
    def device(self) -> DeviceClass:
        return DEVICE_CLASSES[self.capability]

    def constants(self) -> dict[str, Value]:
        """What it is called -> the constant, for print."""
        return {
            "multiprocessors (SM)": self.multiprocessors,
            "warps an SM holds": self.max_warps,
            "clock, GHz": self.clock_ghz,
            "read probe, GB/s": self.read_gbps,
            "launch floor, us": self.floor_us,
            "memory latency, ns": self.memory_ns,
            "L2 latency, ns": self.l2_ns,
            "L2 to one SM, bytes a cycle": self.l2_bytes_a_cycle,
            "cycles of an MMA": self.mma_cycles,
        }


GB10 = Hardware(
    "GB10",
    (12, 1),
    multiprocessors=Value(48, "reported: 6,144 CUDA cores, 128 an SM"),
    max_warps=Value(48, "CUDA programming guide, compute capability 12.x"),
    clock_ghz=Value(2.418, "reported, not ours: 29.71 fp32 TFLOPS (huggingface.co/hardware/gb10) over 6,144 x 2"),
    read_gbps=Value(231, "reported by the request, not ours"),
    floor_us=Value(1.0, "assumed: about twice the H200's"),
    memory_ns=Value(1000, "assumed: slower than the H200's, LPDDR5X"),
    l2_ns=Value(300, "assumed: as the H200's"),
    l2_bytes_a_cycle=Value(64, "assumed"),
    mma_cycles=Value(32, "assumed, slow on purpose: 128 FLOP a cycle and quarter"),
)

_H200 = Hardware(
    "H200",
    (9, 0),
    multiprocessors=Value(132, "the record"),
    max_warps=Value(64, "CUDA programming guide, compute capability 9.0"),
    clock_ghz=Value(0, ""),
    read_gbps=Value(0, ""),
    floor_us=Value(0, ""),
    memory_ns=Value(800, "assumed"),
    l2_ns=Value(300, "assumed"),
    l2_bytes_a_cycle=Value(64, "assumed"),
    mma_cycles=Value(
        6.4, "4 at NVIDIA's dense bf16 peak; mma.sync gets 62.9% of it (arXiv 2501.12084, 6.2, as others cite it)"
    ),
)
_CLOCK = re.compile(r"\bSM (\d+) MHz")


def h200(facts: Sequence[Fact], records: Sequence[LoadedRecord]) -> Hardware:
    """The H200 with the probe and floor of the facts, and the clock of their run. Raises UserError without them."""
    probes = {fact.id: fact for fact in facts if fact.id.startswith("probe.h200.")}
    probe, floor = probes.get("probe.h200.read_gbps"), probes.get("probe.h200.launch_floor_us")
    run = next((each.record for each in records if probe and each.path == probe.record_path), None)
    if probe is None or floor is None or run is None or not isinstance(run.body, BenchBody):
        raise UserError("the forecast is checked against an H200 benchmark, and there is no record of one")
    clocks = [int(match[1]) for note in run.body.notes if (match := _CLOCK.search(note))]
    if not clocks or run.machine.gpu is None or run.machine.gpu.multiprocessors is None:
        raise UserError(f"record {run.id} does not say the clock or the number of multiprocessors")
    return replace(
        _H200,
        multiprocessors=Value(run.machine.gpu.multiprocessors, "the benchmark's record"),
        clock_ghz=Value(median(clocks) / 1000, "the benchmark's record, before and after it"),
        read_gbps=Value(float(probe.value), f"fact {probe.id}"),
        floor_us=Value(float(floor.value), f"fact {floor.id}"),
    )
