"""Which problems are tried, and why each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from upstream_patch.correctness.bug_cases import bug_cases
from upstream_patch.correctness.case import DTYPES, FORMS, LAYOUTS, Case, Form, problem_of
from upstream_patch.correctness.paths import H200, Device, instance_problems, path_problems
from upstream_patch.kernels.tuning import FLOATING, FORMATS, MAX_ROWS, USUAL
from upstream_patch.problem import Problem
from upstream_patch.reference import DISTRIBUTIONS, distributions

OFF_TILE_N = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 1000)
TILE_K = (64, 128, 192, 320, 576, 1024, 4096, 4160, 14336)
_ROW_SHAPES = ((64, 1024), (129, 4096), (1000, 576), (2048, 2048), (17, 4160))


def _rows() -> Iterator[Case]:
    """Every M, dtype and layout, over shapes that take turns; past 16 rows, with the layouts by turns too."""
    for i, (m, dtype, layout) in enumerate(product(range(1, MAX_ROWS + 1), DTYPES, LAYOUTS)):
        n, k = _ROW_SHAPES[i % len(_ROW_SHAPES)]
        if m <= 16 or (m + i // 3) % 3 == i % 3:
            yield Case("rows", Problem(m=m, n=n, k=k, dtype=dtype, layout=layout))


def _shapes() -> Iterator[Case]:
    for i, (n, dtype, m) in enumerate(product(OFF_TILE_N, DTYPES, (1, 7, 16))):
        # mlx 3487: the last scales and biases are the last bytes of their buffers
        yield Case("n_off_tile", Problem(m=m, n=n, k=192, dtype=dtype, layout=LAYOUTS[i % 3]))
    for i, (k, dtype, m) in enumerate(product(TILE_K, DTYPES, (2, 8, 9))):
        # mlx 3444: K a multiple of the group but not of the K tile
        yield Case("k_off_tile", Problem(m=m, n=129, k=k, dtype=dtype, layout=LAYOUTS[i % 3]))
    for n, k in ((1, 64), (1, 14336), (15, 4160), (4097, 320), (4096, 4096)):
        yield Case("corner", Problem(m=5, n=n, k=k))


def _data() -> Iterator[Case]:
    for distribution, dtype, m in product(DISTRIBUTIONS, DTYPES, (1, 3, 8, 16)):
        yield Case("data", Problem(m=m, n=257, k=1024, dtype=dtype), distribution)
    for seed, dtype in product(range(8), DTYPES):
        # 8 seeds of 16 rows: each of the 128 positions of two groups is the hot one once
        yield Case("lane_ownership", Problem(m=16, n=130, k=128, dtype=dtype), "one_hot", seed=seed)
    for seed, form in product(range(4), FLOATING):
        # each of the 64 positions of two groups, or of four
        yield Case("lane_ownership", problem_of(form, 16, 130, 64, DTYPES[seed // 2]), "one_hot", seed=seed)


DISTINCT_ROWS = 1021
"""A prime above the number of blocks: two tiles of one block, or neighbours, never hold the same weights."""


def _paths(device: Device, full: bool) -> Iterator[Case]:
    """Every 4-bit instance that the device launches, with blocks of less than a batch, a batch, and several; with
    ``full``, every other one once."""
    for problem in path_problems(device):
        yield Case("paths", problem, distinct=DISTINCT_ROWS)
    if full:
        for problem in instance_problems(device):
            yield Case("instances", problem, distinct=DISTINCT_ROWS)


def _repeats() -> Iterator[Case]:
    for m in (1, 2, 8, 16, 32):
        # vllm 56887: needed about 50 calls to show
        yield Case("repeats", Problem(m=m, n=2048, k=4096))


def _memory() -> Iterator[Case]:
    for dtype, m, k in product(DTYPES, (1, 7, 16), (64, 320, 1024)):
        # mlx 1577: bytes behind x, scales and biases are NaN
        yield Case("margins", Problem(m=m, n=33, k=k, dtype=dtype), form="margins")
        yield Case("odd_offset", Problem(m=m, n=33, k=k, dtype=dtype), form="odd_offset")
    forms = [form for form in FORMS if form not in ("plain", "margins", "odd_offset", "not_transposed")]
    for form, dtype, m in product(forms, DTYPES, (2, 8)):
        yield Case("memory", Problem(m=m, n=66, k=320, dtype=dtype), form=form, route="any")
    for number, form in enumerate(forms):
        problem = problem_of(FLOATING[number % 3], 4, 66, 320, DTYPES[number // 3 % 2])
        yield Case("memory", problem, form=form, route="any")


_FORMAT_SHAPES = ((256, 4096), (17, 4352), (96, 2176), (33, 384), (1, 128), (130, 1152), (64, 8448))
"""(N, K): on and off the tile, one pass over K and several, 4, 8 and 16 warps."""


_SOME_ROWS = (*range(1, 17), 17, 24, 25, 31, 32)
"""A second block of 16 rows with one, a tile of 8, one more, and all or all but one."""


def _formats(full: bool) -> Iterator[Case]:
    """Every format with every M (without ``full``, some past 16), each with one dtype, layout and shape by turns; or
    with every dtype and layout, and the shape by turns."""
    for turn, (form, m) in enumerate(product(FORMATS, range(1, MAX_ROWS + 1) if full else _SOME_ROWS)):
        for i, (dtype, layout) in enumerate(product(DTYPES, LAYOUTS)):
            if not full and i != (turn * 5 + turn // 6) % 6:
                continue
            n, k = _FORMAT_SHAPES[(turn + turn // 7 + i) % len(_FORMAT_SHAPES)]
            # a part of a block of 64 more, where groups are smaller
            k += turn // 2 * form.group % 64
            yield Case("formats", problem_of(form, m, n, k, dtype, layout))
    data = [(form, distribution) for form in FORMATS for distribution in distributions(form.mode)]
    for number, (form, distribution) in enumerate(data):
        for dtype in DTYPES if full else DTYPES[number % 2 :][:1]:
            yield Case("format_data", problem_of(form, 9, 65, 640, dtype), distribution)
    forms: tuple[Form, ...] = ("margins", "odd_offset")
    for number, (form, memory) in enumerate(product(FORMATS, forms)):
        yield Case("format_memory", problem_of(form, 3, 33, 640, DTYPES[number // 2 % 2]), form=memory)


def _batches(full: bool) -> Iterator[Case]:
    """A batch of weights: of the usual format every row count, dtype and layout; of each other one, or all as well."""
    rows, shapes = (1, 2, 7, 8, 9, 16, 17, 32), ((65, 640), (16, 1024), (130, 384))
    for number, (form, m, dtype, layout) in enumerate(product(FORMATS, rows, DTYPES, LAYOUTS)):
        turn = FORMATS.index(form)
        if full or number % 48 == turn * 19 % 48 or (form == USUAL and m in (1, 8, 17, 32)):
            n, k = shapes[(number + number // 3) % 3]
            k += number * form.group % 64
            yield Case("weight_batch", problem_of(form, m, n, k, dtype, layout, 2 + number % 4))


def _fallback() -> Iterator[Case]:
    """What our kernel must leave to the stock route, with the right answer all the same."""
    for layout in LAYOUTS:
        yield Case("f32", Problem(m=4, n=65, k=256, dtype="f32", layout=layout), route="other")
    for m, layout in product((33, 48), LAYOUTS):
        yield Case("more_rows", Problem(m=m, n=130, k=512, layout=layout), route="other")
    for dtype, m in product(DTYPES, (1, 7)):
        yield Case("not_transposed", Problem(m=m, n=128, k=192, dtype=dtype), form="not_transposed", route="any")
    # mlxcel 648: more batch entries than a grid axis has. Stock's Hopper kernel, which it takes where K is one group,
    # gives zeros: so two groups.
    yield Case("huge_batch", Problem(m=65_537, n=16, k=128, layout="b1k"), route="other")


def matrix(device: Device = H200, full: bool = False) -> list[Case]:
    """All cases, each id once: above a thousand; a few minutes on a GPU host. ``paths`` depend on the device.

    ``full``: every format with every M, dtype and layout, more than six thousand cases.
    """
    cases = [*_rows(), *_shapes(), *_data(), *_formats(full), *_batches(full)]
    cases += [*_repeats(), *_memory(), *_fallback(), *_paths(device, full), *bug_cases(full)]
    return list({case.id: case for case in cases}.values())
