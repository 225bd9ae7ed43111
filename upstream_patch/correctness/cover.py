"""Which launches the lane simulator tries: a pairwise cover of everything a launch of the small-M kernel varies in."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from upstream_patch.correctness.pairwise import pairwise, uncovered
from upstream_patch.correctness.schedule import FILLS, Schedule
from upstream_patch.kernels import Variant
from upstream_patch.kernels.tuning import DEVICE_CLASSES, TILE, DeviceClass, SmallM, small_m_launch
from upstream_patch.problem import DType, Problem
from upstream_patch.reference import DISTRIBUTIONS
from upstream_patch.simulate import ORDERS, SUMS, Placement

SEED = 20260731
CASES = 2600
FULL_CASES = 20_000
_K = {
    # by warps: tuning picks them from K
    4: (64, 128, 192, 256, 320, 576, 960, 1024),
    8: (1088, 1152, 1280, 1536, 1600, 1984, 2048),
    16: (2112, 2560, 4096, 4160, 4608, 8256),
}
_N = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65, 80, 112, 129, 144, 208)
_OFFSETS = (
    (0, 0, 0, 0),
    (2, 0, 0, 0),
    (0, 4, 0, 0),
    (0, 0, 2, 0),
    (0, 0, 0, 2),
    (6, 4, 10, 14),
    (8, 8, 8, 8),
    (16, 16, 16, 16),
)
# of one card of each class; the grid follows from it
_MULTIPROCESSORS = {
    (8, 0): 108,
    (8, 6): 84,
    (8, 7): 16,
    (8, 9): 128,
    (9, 0): 132,
    (10, 0): 148,
    (10, 3): 160,
    (11, 0): 20,
    (12, 0): 170,
    (12, 1): 48,
}
_DTYPES: tuple[DType, ...] = ("bf16", "f16")


@dataclass(frozen=True)
class Picks:
    """(stages, batch) by rows, and the tightest shared memory of the devices that use them."""

    name: str
    by_rows: tuple[tuple[int, int], tuple[int, int]]
    shared_limit: int

    def tuning(self, m: int, warps: int) -> SmallM:
        return SmallM(8 if m <= 8 else 16, warps, *self.by_rows[m > 8])


def all_picks() -> tuple[Picks, ...]:
    """Every row of the tuning tables that some device class can launch."""
    found: dict[tuple[tuple[int, int], tuple[int, int]], tuple[str, DeviceClass]] = {}
    for device in DEVICE_CLASSES.values():
        for kind, table in (("", device.picks), (" deep", device.picks | device.deep)):
            key = (table[8], table[16])
            if key not in found or device.shared_per_block < found[key][1].shared_per_block:
                found[key] = (f"{device.name}{kind}", device)
    return tuple(Picks(name, key, device.shared_per_block) for key, (name, device) in found.items())


@dataclass(frozen=True)
class SimCase(Schedule):
    """One launch, and how it is scheduled."""

    picks: Picks
    warps: int
    problem: Problem
    blocks: int

    def variant(self, m: int) -> Variant:
        """The instance for ``m`` rows of this problem."""
        return Variant(self.problem.dtype, self.picks.tuning(m, self.warps))

    @property
    def id(self) -> str:
        return f"{self.problem.id} {self.variant(self.problem.m).name} blocks={self.blocks} {self.text}"


_INSTANCES = tuple(product(all_picks(), _K, _DTYPES, (0, 8)))
"""Picks, warps, dtype, and how many rows M is more than."""
_PLACEMENTS = (Placement(at_end=True), *(Placement(offsets=offsets) for offsets in _OFFSETS))
_BLOCKS = (1, 2, 3, None)
"""None: one a tile."""
_LEVELS = tuple(
    len(factor)
    for factor in (
        _INSTANCES,
        range(8),  # M
        range(24),  # index into the K of the instance's warps
        _N,
        _BLOCKS,
        DISTRIBUTIONS,
        _PLACEMENTS,
        ORDERS,
        ORDERS[1:],  # how many places further the second run's is
        SUMS,
        FILLS,
    )
)


def cover(count: int = CASES, seed: int = SEED) -> list[SimCase]:
    """``count`` cases, the same for the same seed, sorted so that neighbours share an instance."""
    cases = []
    for number, row in enumerate(pairwise(_LEVELS, count, seed)):
        picks, warps, dtype, above = _INSTANCES[row[0]]
        problem = Problem(m=above + 1 + row[1], n=_N[row[3]], k=_K[warps][row[2] % len(_K[warps])], dtype=dtype)
        tiles = -(-problem.n // TILE)
        case = SimCase(
            picks=picks,
            warps=warps,
            problem=problem,
            blocks=min(_BLOCKS[row[4]] or tiles, tiles),
            distribution=DISTRIBUTIONS[row[5]],
            placement=_PLACEMENTS[row[6]],
            order=ORDERS[row[7]],
            other_order=ORDERS[(row[7] + 1 + row[8]) % len(ORDERS)],
            sums=SUMS[row[9]],
            fill=FILLS[row[10]],
            seed=number,
        )
        cases.append(case)
    return sorted(cases, key=lambda case: (case.variant(case.problem.m).name, case.seed))


def _fixed(number: int, picks: Picks, warps: int, problem: Problem, blocks: int, placement: Placement) -> SimCase:
    """Ordinary data, with schedules and sums that take turns."""
    return SimCase(
        picks=picks,
        warps=warps,
        problem=problem,
        blocks=blocks,
        distribution="normal",
        placement=placement,
        order=ORDERS[number % 5],
        other_order=ORDERS[(number + 2) % 5],
        sums=SUMS[number % 5],
        fill=0xFF,
        seed=number,
    )


def device_launches() -> list[SimCase]:
    """One launch as the host code of each device class makes it: its own tuning and grid, 2,064 x 4,096 weights."""
    cases = []
    for number, (capability, device) in enumerate(DEVICE_CLASSES.items()):
        problem = Problem(m=(7, 16)[number % 2], n=2064, k=4096, dtype=_DTYPES[number // 2 % 2])
        launch = small_m_launch(problem.m, problem.n, problem.k, device, _MULTIPROCESSORS[capability])
        pick = (launch.tuning.stages, launch.tuning.batch)
        rows = launch.tuning.rows
        table = device.picks if device.picks[rows] == pick else device.picks | device.deep
        picks = Picks(device.name, (table[8], table[16]), device.shared_per_block)
        cases.append(_fixed(number, picks, launch.tuning.warps, problem, launch.blocks, Placement(at_end=True)))
    return cases


def long_launches() -> list[SimCase]:
    """Three and four passes over K on aligned rows, with a batch of tiles that is full and one that is not.

    Pairs of levels alone do not bring these together, and only here does one pass's reduction meet the next but one.
    """
    cases = []
    for number, (picks, k, above, partial) in enumerate(product(all_picks(), (8704, 14336), (0, 8), (True, False))):
        m = above + 1 + number % 8
        batch = picks.tuning(m, 16).batch
        problem = Problem(m=m, n=TILE if partial else TILE * (batch + 1), k=k, dtype=_DTYPES[number // 2 % 2])
        cases.append(_fixed(number, picks, 16, problem, 1, Placement()))
    return cases


def fixed_launches() -> list[SimCase]:
    """What every run of the simulator tries before the cover."""
    return [*device_launches(), *long_launches()]


def uncovered_pairs(count: int = CASES, seed: int = SEED) -> int:
    """How many pairs of levels of two factors never occur together."""
    return uncovered(_LEVELS, pairwise(_LEVELS, count, seed))
