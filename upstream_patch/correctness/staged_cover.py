"""Which launches of our staged Metal kernels the simulator tries: a pairwise cover, or the whole cross."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from upstream_patch.correctness.pairwise import pairwise, uncovered
from upstream_patch.correctness.schedule import FILLS, Schedule
from upstream_patch.kernels.metal import BITS, GROUPS, ROWS, STEP, TYPES, Staged
from upstream_patch.problem import Problem
from upstream_patch.reference import DISTRIBUTIONS
from upstream_patch.simulate import ORDERS, SUMS, Placement
from upstream_patch.simulate.metal.staged import of_kind
from upstream_patch.simulate.metal.stock import FLAT, LAYOUTS, Layout, Quantization

SEED = 20261130
CASES = 440
QUANTIZATIONS = tuple(Quantization(*each) for each in product(BITS, GROUPS, TYPES))
_HALF = tuple(
    Quantization(bits, group, tuple(TYPES)[(i + j) % 2])
    for i, bits in enumerate(BITS)
    for j, group in enumerate(GROUPS)
)
"""Every pair of bits, group and dtype: each library that is compiled costs more than its launches."""
_ELEMENTS = ((0, 0, 0, 0), (4, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (12, 1, 5, 7))
"""Where x, w, scales and biases start, in elements after a page's start, x at multiples of 8 bytes; past the last, at
the end of theirs."""
_DISTRIBUTIONS = tuple(each for each in DISTRIBUTIONS if each not in ("positive", "no_bias", "zero_codes"))


@dataclass(frozen=True)
class Form:
    """A batch, or one matrix whose K may be split."""

    layout: Layout = FLAT
    parts: int = 1

    def instance(self, q: Quantization, rows: int) -> Staged:
        return of_kind(q, rows, bool(self.layout.shape), self.parts > 1)


FORMS = (*(Form(layout) for layout in LAYOUTS), *(Form(parts=parts) for parts in (2, 3, 4)))


@dataclass(frozen=True)
class StagedCase(Schedule):
    """One problem, launched with both tiles, each with its own schedule, and by the stock kernel."""

    problem: Problem
    form: Form
    stock_rows: int
    """BM of the stock kernel."""
    from_text: bool
    """What ``mx.fast`` compiles is launched, too."""

    @property
    def quantization(self) -> Quantization:
        return Quantization.of(self.problem)

    @property
    def instances(self) -> tuple[Staged, Staged]:
        """Those of the two launches."""
        rows = self.stock_rows, ROWS[1 - ROWS.index(self.stock_rows)]
        first, other = (self.form.instance(self.quantization, each) for each in rows)
        return first, other

    @property
    def id(self) -> str:
        what = f"x={self.form.layout.name} parts={self.form.parts} stock_bm={self.stock_rows}"
        return f"{self.problem.id} staged {what}{' from text' * self.from_text} {self.text}"


QUANTIZATION, ROW_COUNT, OUTPUTS, DEPTH, FORM, TILE = range(6)
FULL = (QUANTIZATION, ROW_COUNT, OUTPUTS, DEPTH)
"""What the full run takes the whole cross of."""


@dataclass(frozen=True)
class _Space:
    """The sizes that a run varies."""

    quantizations: tuple[Quantization, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    """Rounded up to what the group and the parts of K need. 64 is one step, nothing is fetched ahead of it."""
    shallow: int
    """The most K where M is past 128, in the same way: those launches cost most."""

    @property
    def levels(self) -> list[int]:
        axes = (self.quantizations, self.m, self.n, self.k, FORMS, ROWS)
        how = (len(_DISTRIBUTIONS), len(_ELEMENTS) + 1, len(ORDERS), len(ORDERS) - 1, len(SUMS), len(FILLS))
        return [*(len(each) for each in axes), *how]


USUAL = _Space(
    quantizations=_HALF,
    m=(1, 8, 16, 17, 32, 33, 48, 64, 65, 70, 129, 257),
    n=(64, 128),
    k=(64, 128, 192, 320, 448, 576),
    shallow=192,
)
WHOLE = _Space(
    quantizations=QUANTIZATIONS,
    m=(1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 70, 127, 128, 129, 255, 256, 257),
    n=(64, 128, 192),
    k=(64, 128, 192, 256, 320, 448, 512, 576, 1152),
    shallow=1152,
)


def _from_text(space: _Space) -> list[dict[int, int]]:
    """Every number of bits, in a batch, whole, and in parts, with groups, dtypes and tiles in turn."""
    forms = [FORMS.index(form) for form in (FORMS[0], FORMS[-4], FORMS[-3])]
    chosen = ((_HALF[i * len(GROUPS) + i % 3], i % 2, form) for i in range(len(BITS)) for form in forms)
    return [{QUANTIZATION: space.quantizations.index(q), TILE: tile, FORM: form} for q, tile, form in chosen]


def _depth(k: int, q: Quantization, parts: int) -> int:
    unit = parts * max(STEP, q.group_size)
    return -(-k // unit) * unit


def _placement(level: int) -> Placement:
    if level == len(_ELEMENTS):
        return Placement(at_end=True)
    x, w, scales, biases = _ELEMENTS[level]
    return Placement(offsets=(x * 2, w * 4, scales * 2, biases * 2))


def _case(space: _Space, row: Sequence[int], seed: int, from_text: bool) -> StagedCase:
    q, form, m = space.quantizations[row[QUANTIZATION]], FORMS[row[FORM]], space.m[row[ROW_COUNT]]
    k = space.k[row[DEPTH]]
    problem = Problem(
        m=m,
        n=space.n[row[OUTPUTS]],
        k=_depth(min(k, space.shallow) if m > 128 else k, q, form.parts),
        bits=q.bits,
        group_size=q.group_size,
        dtype=q.dtype,
    )
    return StagedCase(
        problem=problem,
        form=form,
        stock_rows=ROWS[row[TILE]],
        from_text=from_text,
        distribution=_DISTRIBUTIONS[row[6]],
        placement=_placement(row[7]),
        order=ORDERS[row[8]],
        other_order=ORDERS[(row[8] + 1 + row[9]) % len(ORDERS)],
        sums=SUMS[row[10]],
        fill=FILLS[row[11]],
        seed=seed,
    )


def _rows(space: _Space, full: bool, seed: int) -> tuple[list[list[int]], int]:
    """Levels of every case, and how many of the first are from the text."""
    text = _from_text(space)
    cross = product(*(range(space.levels[factor]) for factor in FULL)) if full else ()
    fixed = [*text, *(dict(zip(FULL, levels, strict=True)) for levels in cross)]
    return list(pairwise(space.levels, max(len(fixed), CASES), seed, fixed)), len(text)


def staged_cover(full: bool = False, seed: int = SEED) -> list[StagedCase]:
    """``CASES``, the same for the same seed; neighbours share a library.

    Every pair of levels of two factors occurs, of bits, group and dtype, too. ``full``: the whole cross of ``FULL``,
    with every instance.
    """
    space = WHOLE if full else USUAL
    rows, text = _rows(space, full, seed)
    cases = [_case(space, row, number, number < text) for number, row in enumerate(rows)]
    return sorted(cases, key=lambda case: (str(case.quantization), case.seed))


def uncovered_pairs(seed: int = SEED) -> int:
    """How many pairs of levels of two factors never occur together."""
    return uncovered(USUAL.levels, _rows(USUAL, False, seed)[0])
