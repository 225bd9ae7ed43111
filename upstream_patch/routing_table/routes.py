"""Which route each problem takes, ours and stock's: every combination is asked, at every M of a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import TypeVar, get_args

from upstream_patch.kernels.tuning import DEVICE_CLASSES, MAX_ROWS
from upstream_patch.problem import BITS, DType, Layout, Problem
from upstream_patch.routing import CROSSOVER, LARGEST, Capability, largest_k, route, stock_route
from upstream_patch.routing_table.formats import FORMATS, in_words, sized
from upstream_patch.routing_table.spans import collapse, names, ranges, table

D = TypeVar("D", Capability, Capability | None)
LAST = 2 * MAX_ROWS
MS = (*range(1, LAST + 1), *(m for m in (128, 1024, 65536) if m > LAST))
CLASSES: Mapping[str, Capability] = {device.name: capability for capability, device in DEVICE_CLASSES.items()}
SHAPES: Mapping[str, Callable[[int], tuple[int, int]]] = {
    "4096 x 4096": lambda group: (4096, 4096),
    "(4096 + group size) x 1001": lambda group: (4096 + group, 1001),
}
"""K x N by group size: one that suits every tile, and one that suits as few as a group size lets it."""
_CUDA: Mapping[str, Capability] = {**CLASSES, "sm_75 (has no class)": (7, 5)}
_ALL: Mapping[str, Capability | None] = {**_CUDA, "no CUDA device": None}


def _longest() -> str:
    return ", ".join(f"{largest_k(bits):,} at {bits} bits" for bits in BITS)


def section() -> list[str]:
    """Lines of Markdown."""
    return [
        "## Our route",
        "",
        "`small_m` is our kernel; `stock` is the call as MLX makes it, the way of all that our kernel does not take; "
        "`stock_folded` is stock with the batch of [M, 1, K] folded into rows first.",
        "",
        f"M was enumerated over 1 to {LAST}, {', '.join(f'{m:,}' for m in MS[LAST:])}. x: mk is [M, K], 1mk is "
        "[1, M, K], b1k is [M, 1, K]. Weights are contiguous and 2-D. K x N: two shapes were asked, one that suits "
        "every tile and one that suits as few as it can; any is both.",
        "",
        f"The route is stock's beyond N = {LARGEST:,}, and beyond the K at which a warp's step over the weights no "
        f"longer fits 32 bits: {_longest()}.",
        "",
        *_routes("route by M", _ALL, route),
        "",
        "### From which M stock is better",
        "",
        *_crossovers(),
        "",
        "## What stock MLX runs",
        "",
        "The kernel family of MLX 0.32.4 for the same problems, as `routing.stock_route` has it.",
        "",
        *_routes("kernel by M", _CUDA, stock_route),
    ]


def _crossovers() -> Iterator[str]:
    """A line for what was measured, and one for all classes that were not."""
    unknown = [name for name, capability in CLASSES.items() if not CROSSOVER[capability].measured]
    for name, capability in CLASSES.items():
        found = CROSSOVER[capability]
        if found.measured:
            but = "; ".join(f"M = {m}, {k} x {n}" for m, n, k in sorted(found.slower_in_a_queue))
            yield (
                f"- {name}, measured: from none that our kernel takes (up to {found.rows}), where calls wait for one "
                f"another. Independent calls that the GPU may overlap are faster in stock at: {but or 'none'}."
            )
    yield (
        f"- {', '.join(unknown)}: not measured. Our kernel takes all it can, up to M = "
        f"{', '.join(str(rows) for rows in sorted({CROSSOVER[CLASSES[name]].rows for name in unknown}))}."
    )


@cache
def _problems(dtype: str, form: str, layout: str, shape: str) -> tuple[Problem, ...]:
    """One for each M."""
    k, n = SHAPES[shape](FORMATS[form].group_size)
    like = sized(form, 1, n, k).model_copy(update={"dtype": dtype, "layout": layout})
    return tuple(like.model_copy(update={"m": m}) for m in MS)


def _routes(head: str, devices: Mapping[str, D], ask: Callable[[Problem, D], str]) -> list[str]:
    axes: tuple[Sequence[str], ...] = (tuple(devices), get_args(DType), tuple(FORMATS), get_args(Layout), tuple(SHAPES))
    answers: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = {}
    for device, *rest in product(*axes):
        by_m = {problem.m: ask(problem, devices[device]) for problem in _problems(*rest)}
        answers[device, *rest] = tuple(ranges(MS, by_m.__getitem__))

    def rows() -> Iterator[tuple[str, ...]]:
        for (of_device, dtypes, forms, layouts, shapes), found in collapse(answers):
            yield (
                names(of_device, tuple(CLASSES), "every device class"),
                names(dtypes, axes[1]),
                in_words(forms),
                names(layouts, axes[3]),
                names(shapes, axes[4]),
                "; ".join(f"{span}: `{answer}`" for span, answer in found),
            )

    return table(("device", "dtype of x", "weights", "x", "K x N", head), rows())
