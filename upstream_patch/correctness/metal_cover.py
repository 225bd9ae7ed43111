"""Which launches of MLX's own Metal kernels the simulator tries: a pairwise cover for each of the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from upstream_patch.correctness.pairwise import pairwise, uncovered
from upstream_patch.correctness.schedule import FILLS, Schedule
from upstream_patch.problem import DTYPE_BYTES, DType, Problem
from upstream_patch.reference import BITS, DISTRIBUTIONS, GROUPS
from upstream_patch.simulate import ORDERS, SUMS, Placement
from upstream_patch.simulate.metal.stock import FAMILY, FLAT, LAYOUTS, NAX_ROWS, VECTORS, Layout, Quantization, Route

SEED = 20261129
CASES: dict[Route, int] = {"nax": 1200, "wide": 400, "splitk": 360}
FULL_FACTOR = 6
_DTYPES: tuple[DType, ...] = ("bf16", "f16", "f32")
ALL = tuple(Quantization(*each) for each in product(BITS, GROUPS, _DTYPES))
SQUARE = tuple(
    Quantization(bits, group, _DTYPES[(i + j) % 3]) for i, bits in enumerate(BITS) for j, group in enumerate(GROUPS)
)
"""Every pair of bits, group and dtype, not every triple: for the kernels that older GPUs take."""
_ELEMENTS = ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (3, 1, 5, 7))
"""Where x, w, scales and biases start, in elements after a page's start; None of them at the end of theirs."""
_DISTRIBUTIONS = tuple(each for each in DISTRIBUTIONS if each not in ("positive", "no_bias", "zero_codes"))
"""Not those that aim at the offset which only our CUDA kernel adds."""


@dataclass(frozen=True)
class _Space:
    """What one route's launches vary in. ``k`` counts in the least step that the kernel takes: see ``_k``."""

    quantizations: tuple[Quantization, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    tiles: tuple[int, ...]
    layouts: tuple[Layout, ...]

    @property
    def levels(self) -> list[int]:
        sizes = [len(each) for each in (self.quantizations, self.m, self.n, self.k, self.tiles, self.layouts)]
        return [*sizes, len(_DISTRIBUTIONS), len(_ELEMENTS) + 1, len(ORDERS), len(ORDERS) - 1, len(SUMS), len(FILLS)]


SPACES: dict[Route, _Space] = {
    "nax": _Space(
        ALL,
        m=(1, 8, 16, 17, 31, 32, 33, 63, 64, 70),
        n=(64, 128, 1, 33, 63, 65, 100),
        k=(1, 2, 3, 4, 5, 7),
        tiles=NAX_ROWS,
        layouts=LAYOUTS,
    ),
    "wide": _Space(
        SQUARE,
        m=(2, 3, 4, 5, 6, 7, 9, 10, 13),
        n=(1, 7, 8, 9, 16, 31, 40),
        k=(1, 2, 3, 7, 8, 9, 16, 17),
        tiles=VECTORS,
        layouts=LAYOUTS,
    ),
    "splitk": _Space(
        SQUARE,
        m=(1, 8, 31, 32, 33, 40, 64),
        n=(32, 64, 96, 1, 33, 63),
        k=(1, 2, 3),
        tiles=(1, 2, 3, 4),
        layouts=(FLAT,),
    ),
}


def _k(route: Route, steps: int, tile: int, group: int) -> int:
    """K a multiple of 64 and the group; of the group; or of a part that is whole steps of 32 and whole groups."""
    return {"nax": steps * max(64, group), "wide": steps * group, "splitk": tile * steps * max(32, group)}[route]


@dataclass(frozen=True)
class MetalCase(Schedule):
    """One launch, and how it is scheduled."""

    route: Route
    problem: Problem
    layout: Layout
    tile: int
    """BM of qmm_t_nax, vectors of qmv_wide, parts of K of qmm_t_splitk."""
    other_tile: int
    """The same bits must come out with it; the parts of K are the same."""

    @property
    def quantization(self) -> Quantization:
        return Quantization(self.problem.bits, self.problem.group_size, self.problem.dtype)

    @property
    def id(self) -> str:
        return f"{self.problem.id} {self.route} tile={self.tile}/{self.other_tile} x={self.layout.name} {self.text}"


def _placement(level: int, dtype: DType) -> Placement:
    if level == len(_ELEMENTS):
        return Placement(at_end=True)
    x, w, scales, biases = _ELEMENTS[level]
    size = DTYPE_BYTES[dtype]
    return Placement(offsets=(x * size, w * 4, scales * size, biases * size))


def _cases(route: Route, full: bool, seed: int) -> Iterator[MetalCase]:
    space = replace(SPACES[route], quantizations=ALL) if full else SPACES[route]
    count = CASES[route] * (FULL_FACTOR if full else 1)
    for number, row in enumerate(pairwise(space.levels, count, seed)):
        q, tile = space.quantizations[row[0]], space.tiles[row[4]]
        problem = Problem(
            m=space.m[row[1]],
            n=space.n[row[2]],
            k=_k(route, space.k[row[3]], tile, q.group_size),
            bits=q.bits,
            group_size=q.group_size,
            dtype=q.dtype,
        )
        yield MetalCase(
            route=route,
            problem=problem,
            layout=space.layouts[row[5]],
            tile=tile,
            other_tile=tile if route == "splitk" else space.tiles[(row[4] + 1) % len(space.tiles)],
            distribution=_DISTRIBUTIONS[row[6]],
            placement=_placement(row[7], q.dtype),
            order=ORDERS[row[8]],
            other_order=ORDERS[(row[8] + 1 + row[9]) % len(ORDERS)],
            sums=SUMS[row[10]],
            fill=FILLS[row[11]],
            seed=number,
        )


def metal_cover(full: bool = False, seed: int = SEED) -> list[MetalCase]:
    """``CASES`` of each route, the same for the same seed; neighbours share a library.

    ``full``: ``FULL_FACTOR`` times as many, of every quantization on every route.
    """
    cases = [case for route in SPACES for case in _cases(route, full, seed)]
    return sorted(cases, key=lambda case: (FAMILY[case.route], str(case.quantization), case.seed))


def uncovered_pairs(route: Route, seed: int = SEED) -> int:
    """How many pairs of levels of two factors never occur together."""
    levels = SPACES[route].levels
    return uncovered(levels, pairwise(levels, CASES[route], seed))
