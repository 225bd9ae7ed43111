"""The code paths of the small-M kernel on a device, and problems that together take them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal

from upstream_patch import kernels
from upstream_patch.kernels.tuning import DEVICE_CLASSES, FORMATS, SLICE, TILE, SmallM
from upstream_patch.problem import DType, Problem

Device = tuple[tuple[int, int], int]
"""Compute capability and multiprocessors."""
H200: Device = ((9, 0), 132)
Work = Literal["ragged", "full", "several"]
"""What a block works through: fewer tiles than a batch, exactly one batch, or more, the last batch not full. (Where a
batch is one tile, every batch is full.)"""


@dataclass(frozen=True)
class Path:
    """``regular``: 16-byte copies reach everything. ``passes``: whether K takes more than one pass of the block."""

    variant: str
    work: Work
    passes: Literal["one", "several"]
    regular: bool


def works(tuning: SmallM, tiles: int, blocks: int) -> set[Work]:
    """Over the blocks of a launch: block b works through tiles b, b + blocks, ..."""

    def work(count: int) -> Work | None:
        if count <= tuning.tiles:
            return "full" if count == tuning.tiles else "ragged"
        return "several" if tuning.tiles == 1 or count % tuning.tiles else None

    return {found for count in (tiles // blocks, -(-tiles // blocks)) if (found := work(count)) is not None}


def paths(problem: Problem, device: Device = H200) -> set[Path]:
    """Those that contiguous operands take; only for problems that the kernel takes."""
    variant, launch = kernels.small_m_variant(problem, *device)
    passes: Literal["one", "several"] = "one" if problem.k <= variant.tuning.warps * SLICE else "several"
    scales_in_copy = 16 // (2 if variant.tuning.format.affine else 1)
    regular = problem.n % TILE == 0 and problem.k // problem.group_size % scales_in_copy == 0
    tiles = -(-problem.n // TILE)
    return {Path(variant.name, work, passes, regular) for work in works(variant.tuning, tiles, launch.blocks)}


# Groups in K, regular and not, of 4, 8 and 16 warps, and of 16 with a second pass. Regular: every warp has work in
# every pass. The others: one group more than fewer warps, or one pass, take, so that most warps have none.
_GROUPS = ((16, 1), (32, 17), (64, 33), (128, 65))


def path_problems(device: Device = H200) -> Iterator[Problem]:
    """Problems that take every path of the device's instances, few and small; none where no instance is for it."""
    if device[0] not in DEVICE_CLASSES:
        return
    dtypes: tuple[DType, ...] = ("bf16", "f16")
    for (regular, irregular), m in product(_GROUPS, (8, 16)):
        for tiles, dtype in product(_tiles(m, regular * 64, device), dtypes):
            yield Problem(m=m, n=tiles * TILE, k=regular * 64, dtype=dtype)
            yield Problem(m=m - 3, n=tiles * TILE - 5, k=irregular * 64, dtype=dtype)


def instance_problems(device: Device = H200) -> Iterator[Problem]:
    """The smallest for every instance of every format and dtype."""
    if device[0] not in DEVICE_CLASSES:
        return
    dtypes: tuple[DType, ...] = ("bf16", "f16")
    # K of 4, 8 and 16 warps, where a format takes that many
    for form, k, m in product(FORMATS, (384, 1152, 2176), (8, 16)):
        seen = set()
        for tiles in _candidates(DEVICE_CLASSES[device[0]].warps(k, form), device):
            problem = Problem(m=m, n=tiles * TILE - 3, k=k, bits=form.bits, group_size=form.group, mode=form.mode)
            variant = kernels.small_m_variant(problem, *device)[0]
            if variant not in seen:
                seen.add(variant)
                yield from (problem.model_copy(update={"dtype": dtype}) for dtype in dtypes)


@cache
def _tiles(m: int, k: int, device: Device) -> tuple[int, ...]:
    """Few numbers of tiles that between them give the blocks every work of every instance that M and K can take."""
    found: dict[frozenset[tuple[str, Work]], int] = {}
    for tiles in _candidates(kernels.small_m_variant(Problem(m=m, n=TILE, k=k), *device)[0].tuning.warps, device):
        variant, launch = kernels.small_m_variant(Problem(m=m, n=tiles * TILE, k=k), *device)
        works_of = works(variant.tuning, tiles, launch.blocks)
        found.setdefault(frozenset((variant.name, work) for work in works_of), tiles)
    wanted = set().union(*found)
    chosen = []
    while wanted:
        best = max(found, key=lambda covers: (len(covers & wanted), -found[covers]))
        chosen.append(found[best])
        wanted -= best
    return tuple(chosen)


def _candidates(warps: int, device: Device) -> list[int]:
    """Numbers of tiles, least first: the least and the most that give a block so many, and one less than that.

    Up to what every cut of a block asks for, and two batches more.
    """
    limits = DEVICE_CLASSES[device[0]]
    most = max(limits.levels) + 2 * max(pick.tiles for picks in limits.picks.values() for pick in picks)
    found = set()
    for count, side_by_side in product(range(1, most + 1), range(1, 16 // warps + 1)):
        blocks = device[1] * side_by_side
        found |= {(count - 1) * blocks + 1, count * blocks - 1, count * blocks}
    return sorted(found - {0})
