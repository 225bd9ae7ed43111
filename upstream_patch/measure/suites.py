"""What is measured: the shapes and protocols of every suite, as data that needs no MLX, and their only home."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

from upstream_patch.errors import UserError
from upstream_patch.kernels.tuning import FORMATS, MAX_ROWS, USUAL
from upstream_patch.measure.model_shapes import all_projections
from upstream_patch.problem import DType, Layout, Problem
from upstream_patch.records.schema import Arm

Cache = Literal["cold", "hot"]
Order = Literal["queue", "chain"]


@dataclass(frozen=True)
class Spec:
    """One row to be measured."""

    problem: Problem
    cache: Cache = "cold"
    order: Order = "queue"

    @property
    def id(self) -> str:
        suffix = "" if self.cache == "cold" else f".{self.cache}"
        return self.problem.id + suffix + ("" if self.order == "queue" else f".{self.order}")


@dataclass(frozen=True)
class Suite:
    name: str
    purpose: str
    rows: tuple[Spec, ...]
    rounds: int = 12
    """A multiple of 6: every order of the three arms comes equally often."""
    where: Literal["cuda", "m5"] = "cuda"
    """The machine that it is for: any CUDA GPU, or an Apple GPU with matrix units (M5)."""


@dataclass(frozen=True)
class Profiled:
    """One operation for Nsight Compute."""

    problem: Problem
    arm: Arm


LLAMA_8B = ((4096, 1024), (4096, 4096), (4096, 14336), (14336, 4096), (4096, 28672), (4096, 128256))
"""K x N of Llama-3.1-8B: k and v, q and o, gate or up, down, gate and up fused, head."""
ROWS = (1, 2, 4, 7, 8, 16, 32)
BATCH_ROWS = (2, 8, 16)
"""Of x as [M, 1, K]: one that stock takes row by row, and two where it reads the weights once a row all the same."""
_DTYPES: tuple[DType, ...] = ("bf16", "f16")
PROFILED = ((4096, 28672), (4096, 128256))
"""K x N that Nsight Compute profiles."""
PROFILED_ROWS = (1, 2, 4, 7, 8, 16)


def _specs(
    shapes: tuple[tuple[int, int], ...],
    rows: tuple[int, ...],
    layout: Layout = "mk",
    cache: Cache = "cold",
    order: Order = "queue",
) -> tuple[Spec, ...]:
    return tuple(Spec(Problem(m=m, n=n, k=k, layout=layout), cache, order) for k, n in shapes for m in rows)


_SHAPE = {"k": 4096, "n": 14336}
"""Where every format is compared."""


def _formats() -> tuple[Spec, ...]:
    """Every format but the usual one, at the most rows that cost no more than one."""
    others = [form for form in FORMATS if form != USUAL]
    return tuple(Spec(Problem(m=8, bits=bits, group_size=group, mode=mode, **_SHAPE)) for bits, group, mode in others)


def _formats_full() -> tuple[Spec, ...]:
    """Every format in bf16 and f16, from one row to the most."""
    return tuple(
        Spec(Problem(m=m, bits=bits, group_size=group, mode=mode, dtype=dtype, **_SHAPE))
        for (bits, group, mode), dtype, m in product(FORMATS, _DTYPES, (1, 4, 8, 16, 32))
    )


MODEL_ROWS = (1, 8, 16)
EDGES = (1, 7, 8, 9, 16, 17, 32, 33)
"""Row counts on both sides of a change: stock's row-by-row kernel ends at 7, our blocks of rows at 8, 16 and 32."""


def _boundary() -> tuple[Spec, ...]:
    """All row counts where they meet the most kernels; the edges where the layout, N or the bits give stock others."""
    square = ((4096, 4096),)
    edges = (Problem(m=m, n=n, k=4096, bits=bits) for n, bits in ((4112, 4), (4096, 3)) for m in EDGES)
    return (
        _specs(square, tuple(range(1, MAX_ROWS + 2)))
        + _specs(square, EDGES[1:], "b1k")
        + tuple(Spec(problem) for problem in edges)
    )


_SMALL_M = (
    _specs(LLAMA_8B, ROWS)
    + _specs(LLAMA_8B, BATCH_ROWS, "b1k")
    + _specs(((8192, 8192), (4096, 6144)), ROWS)
    + _specs(((4096, 4096), (4096, 28672), (14336, 4096)), (1, 7, 8, 16), order="chain")
    + _specs(((4096, 1024),), (8, 16, 32), order="chain")
    # one copy that every L2 here holds (GB10's is 24 MB); a larger one would not be hot
    + _specs(((4096, 1024), (4096, 4096)), (1, 7, 8), cache="hot")
)

REQUESTED: tuple[Problem, ...] = tuple(
    Problem(m=m, n=n, k=k)
    for k, n, m in (
        *((2048, 2048, 22), (4096, 4096, 16), (768, 4096, 16), (256, 4096, 16), (10752, 2048, 85), (14336, 4096, 33)),
        *((256, 4096, 40), (17408, 5120, 56), (5120, 17408, 28), (4096, 4096, 512), (4096, 14336, 8)),
    )
)
"""The operators of the Metal request's table; the last two are its controls."""


@dataclass(frozen=True)
class Slope:
    """The request's protocol of its operators: a chain of ``calls + short`` calls that depend on one another less one
    of ``short``, the least of ``repeats`` differences, a call, less the same of the glue; the weights take turns."""

    calls: int = 64
    short: int = 8
    repeats: int = 3
    weight_sets: int = 8
    rounds: int = 12
    """The request has 6, which are too few for a verdict (``stats.ENOUGH_SAMPLES``); 12 turn the three arms evenly."""


@dataclass(frozen=True)
class ModelPass:
    """A row of the request's table of models: one forward pass over so many random tokens with a fresh cache."""

    name: str
    tokens: tuple[int, ...]
    last_only: bool = False
    """The output head takes the last token only, as the request's pass on a prompt does; our tokens are random here,
    too, since a prompt's text changes no shape."""


SLOPE = Slope()
MODEL_PASSES = (
    ModelPass("d1-3B-4bit", (85, 643), last_only=True),
    ModelPass("LFM2.5-1.2B-Instruct-4bit", (32,)),
    ModelPass("Llama-3.2-1B-Instruct-4bit", (128, 512)),
    ModelPass("Qwen3.5-4B-4bit", (32, 128)),
    ModelPass("Qwen3.6-27B-4bit", (32, 128)),
    ModelPass("Qwen3.6-35B-A3B-4bit", (128,)),
)
"""Paired as the operators are, in ``SLOPE.rounds`` rounds."""
VOCABULARY = 32_000
"""Their tokens are drawn below this: every model of the table has more."""
REQUEST_METAL = Suite(
    "request-metal",
    "the operators of the Metal request's table, by its slope method; its models beside them",
    tuple(Spec(problem, cache="hot", order="chain") for problem in REQUESTED),
    rounds=SLOPE.rounds,
    where="m5",
)

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("small-m", "stock and ours at 1 to 32 rows on the shapes of Llama-3.1-8B", _SMALL_M),
        Suite("formats", "every other width, group size and mode at 8 rows of bf16", _formats()),
        Suite("formats-full", "every width, group size, mode and dtype, 1 to 32 rows", _formats_full()),
        Suite("models", "the projections of five models at 1, 8 and 16 rows", _specs(all_projections(), MODEL_ROWS)),
        Suite("boundary", "every row count on both sides of every change of kernel, ours and stock's", _boundary()),
        REQUEST_METAL,
        Suite(
            "smoke",
            "every protocol once, in seconds",
            _specs(((4096, 4096),), (1, 7, 8))
            + _specs(((4096, 4096),), (8,), "b1k")
            + _specs(((4096, 4096),), (7,), cache="hot")
            + _specs(((4096, 4096),), (7,), order="chain"),
            rounds=6,
        ),
    )
}

PROFILES: dict[str, tuple[Profiled, ...]] = {
    "ncu": tuple(
        Profiled(Problem(m=m, n=n, k=k), arm) for k, n in PROFILED for m in PROFILED_ROWS for arm in ("stock", "ours")
    ),
    "ncu-smoke": tuple(Profiled(Problem(m=m, n=4096, k=4096), arm) for m in (1, 8) for arm in ("stock", "ours")),
}


def suite(name: str) -> Suite:
    """Raises UserError that lists the known names."""
    if name not in SUITES:
        raise UserError(f"there is no suite {name!r}; known: {', '.join(SUITES)}")
    return SUITES[name]


def profile_plan(name: str) -> tuple[Profiled, ...]:
    """Raises UserError that lists the known names."""
    if name not in PROFILES:
        raise UserError(f"there is no profile plan {name!r}; known: {', '.join(PROFILES)}")
    return PROFILES[name]
