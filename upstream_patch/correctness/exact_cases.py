"""The launches of ``exact``: every format on and off the tiles, batches, strides of x, every instance of a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from upstream_patch import kernels
from upstream_patch.correctness.case import DTYPES, LAYOUTS, problem_of
from upstream_patch.correctness.paths import Device
from upstream_patch.driver import Grid, small_m_cut
from upstream_patch.kernels import Variant
from upstream_patch.kernels.tuning import BLOCK_ROWS, DEVICE_CLASSES, FORMATS, MAX_ROWS, SLICE, TILE, Format, SmallM
from upstream_patch.problem import Problem

ROWS = tuple(m for m in (1, 7, 8, 16, 17) if m <= MAX_ROWS)
PADDINGS = (1, 8)
"""Elements between two rows of x: with 8, 16-byte loads still reach every row; with 1 they do not."""
_OFF_TILE_N = (17, 65, 1, 40, 33)
_OFF_SLICE_K = (320, 1088, 2112, 4160)
"""For 4, 8 and 16 warps, and for 16 with a second pass over K; no multiple of the 256 that a warp holds."""
_WHOLE_N, _WHOLE_K = (16, 80, 48), (1024, 2048, 3072, 5120)
"""16-byte copies reach everything."""
_BATCH = 3
_BATCH_ROWS = (5, 17, 1, 16)
_STRIDED_ROWS = (7, 17, 8, 16)
_INSTANCE_ROWS = {8: (7, 8, 1, 5), 16: (16, 9, 17, 13)}


@dataclass(frozen=True)
class ExactCase:
    """One launch. ``one_block``: a single block works through all tiles, in several batches where N is large."""

    problem: Problem
    seed: int
    unaligned: bool = False
    """Every operand lies one element past the start of its allocation; both end with the operand's last byte."""
    one_block: bool = False
    x_padding: int = 0
    """Elements between two rows of x, which nobody writes and nobody may read."""
    tuning: SmallM | None = None
    """In the place of the one that the problem takes."""

    def cut(self, device: Device) -> tuple[Variant, Grid]:
        """The instance and its grid."""
        p = self.problem
        if self.tuning is None:
            variant, grid = small_m_cut(p, *device)
        else:
            tiles = -(-p.n // TILE)
            variant, grid = Variant(p.dtype, self.tuning), (tiles, -(-p.m // BLOCK_ROWS), p.batch)
        return variant, (1, *grid[1:]) if self.one_block else grid


def cases(device: Device) -> Iterator[ExactCase]:
    """All launches on a device; only those of its instances depend on it."""
    yield from of_formats()
    yield from batches()
    yield from strides()
    yield from instances(device)


def instances(device: Device) -> Iterator[ExactCase]:
    """Each instance that the device can launch, once: one block, full batches of tiles and then one tile, so many that
    every buffer of scales is used again.

    In turn K ends inside the last warp's slice of the only pass, fills that pass, ends inside the first slice of a
    second, and fills that slice. An instance's two dtypes take K off the slice and on it. Where K is on it, operands
    are aligned.
    """
    found = kernels.variants(DEVICE_CLASSES[device[0]].name)
    for number, variant in enumerate(found):
        t = variant.tuning
        second_dtype, place = divmod(number, len(found) // len(DTYPES))
        turn = (place + second_dtype) % 4
        a_pass = t.warps * SLICE
        k = (a_pass - SLICE + t.format.group, a_pass, a_pass + t.format.group, a_pass + SLICE)[turn]
        passes = -(-k // a_pass)
        phases = -(-t.stages // t.tiles) + 2  # one more than buffers of scales
        tiles = max(1, -(-phases // passes) - 1) * t.tiles + 1
        off = turn % 2 == 0
        m = _INSTANCE_ROWS[t.rows][place // 4 % 4]
        problem = problem_of(t.format, m, tiles * TILE - 7 * off, k, DTYPES[second_dtype])
        yield ExactCase(problem, number, unaligned=turn == 2, one_block=True, tuning=t)


def of_formats() -> Iterator[ExactCase]:
    """Every format with both dtypes and every M of ``ROWS``, on and off the kernel's tiles, aligned and not."""
    for number, (form, dtype, m) in enumerate(product(FORMATS, DTYPES, ROWS)):
        turn, row = divmod(number, len(ROWS))
        k_turn = turn + (m > 8)  # M up to 8 shares an instance, so they share K
        off = problem_of(form, m, _OFF_TILE_N[(row + 2 * turn) % 5], _off_slice(form, k_turn), dtype)
        yield ExactCase(off, number)
        yield ExactCase(off, number, unaligned=True, one_block=True)
        whole = problem_of(form, m, _WHOLE_N[(row + turn) % 3], _WHOLE_K[k_turn % 4], dtype)
        yield ExactCase(whole, number, one_block=number % 2 == 0)


def batches() -> Iterator[ExactCase]:
    """Every format with every layout of x, on and off the kernel's tiles."""
    for number, (form, layout) in enumerate(product(FORMATS, LAYOUTS)):
        off, turn = number // 2 % 2, number // 4
        k = _off_slice(form, turn) if off else _WHOLE_K[turn % 3]
        n = (_OFF_TILE_N if off else _WHOLE_N)[turn % 3]
        problem = problem_of(form, _BATCH_ROWS[turn % 4], n, k, DTYPES[number % 2], layout, _BATCH)
        yield ExactCase(problem, number, unaligned=number % 5 == 0)


def strides() -> Iterator[ExactCase]:
    """Every format with every padding of x; in a batch, too."""
    for number, (form, padding) in enumerate(product(FORMATS, PADDINGS)):
        turn = number // len(PADDINGS)
        k = _off_slice(form, turn) if turn // 2 % 2 else _WHOLE_K[turn % 3]
        in_batch = turn % 3 == 2
        problem = problem_of(
            *(form, _STRIDED_ROWS[turn // 4 % 4], 40, k, DTYPES[turn % 2]),
            layout="b1k" if in_batch else "mk",
            batch=2 if in_batch else 1,
        )
        yield ExactCase(problem, number, x_padding=padding)


def _off_slice(form: Format, turn: int) -> int:
    """A K that ends inside a warp's slice, a multiple of the group."""
    k = _OFF_SLICE_K[turn % 4]
    return k + {16: 16, 32: 32, 64: 0, 128: k % 128}[form.group]
