"""How the kernels are cut for a device: tuning tables as data, and the shared memory a choice needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from upstream_patch.problem import BITS, GROUPS, Mode, Problem
from upstream_patch.problem import FLOATING as SIZES


class Format(NamedTuple):
    """How weights are stored: bits an element, elements a group, and what an element and a scale are."""

    bits: int
    group: int
    mode: Mode = "affine"

    @property
    def affine(self) -> bool:
        """Scales and biases in x's dtype; the others have one scale byte a group and no bias."""
        return self.mode == "affine"


_CODES: tuple[Mode, ...] = ("mxfp4", "nvfp4", "mxfp8")
AFFINE = tuple(Format(bits, group) for bits, group in product(BITS, GROUPS))
FLOATING = tuple(Format(*SIZES[mode], mode) for mode in _CODES)
FORMATS = (*AFFINE, *FLOATING)
"""Weights that the small-M kernel takes."""
USUAL = Format(4, 64)
TILE = 16
SLICE = 256  # of K: what a warp holds of x
RESERVED_SHARED_BYTES = 1024  # CUDA keeps this much of a multiprocessor's shared memory per block
BLOCK_ROWS = 16  # of x, at most, to a block; more rows are further blocks, which meet the weights in the L2 cache
MAX_ROWS = 32
MAX_BATCH = 65_535  # of a grid's third axis


def format_of(problem: Problem) -> Format:
    return Format(problem.bits, problem.group_size, problem.mode)


class Pick(NamedTuple):
    """Stages of a warp's ring, tiles that wait for one reduction, and how many tiles a block must have for it."""

    stages: int
    tiles: int
    least: int = 1


Picks = Mapping[int, tuple[Pick, ...]]


@dataclass(frozen=True, slots=True)
class SmallM:
    """Template arguments of the small-M kernel: rows (8 or 16), warps a block, ring stages, tiles a reduction."""

    rows: int
    warps: int
    stages: int
    tiles: int
    format: Format = USUAL

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """sizeof(Shared) of the kernel: weight rings, scale buffers, partial sums."""
        bits, group, _ = self.format
        padding = 0 if bits in (2, 4, 8) else 16
        ring = self.warps * self.stages * TILE * (SLICE * bits // 8 + padding)
        buffers = -(-self.stages // self.tiles) + 1
        row = self.warps * SLICE // group * (2 if self.format.affine else 1) + 16
        scales = buffers * self.tiles * (2 if self.format.affine else 1) * TILE * row
        partial = self.warps * self.tiles * (self.rows // 8) * 32 * 16
        return -(-(ring + scales + partial) // 256) * 256


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Limits of one compute capability, from the CUDA programming guide's table, and its picks.

    ``picks`` maps rows to picks, the best first; a format takes the first that fits and has the tiles it asks for.
    ``narrow`` comes before them for 2 and 3 bits, whose chunks are small. A longer ring covers the memory's latency
    better; where there are few tiles, the block is done before it pays.
    """

    name: str
    shared_per_block: int
    shared_per_multiprocessor: int
    picks: Picks
    narrow: Picks = field(default_factory=dict)
    measured: bool = False

    def fits(self, tuning: SmallM) -> bool:
        needed = tuning.shared_bytes
        return needed <= self.shared_per_block and needed + RESERVED_SHARED_BYTES <= self.shared_per_multiprocessor

    def choices(self, rows: int, warps: int, form: Format) -> tuple[tuple[Pick, SmallM], ...]:
        """The picks that fit, the best first."""
        picks = (*(self.narrow.get(rows, ()) if form.bits <= 3 else ()), *self.picks[rows])
        tunings = ((pick, SmallM(rows, warps, pick.stages, pick.tiles, form)) for pick in picks)
        return tuple((pick, tuning) for pick, tuning in tunings if self.fits(tuning))

    def tuning(self, rows: int, warps: int, form: Format, tiles: int = 1) -> SmallM | None:
        """The best for a block of so many tiles; None where nothing fits."""
        return next((tuning for pick, tuning in self.choices(rows, warps, form) if pick.least <= tiles), None)

    @property
    def levels(self) -> tuple[int, ...]:
        """Numbers of tiles from which on a block is cut in another way."""
        every = (*self.picks.values(), *self.narrow.values())
        return tuple(sorted({pick.least for picks in every for pick in picks}))

    def warps(self, k: int, form: Format) -> int:
        """Ways in which a block splits K. The order of a sum follows from it, so it does not depend on M."""
        warps = next((few for few in (4, 8) if k <= few * SLICE), 16)
        while any(self.tuning(rows, warps, form) is None for rows in (8, 16)):
            warps //= 2
            if warps < 4:
                raise ValueError(f"{form} does not fit the shared memory of {self.name}")
        return warps


_TWO, _ONE = Pick(2, 2), Pick(2, 1)
_LARGE: Picks = {8: (Pick(3, 4, least=12), Pick(2, 4, least=3), _TWO), 16: (Pick(2, 4), _TWO)}
_LARGE_NARROW: Picks = {8: (Pick(2, 8, least=4),)}
_MIDDLE: Picks = {8: (Pick(3, 2), _TWO), 16: (_TWO, _ONE)}
_SMALL: Picks = {8: (_TWO, _ONE), 16: (_TWO, _ONE)}

DEVICE_CLASSES: dict[tuple[int, int], DeviceClass] = {
    (8, 0): DeviceClass("sm_80", 163 * 1024, 164 * 1024, _MIDDLE),
    (8, 6): DeviceClass("sm_86", 99 * 1024, 100 * 1024, _SMALL),
    (8, 7): DeviceClass("sm_87", 163 * 1024, 164 * 1024, _MIDDLE),
    (8, 9): DeviceClass("sm_89", 99 * 1024, 100 * 1024, _SMALL),
    (9, 0): DeviceClass("sm_90", 227 * 1024, 228 * 1024, _LARGE, _LARGE_NARROW, measured=True),
    (10, 0): DeviceClass("sm_100", 227 * 1024, 228 * 1024, _LARGE, _LARGE_NARROW),
    (10, 3): DeviceClass("sm_103", 227 * 1024, 228 * 1024, _LARGE, _LARGE_NARROW),
    (11, 0): DeviceClass("sm_110", 227 * 1024, 228 * 1024, _LARGE, _LARGE_NARROW),
    (12, 0): DeviceClass("sm_120", 99 * 1024, 100 * 1024, _SMALL),
    (12, 1): DeviceClass("sm_121", 99 * 1024, 100 * 1024, _SMALL),
}
"""Only sm_90's were compared on a device, an H200: bf16, blocks of 16 warps, K of 4096 and more; formats other than 4
bits of group size 64 with 4096 x 14336 alone. Its other blocks, and the other classes, follow from the limits."""


@dataclass(frozen=True, slots=True)
class Launch:
    """An instance and its grid: blocks that share the tiles of N, blocks of rows, batch entries."""

    tuning: SmallM
    grid: tuple[int, int, int]

    @property
    def blocks(self) -> int:
        return self.grid[0]


def small_m_launch(
    m: int, n: int, k: int, device: DeviceClass, multiprocessors: int, form: Format = USUAL, batch: int = 1
) -> Launch:
    """The tuning and the grid of a problem; needs 1 <= m <= MAX_ROWS and k a multiple of the group size.

    ``batch`` counts weights, each with its own m rows.
    """
    rows = 8 if m <= 8 else 16
    row_blocks = -(-m // BLOCK_ROWS)
    warps = device.warps(k, form)
    tiles = -(-n // TILE)

    for pick, tuning in device.choices(rows, warps, form):
        blocks = min(16 // warps, device.shared_per_multiprocessor // (tuning.shared_bytes + RESERVED_SHARED_BYTES))
        side_by_side = max(1, multiprocessors * blocks // (row_blocks * batch))
        tiles_a_block = -(-tiles // side_by_side)
        if tiles_a_block >= pick.least:
            return Launch(tuning, (-(-tiles // tiles_a_block), row_blocks, batch))
    raise AssertionError("warps() leaves a pick that asks for no tiles")
