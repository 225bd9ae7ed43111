"""Which launches the lane simulator tries: a pairwise cover of everything a launch of the small-M kernel varies in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil

from upstream_patch.correctness.bug_cases import bug_cases
from upstream_patch.correctness.pairwise import pairwise, uncovered
from upstream_patch.correctness.schedule import FILLS, Schedule
from upstream_patch.kernels import Variant, variants
from upstream_patch.kernels.tuning import (
    DEVICE_CLASSES,
    FORMATS,
    SLICE,
    TILE,
    USUAL,
    DeviceClass,
    Format,
    SmallM,
    format_of,
    small_m_launch,
)
from upstream_patch.problem import DType, Layout, Problem
from upstream_patch.reference import distributions
from upstream_patch.simulate import ORDERS, SUMS, Placement

SEED = 20260731
CASES = 3400
FULL_CASES = 20_000
PER_TURN = 4
"""Of ``turning_launches`` in a run that is not full: each instance that it compiles takes seconds."""
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
    """What one kind of device launches for blocks of at least so many tiles."""

    name: str
    device: DeviceClass
    tiles: int

    def tuning(self, m: int, warps: int, form: Format) -> SmallM | None:
        return self.device.tuning(8 if m <= 8 else 16, warps, form, self.tiles)


def all_picks() -> tuple[Picks, ...]:
    """Every different choice of instances, on the device of least shared memory that makes it."""
    found: dict[tuple[SmallM | None, ...], Picks] = {}
    for device in sorted(DEVICE_CLASSES.values(), key=lambda device: device.shared_per_block):
        for tiles in device.levels:
            picks = Picks(f"{device.name} {tiles}", device, tiles)
            chosen = tuple(picks.tuning(m, warps, form) for m, warps, form in product((8, 16), _K, FORMATS))
            found.setdefault(chosen, picks)
    return tuple(found.values())


@dataclass(frozen=True)
class SimCase(Schedule):
    """One launch, and how it is scheduled."""

    picks: Picks
    warps: int
    problem: Problem
    blocks: int

    def variant(self, m: int) -> Variant:
        """The instance for ``m`` rows of this problem."""
        tuning = self.picks.tuning(m, self.warps, format_of(self.problem))
        assert tuning is not None  # only what fits becomes a case
        return Variant(self.problem.dtype, tuning)

    @property
    def id(self) -> str:
        return f"{self.problem.id} {self.variant(self.problem.m).name} blocks={self.blocks} {self.text}"


Instance = tuple[Picks, int, Format, DType, int]
"""Picks, warps, format, dtype, and how many rows M is more than."""


def _instances() -> Iterator[Instance]:
    """All of 4-bit weights of group size 64; of each other format one in each dtype and row count, by turns."""
    tables = all_picks()
    usual = {
        picks.tuning(above + 1, warps, USUAL): (picks, warps, above)
        for picks, warps, above in product(tables, _K, (0, 8))
    }
    for (picks, warps, above), dtype in product(usual.values(), _DTYPES):
        yield picks, warps, USUAL, dtype, above
    others = product([each for each in FORMATS if each != USUAL], _DTYPES, (0, 8))
    for number, (form, dtype, above) in enumerate(others):
        turns = [(tables[(number + i) % len(tables)], warps) for i in range(len(tables)) for warps in (16, 8, 4)]
        fit = [(picks, warps) for picks, warps in turns if all(picks.tuning(m, warps, form) for m in (1, 16))]
        picks, warps = fit[number % 3]
        yield picks, warps, form, dtype, above


_INSTANCES = tuple(_instances())
_PLACEMENTS = (Placement(at_end=True), *(Placement(offsets=offsets) for offsets in _OFFSETS))
_BLOCKS = (1, 2, 3, None)
"""None: one a tile."""
_ENTRIES: tuple[tuple[int, Layout], ...] = ((1, "mk"), (1, "b1k"), (2, "mk"), (3, "b1k"))
"""Of a batch of weights, and how x lies."""
_LEVELS = tuple(
    len(factor)
    for factor in (
        _INSTANCES,
        range(8),  # M; of 16-row instances from 9, 17 or 25 on, in turn
        range(8),  # index into the K of the instance's warps
        _N,
        _BLOCKS,
        range(max(len(distributions(form.mode)) for form in FORMATS)),
        _PLACEMENTS,
        ORDERS,
        ORDERS[1:],  # how many places further the second run's is
        SUMS,
        FILLS,
        _ENTRIES,
    )
)


def cover(count: int = CASES, seed: int = SEED) -> list[SimCase]:
    """``count`` cases, the same for the same seed, sorted so that neighbours share an instance."""
    cases = []
    for number, row in enumerate(pairwise(_LEVELS, count, seed)):
        picks, warps, form, dtype, above = _INSTANCES[row[0]]
        bits, group, mode = form
        k = _K[warps][row[2] % len(_K[warps])]
        # whole groups of 128; of fewer than 64, half of the time an odd number
        k += {16: 16 * (number % 4), 32: 32 * (number % 2), 64: 0, 128: k % 128}[group]
        batch, layout = _ENTRIES[row[11]]
        problem = Problem(
            m=above + 1 + row[1] + (number % 3 * 8 if above else 0),
            n=_N[row[3]] if batch == 1 else min(_N[row[3]], 2 * TILE + 1),  # to save time
            k=k,
            bits=bits,
            group_size=group,
            mode=mode,
            dtype=dtype,
            layout=layout,
            batch=batch,
        )
        of_mode = distributions(mode)
        tiles = -(-problem.n // TILE)
        case = SimCase(
            picks=picks,
            warps=warps,
            problem=problem,
            blocks=min(_BLOCKS[row[4]] or tiles, tiles),
            distribution=of_mode[row[5] % len(of_mode)],
            placement=_PLACEMENTS[row[6]].for_mode(mode),
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


def launched(number: int, capability: tuple[int, int], problem: Problem, placement: Placement) -> SimCase:
    """As the host code launches it on a card of that class: its own tuning and grid."""
    device, form = DEVICE_CLASSES[capability], format_of(problem)
    sizes = problem.m, problem.n, problem.k, device, _MULTIPROCESSORS[capability]
    launch = small_m_launch(*sizes, form, problem.batch)
    picks = Picks(device.name, device, ceil(problem.n / TILE / launch.blocks))
    return _fixed(number, picks, launch.tuning.warps, problem, launch.blocks, placement)


def device_launches() -> list[SimCase]:
    """One of each device class, 2,064 x 4,096 weights."""
    cases = []
    for number, capability in enumerate(DEVICE_CLASSES):
        problem = Problem(m=(7, 16, 24)[number % 3], n=2064, k=4096, dtype=_DTYPES[number // 2 % 2])
        cases.append(launched(number, capability, problem, Placement(at_end=True)))
    return cases


def long_launches() -> list[SimCase]:
    """Three and four passes over K on aligned rows, with a batch of tiles that is full and one that is not.

    Pairs of levels alone do not bring these together, and only here does one pass's reduction meet the next but one.
    """
    cases = []
    for number, (picks, k, above, partial) in enumerate(product(all_picks(), (8704, 14336), (0, 8), (True, False))):
        m = above + 1 + number % 8
        tuning = picks.tuning(m, 16, USUAL)
        assert tuning is not None  # every device splits 4-bit weights 16 ways
        n = TILE if partial else TILE * (tuning.tiles + 1)
        problem = Problem(m=m, n=n, k=k, dtype=_DTYPES[number // 2 % 2])
        cases.append(_fixed(number, picks, 16, problem, 1, Placement()))
    return cases


def fixed_launches() -> list[SimCase]:
    """What every run of the simulator tries before the cover."""
    return [*device_launches(), *long_launches()]


def instance_launches() -> list[SimCase]:
    """One of every instance that any device class can launch, neighbours alike: two passes over K, the second of one
    group, and a second batch of tiles with one column."""
    of: dict[SmallM, tuple[Picks, int]] = {}
    for picks, warps, form, m in product(all_picks(), _K, FORMATS, (8, 16)):
        tuning = picks.tuning(m, warps, form)
        if tuning is not None:
            of.setdefault(tuning, (picks, warps))
    cases = []
    for number, variant in enumerate(variants()):
        t = variant.tuning
        picks, warps = of[t]
        problem = Problem(
            m=t.rows - 7 + number % 8,
            n=TILE * t.tiles + 1,
            k=warps * SLICE + t.format.group,
            bits=t.format.bits,
            group_size=t.format.group,
            mode=t.format.mode,
            dtype="bf16" if variant.dtype == "bf16" else "f16",
        )
        placement = _PLACEMENTS[number % len(_PLACEMENTS)].for_mode(problem.mode)
        cases.append(_fixed(number, picks, warps, problem, 1, placement))
    return cases


MOST_TO_SIMULATE = 1 << 20
"""Weights of a case of the matrix: larger ones are for a GPU alone."""


def bug_launches() -> list[SimCase]:
    """The cases of ``bug_cases`` that are our kernel's, as cards of three classes launch them, neighbours alike."""
    found = [case for case in bug_cases(full=False) if case.route == "small_m" and case.form in ("plain", "margins")]
    cases = []
    for number, case in enumerate(found):
        p = case.problem
        if p.batch * p.n * p.k <= MOST_TO_SIMULATE:
            capability = ((9, 0), (12, 1), (8, 0))[number % 3]
            # at the end of pages, so that a byte too far is a fault
            made = launched(number, capability, p, Placement(at_end=True))
            cases.append(replace(made, distribution=case.distribution, seed=case.seed))
    return sorted(cases, key=lambda case: case.variant(case.problem.m).name)


def turning_launches() -> list[SimCase]:
    """What the full run tries before the cover as well, and any other a few of."""
    return [*instance_launches(), *bug_launches()]


def turn_of(cases: Sequence[SimCase], turn: int) -> list[SimCase]:
    """``PER_TURN`` of these cases, others in the next turn: all of them in as many turns as that takes."""
    turns = max(1, -(-len(cases) // PER_TURN))
    return list(cases[turn % turns * PER_TURN :][:PER_TURN])


def uncovered_pairs(count: int = CASES, seed: int = SEED) -> int:
    """How many pairs of levels of two factors never occur together."""
    return uncovered(_LEVELS, pairwise(_LEVELS, count, seed))
