"""A roofline with latencies. Time = launch floor + prologue + the slower of the memory bus and the busiest block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

from upstream_patch import kernels
from upstream_patch.compile import compile_one, nvrtc
from upstream_patch.kernels.tuning import RESERVED_SHARED_BYTES, SLICE, TILE
from upstream_patch.measure.forecast.hardware import REGISTERS, SCHEDULERS, Hardware
from upstream_patch.measure.forecast.sass import Loops, Mix, disassemble, loops
from upstream_patch.problem import DTYPE_BYTES, Problem

CHUNK = Problem(m=1, n=TILE, k=SLICE)
"""The weights that a warp works through at a time. All that is forecast is 4-bit of group size 64."""


@dataclass(frozen=True, eq=False)  # each is made once
class Instance:
    """One instance of the kernel, compiled for one architecture."""

    variant: kernels.Variant
    arch: str
    registers: int
    compiler: str
    loops: Loops

    def per_chunk(self, what: str) -> float:
        """Of ``instructions``, ``hmma`` or ``wavefronts``: scales come with one chunk in ``tiles``."""
        tiles = self.variant.tuning.tiles
        plain, full = (float(getattr(mix, what)) for mix in (self.loops.chunk, self.loops.chunk_with_scales))
        return (plain * (tiles - 1) + full) / tiles

    def kind_per_chunk(self, kind: str) -> float:
        """The same for a class of instructions."""
        tiles = self.variant.tuning.tiles
        plain, full = (mix.counts.get(kind, 0) for mix in (self.loops.chunk, self.loops.chunk_with_scales))
        return (plain * (tiles - 1) + full) / tiles

    def resident(self, hardware: Hardware) -> int:
        """Blocks that one SM holds."""
        tuning = self.variant.tuning
        return min(
            hardware.device.shared_per_multiprocessor // (tuning.shared_bytes + RESERVED_SHARED_BYTES),
            REGISTERS // (self.registers * tuning.threads),
            int(hardware.max_warps.value) // tuning.warps,
        )


@cache
def instance(variant: kernels.Variant, arch: str) -> Instance:
    """Compile and disassemble. Raises MissingTool without NVRTC or nvdisasm."""
    code = disassemble(nvrtc().build(variant.name, variant.translation_unit(), arch, kernels.OPTIONS)[1])
    copies = CHUNK.weight_bytes // (16 * 32)
    registers = compile_one(variant, arch, kernels.OPTIONS).registers
    return Instance(variant, arch, registers, code.compiler, loops(code.instructions, copies))


@dataclass(frozen=True)
class Forecast:
    """A predicted time and its parts, all in microseconds."""

    problem: Problem
    instance: Instance
    blocks: int
    floor: float
    prologue: float
    """Until the first product: the latency of memory, x through the L2 cache, the instructions that turn x about."""
    bus: float
    """All bytes at the read probe's rate."""
    block: dict[str, float]
    """The busiest SM, by what could hold up its chunks."""
    phases: float
    """What the busiest SM does between chunks: x anew where K takes several passes, and the sums over the warps."""

    @property
    def slowest_block(self) -> float:
        return max(self.block.values()) + self.phases

    @property
    def us(self) -> float:
        return self.floor + self.prologue + max(self.bus, self.slowest_block)

    @property
    def binds(self) -> str:
        """What would have to get faster first."""
        if self.floor + self.prologue > max(self.bus, self.slowest_block):
            return "launch and latency"
        if self.bus >= self.slowest_block:
            return "memory"
        worst = max(self.block, key=self.block.__getitem__)
        return worst if self.block[worst] >= self.phases else "x and sums"


def forecast(problem: Problem, hardware: Hardware) -> Forecast:
    """The time of one call on cold weights, alone on the GPU."""
    p, gpu = problem, hardware
    sms = int(gpu.multiprocessors.value)
    variant, launch = kernels.small_m_variant(p, gpu.capability, sms)
    blocks = launch.blocks
    code = instance(variant, gpu.device.name)
    tuning = variant.tuning
    cycles_us = 1 / (gpu.clock_ghz.value * 1e3)
    passes = ceil(p.k / (SLICE * tuning.warps))
    tiles = ceil(ceil(p.n / TILE) / blocks)  # of the busiest block
    batches = ceil(tiles / tuning.tiles)
    on_sm = ceil(blocks / sms)  # blocks that share the busiest SM
    warps = tuning.warps * on_sm
    rounds = tiles * passes  # chunks a warp works through

    def issue(mix: Mix) -> float:
        return mix.instructions * warps / SCHEDULERS * cycles_us

    chunks = {
        "issue slots": code.per_chunk("instructions") * warps / SCHEDULERS * cycles_us,
        "tensor cores": code.per_chunk("hmma") * warps / SCHEDULERS * gpu.mma_cycles.value * cycles_us,
        "shared memory": code.per_chunk("wavefronts") * warps * cycles_us,
        "ring latency": gpu.memory_ns.value / 1e3 / (tuning.stages - 1),
    }
    # A block's warps share one pass over K; each row of x comes from the L2 cache to every SM.
    x_bytes = p.m * min(p.k, SLICE * tuning.warps) * DTYPE_BYTES[p.dtype] * on_sm
    x = gpu.l2_ns.value / 1e3 + x_bytes / gpu.l2_bytes_a_cycle.value * cycles_us + issue(code.loops.x)
    loads = batches * passes if passes > 1 else 1
    total = p.packed_bytes + p.m * (p.k + p.n) * DTYPE_BYTES[p.dtype]
    return Forecast(
        problem=p,
        instance=code,
        blocks=blocks,
        floor=gpu.floor_us.value,
        prologue=(gpu.memory_ns.value - gpu.l2_ns.value) / 1e3 + x,  # the first x comes from memory
        bus=total / gpu.read_gbps.value / 1e3,
        block={what: us * rounds for what, us in chunks.items()},
        phases=(loads - 1) * x + batches * passes * issue(code.loops.phase),
    )
