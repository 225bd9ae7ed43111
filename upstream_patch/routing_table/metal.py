"""Which route affine weights take on Metal, stock and with our change: every M of a list is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from upstream_patch.measure.suites import REQUESTED
from upstream_patch.problem import Problem
from upstream_patch.routing_metal import M5, PARTS, AppleGpu, qmv_batch_limit, route, stock_route
from upstream_patch.routing_table.spans import ranges, table

LAST = 600
MS = range(1, LAST + 1)
GPUS: Mapping[str, AppleGpu] = {"M5, M5 Pro, M5 Max": M5, "an Ultra of that generation": AppleGpu(17, "d", nax=True)}
LIMITS: Mapping[str, AppleGpu] = {
    "generation 17 and later": M5,
    "15 and 16": AppleGpu(16, "g", nax=False),
    "13 and 14": AppleGpu(13, "g", nax=False),
    "12 and before": AppleGpu(12, "g", nax=False),
    "an Ultra of any": GPUS["an Ultra of that generation"],
}
SHAPES = (*dict.fromkeys((p.k, p.n) for p in REQUESTED), (2048, 512), (576, 4096), (4096, 4000))
"""K x N: those of the request's table, then one with few columns, a K that does not split, an N off the tile."""


def section() -> list[str]:
    """Lines of Markdown."""
    most = max(PARTS)
    return [
        "## Metal",
        "",
        "As `upstream_patch/routing_metal.py` has it, for bf16 and 4-bit weights of group size 64, contiguous, one w. "
        "No Apple GPU has run any of it: stock's side is read off MLX's public sources and headers, and ours is that "
        f"of the request, with three parts of K where {most} do not fit or do not divide K. `staged` is our schedule.",
        "",
        "Rows of x from which stock leaves its vector kernels, by K and N:",
        "",
        *table(("GPU", "both up to 2,048", "both up to 4,096", "larger"), _limits()),
        "",
        f"M was enumerated over 1 to {LAST}.",
        *(line for name, gpu in GPUS.items() for line in _routes(name, gpu)),
    ]


def _limits() -> Iterator[tuple[str, ...]]:
    for name, gpu in LIMITS.items():
        yield (name, *(str(qmv_batch_limit(gpu, longest, longest)) for longest in (2048, 4096, 4097)))


def _routes(name: str, gpu: AppleGpu) -> list[str]:
    def stock(k: int, n: int, m: int) -> str:
        return stock_route(Problem(m=m, n=n, k=k), gpu).text

    def ours(k: int, n: int, m: int) -> str:
        return route(Problem(m=m, n=n, k=k), gpu).text

    rows = [
        (
            f"{k} x {n}",
            *("; ".join(f"{span}: {said}" for span, said in ranges(MS, partial(ask, k, n))) for ask in (stock, ours)),
        )
        for k, n in SHAPES
    ]
    return ["", f"### {name}", "", *table(("K x N", "stock by M", "ours by M"), rows)]
