"""How the kernels are cut for a device: tuning tables as data, and the shared memory a choice needs."""

from __future__ import annotations

from dataclasses import dataclass

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

    ``deep`` serves weights of many tiles, where the ring must cover the memory's latency; ``shallow`` the others, which
    end before a deep ring pays. Each maps rows to (stages, batch).
    """

    name: str
    shared_per_block: int
    shared_per_multiprocessor: int
    deep: dict[int, tuple[int, int]]
    shallow: dict[int, tuple[int, int]]
    measured_on: str | None = None


_LARGE_DEEP = {8: (4, 4), 16: (2, 4)}
_LARGE_SHALLOW = {8: (2, 4), 16: (2, 4)}
_SMALL = {8: (2, 2), 16: (2, 1)}
_A100 = {8: (3, 2), 16: (2, 2)}

DEVICE_CLASSES: dict[tuple[int, int], DeviceClass] = {
    (8, 0): DeviceClass("sm_80", 163 * 1024, 164 * 1024, _A100, _A100),
    (8, 6): DeviceClass("sm_86", 99 * 1024, 100 * 1024, _SMALL, _SMALL),
    (8, 7): DeviceClass("sm_87", 163 * 1024, 164 * 1024, _A100, _A100),
    (8, 9): DeviceClass("sm_89", 99 * 1024, 100 * 1024, _SMALL, _SMALL),
    (9, 0): DeviceClass("sm_90", 227 * 1024, 228 * 1024, _LARGE_DEEP, _LARGE_SHALLOW, measured_on="h200"),
    (10, 0): DeviceClass("sm_100", 227 * 1024, 228 * 1024, _LARGE_DEEP, _LARGE_SHALLOW),
    (10, 3): DeviceClass("sm_103", 227 * 1024, 228 * 1024, _LARGE_DEEP, _LARGE_SHALLOW),
    (11, 0): DeviceClass("sm_110", 227 * 1024, 228 * 1024, _LARGE_DEEP, _LARGE_SHALLOW),
    (12, 0): DeviceClass("sm_120", 99 * 1024, 100 * 1024, _SMALL, _SMALL),
    (12, 1): DeviceClass("sm_121", 99 * 1024, 100 * 1024, _SMALL, _SMALL),
}
MAX_ROWS = 16
_DEEP_FROM = 12  # tiles a block works through, from where the deep ring was faster on the h200


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

    tuning, tiles_a_block = cut(device.deep[rows])
    if tiles_a_block < _DEEP_FROM:
        tuning, tiles_a_block = cut(device.shallow[rows])
    return Launch(tuning, -(-tiles // tiles_a_block))
