"""How the kernels are cut for a device: tuning tables as data, and the shared memory a choice needs."""

from __future__ import annotations

from dataclasses import dataclass, field

GROUP = 64
TILE = 16
SLICE = 4  # groups of x a warp holds
CHUNK_BYTES = TILE * SLICE * GROUP // 2
RESERVED_SHARED_BYTES = 1024  # CUDA keeps this much of a multiprocessor's shared memory per block


@dataclass(frozen=True, slots=True)
class SmallM:
    """Template arguments of the small-M kernel: rows (8 or 16), warps a block, ring stages, tiles a batch."""

    rows: int
    warps: int
    stages: int
    batch: int

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """sizeof(Shared) of the kernel: weight rings, scale buffers, partial sums."""
        buffers = -(-self.stages // self.batch) + 1
        ring = self.warps * self.stages * CHUNK_BYTES
        scales = buffers * self.batch * 2 * TILE * (self.warps * SLICE + 8) * 2
        partial = self.warps * self.batch * (self.rows // 8) * 32 * 16
        return ring + scales + partial


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Limits of one compute capability, from the CUDA programming guide's table, and its picks.

    Both map rows to (stages, batch). ``deep`` replaces a pick for weights of many tiles, where a longer ring covers the
    memory's latency better; where there are few, the block is done before it pays.
    """

    name: str
    shared_per_block: int
    shared_per_multiprocessor: int
    picks: dict[int, tuple[int, int]]
    deep: dict[int, tuple[int, int]] = field(default_factory=dict)
    measured: bool = False


_LARGE, _LARGE_DEEP = {8: (2, 4), 16: (2, 4)}, {8: (4, 4)}
_MIDDLE = {8: (3, 2), 16: (2, 2)}
_SMALL = {8: (2, 2), 16: (2, 1)}

DEVICE_CLASSES: dict[tuple[int, int], DeviceClass] = {
    (8, 0): DeviceClass("sm_80", 163 * 1024, 164 * 1024, _MIDDLE),
    (8, 6): DeviceClass("sm_86", 99 * 1024, 100 * 1024, _SMALL),
    (8, 7): DeviceClass("sm_87", 163 * 1024, 164 * 1024, _MIDDLE),
    (8, 9): DeviceClass("sm_89", 99 * 1024, 100 * 1024, _SMALL),
    (9, 0): DeviceClass("sm_90", 227 * 1024, 228 * 1024, _LARGE, _LARGE_DEEP, measured=True),
    (10, 0): DeviceClass("sm_100", 227 * 1024, 228 * 1024, _LARGE, _LARGE_DEEP),
    (10, 3): DeviceClass("sm_103", 227 * 1024, 228 * 1024, _LARGE, _LARGE_DEEP),
    (11, 0): DeviceClass("sm_110", 227 * 1024, 228 * 1024, _LARGE, _LARGE_DEEP),
    (12, 0): DeviceClass("sm_120", 99 * 1024, 100 * 1024, _SMALL),
    (12, 1): DeviceClass("sm_121", 99 * 1024, 100 * 1024, _SMALL),
}
"""Only sm_90 was tuned on a device, an H200; the other picks follow from the limits alone."""
MAX_ROWS = 16
_DEEP_FROM = 12  # tiles a block works through; from a tuning run on an H200 that left no record


@dataclass(frozen=True, slots=True)
class Launch:
    tuning: SmallM
    blocks: int


def small_m_launch(m: int, n: int, k: int, device: DeviceClass, multiprocessors: int) -> Launch:
    """The tuning and the grid of a problem; needs 1 <= m <= MAX_ROWS and k a multiple of GROUP.

    ``warps`` follows from K alone, since the order of the sums does: a row gets the same bits whatever M is.
    """
    rows = 8 if m <= 8 else 16
    groups = k // GROUP
    warps = next((w for w in (4, 8) if groups <= w * SLICE), 16)
    tiles = -(-n // TILE)

    def cut(pick: tuple[int, int]) -> tuple[SmallM, int]:
        tuning = SmallM(rows, warps, *pick)
        blocks = min(16 // warps, device.shared_per_multiprocessor // (tuning.shared_bytes + RESERVED_SHARED_BYTES))
        return tuning, -(-tiles // (multiprocessors * blocks))

    tuning, tiles_a_block = cut(device.deep.get(rows, device.picks[rows]))
    if tiles_a_block < _DEEP_FROM:
        tuning, tiles_a_block = cut(device.picks[rows])
    return Launch(tuning, -(-tiles // tiles_a_block))
