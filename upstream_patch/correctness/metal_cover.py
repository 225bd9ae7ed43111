"""Which launches of MLX's own Metal kernels the simulator tries: a pairwise cover for each of the kernels."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from upstream_patch.correctness.pairwise import pairwise, uncovered
from upstream_patch.correctness.schedule import FILLS, Schedule
from upstream_patch.problem import DTYPE_BYTES, DType, Problem
from upstream_patch.reference import BITS, DISTRIBUTIONS, GROUPS
from upstream_patch.simulate import ORDERS, SUMS, Placement
from upstream_patch.simulate.metal.launches import Launch, accumulate_launch, launch_of
from upstream_patch.simulate.metal.source import Instance
from upstream_patch.simulate.metal.stock import FAMILY, FLAT, LAYOUTS, NAX_ROWS, VECTORS, Layout, Quantization, Route

SEED = 20261129
CASES: dict[Route, int] = {"nax": 1200, "wide": 400, "splitk": 360}
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


QUANTIZATION, M, N, K, TILE, LAYOUT = range(6)


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
        """How many each factor has: the kernel's own, ``QUANTIZATION`` to ``LAYOUT``, then data and schedule."""
        sizes = [len(each) for each in (self.quantizations, self.m, self.n, self.k, self.tiles, self.layouts)]
        return [*sizes, len(_DISTRIBUTIONS), len(_ELEMENTS) + 1, len(ORDERS), len(ORDERS) - 1, len(SUMS), len(FILLS)]

    def cross(self, factors: Sequence[int]) -> Iterator[dict[int, int]]:
        """Every combination of the levels of some factors, by factor."""
        for combination in product(*(range(self.levels[factor]) for factor in factors)):
            yield dict(zip(factors, combination, strict=True))


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


FULL = (QUANTIZATION, M, N, TILE, LAYOUT)
"""What the full run takes the whole cross of, of every quantization on every route: all that chooses the code and the
edges of tiles. Steps of K, data, placement and schedule vary over it pairwise, as in the default run."""


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
        return Quantization.of(self.problem)

    @property
    def launches(self) -> tuple[Launch, Launch]:
        """The two matmuls."""
        first, other = (launch_of(self.route, self.problem, self.layout, t) for t in (self.tile, self.other_tile))
        return first, other

    @property
    def instances(self) -> set[Instance]:
        """What the case launches, with the sum of split-K's parts."""
        matmuls = {launch.instance for launch in self.launches}
        return {*matmuls, accumulate_launch(self.problem).instance} if self.route == "splitk" else matmuls

    @property
    def id(self) -> str:
        return f"{self.problem.id} {self.route} tile={self.tile}/{self.other_tile} x={self.layout.name} {self.text}"


def _placement(level: int, dtype: DType) -> Placement:
    if level == len(_ELEMENTS):
        return Placement(at_end=True)
    x, w, scales, biases = _ELEMENTS[level]
    size = DTYPE_BYTES[dtype]
    return Placement(offsets=(x * size, w * 4, scales * size, biases * size))


def _case(route: Route, space: _Space, row: Sequence[int], seed: int) -> MetalCase:
    q, tile = space.quantizations[row[QUANTIZATION]], space.tiles[row[TILE]]
    problem = Problem(
        m=space.m[row[M]],
        n=space.n[row[N]],
        k=_k(route, space.k[row[K]], tile, q.group_size),
        bits=q.bits,
        group_size=q.group_size,
        dtype=q.dtype,
    )
    return MetalCase(
        route=route,
        problem=problem,
        layout=space.layouts[row[LAYOUT]],
        tile=tile,
        other_tile=tile if route == "splitk" else space.tiles[(row[TILE] + 1) % len(space.tiles)],
        distribution=_DISTRIBUTIONS[row[6]],
        placement=_placement(row[7], q.dtype),
        order=ORDERS[row[8]],
        other_order=ORDERS[(row[8] + 1 + row[9]) % len(ORDERS)],
        sums=SUMS[row[10]],
        fill=FILLS[row[11]],
        seed=seed,
    )


@cache
def _every_instance(route: Route, seed: int) -> tuple[Mapping[int, int], ...]:
    """Levels with which a few cases launch every instance of a route's libraries."""
    space = SPACES[route]
    choices = list(space.cross((QUANTIZATION, N, TILE, LAYOUT)))
    random.Random(seed).shuffle(choices)
    launched: set[Instance] = set()
    found = []
    for choice in choices:
        row = [choice.get(factor, 0) for factor in range(len(space.levels))]
        instances = _case(route, space, row, 0).instances
        if not instances <= launched:
            launched |= instances
            found.append(choice)
    return tuple(found)


def cases_of(route: Route, full: bool = False, seed: int = SEED) -> list[MetalCase]:
    """Of one route: see ``metal_cover``."""
    space = replace(SPACES[route], quantizations=ALL) if full else SPACES[route]
    fixed = list(space.cross(FULL)) if full else _every_instance(route, seed)
    rows = pairwise(space.levels, max(len(fixed), CASES[route]), seed, fixed)
    return [_case(route, space, row, number) for number, row in enumerate(rows)]


def metal_cover(full: bool = False, seed: int = SEED) -> list[MetalCase]:
    """``CASES`` of each route, the same for the same seed; neighbours share a library.

    Every pair of levels of two factors occurs, and every instance of every library is launched. ``full``: the whole
    cross of ``FULL`` in place of that.
    """
    cases = [case for route in SPACES for case in cases_of(route, full, seed)]
    return sorted(cases, key=lambda case: (FAMILY[case.route], str(case.quantization), case.seed))


def uncovered_pairs(route: Route, seed: int = SEED) -> int:
    """How many pairs of levels of two factors never occur together."""
    levels = SPACES[route].levels
    return uncovered(levels, pairwise(levels, CASES[route], seed, _every_instance(route, seed)))
