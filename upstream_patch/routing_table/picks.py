"""How our kernel is cut on each device class, and the shared memory that takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, product

from upstream_patch.kernels import small_m_variant
from upstream_patch.kernels.tuning import DEVICE_CLASSES, MAX_ROWS, DeviceClass, SmallM
from upstream_patch.routing import Capability, route
from upstream_patch.routing_table.formats import FORMATS, in_words, sized
from upstream_patch.routing_table.spans import ranges, table

STEP = 256
KS = (*range(STEP, 4096 + 1, STEP), 8192, 16384, 131072)
MS = range(1, MAX_ROWS + 1)
FEW, MANY = 16, 16 * 2**20
"""Columns of w: one tile for the whole device, and thousands of them a block."""
MULTIPROCESSORS = 132
"""An H200's. Where the picks for small and large N differ, it moves the N at which they change, and nothing else."""
_EXAMPLE = "4 bits, group 64"
_TUNED_ON = {
    "sm_90": "an H200, in bf16 with K from 4,096 (blocks of 16 warps), formats other than 4 bits of group size 64 with "
    "4096 x 14336 alone; its other picks follow from the limits"
}

Cuts = Mapping[tuple[str, int, int, int], SmallM]
"""(format, K, M, N) -> template arguments."""


def section() -> list[str]:
    """Lines of Markdown."""
    return [
        "## How our kernel is cut",
        "",
        "r: rows of x a block computes, w: warps a block, which split K, s: stages of a warp's ring, t: tiles of 16 "
        "columns that wait for one reduction; then the shared memory of a block in bytes.",
        "",
        f"Enumerated over M = 1 to {MAX_ROWS}, K in steps of {STEP} up to 4,096 and "
        f"{', '.join(f'{k:,}' for k in KS if k > 4096)}, and the two ends of N: {FEW} and {MANY:,} columns. The dtype "
        "changes nothing.",
        *(line for group in _alike() for line in _class(group)),
    ]


def _alike() -> list[list[Capability]]:
    """Device classes with the same limits and picks."""
    groups: dict[str, list[Capability]] = {}
    for capability, device in DEVICE_CLASSES.items():
        groups.setdefault(repr(replace(device, name="", measured=False)), []).append(capability)
    return list(groups.values())


def _class(group: Sequence[Capability]) -> Iterator[str]:
    devices = [DEVICE_CLASSES[capability] for capability in group]
    taken = [form for form in FORMATS if route(sized(form, 1, 4096, 4096), group[0]) == "small_m"]
    cuts = {(form, k, m, n): _tuning(form, m, n, k, group[0]) for form, k, m, n in product(taken, KS, MS, (FEW, MANY))}
    columns = _columns(cuts)
    rows = [
        (in_words([form]), span, *cells)
        for form in taken
        for span, cells in ranges(KS, partial(_cells, cuts, form, [at for _, at in columns]))
    ]
    yield from ("", f"### {', '.join(device.name for device in devices)}", "", _limits(devices, cuts.values()), "")
    yield from table(("weights", "K", *(head for head, _ in columns)), rows)
    if any(cuts[form, k, m, FEW] != cuts[form, k, m, MANY] for form, k, m in product(taken, KS, MS)):
        yield from ("", _turn(_EXAMPLE, group[0]))


def _tuning(form: str, m: int, n: int, k: int, capability: Capability) -> SmallM:
    return small_m_variant(sized(form, m, n, k), capability, MULTIPROCESSORS)[0].tuning


def _columns(cuts: Cuts) -> list[tuple[str, tuple[int, int]]]:
    """Heads, and one (M, N) for each: ranges of M, and the ends of N where they differ, over every format and K."""
    at: dict[tuple[int, int], list[SmallM]] = {}
    for (_, _, m, n), cut in cuts.items():
        at.setdefault((m, n), []).append(cut)
    columns: list[tuple[str, tuple[int, int]]] = []
    for (few, many), inside in groupby(MS, lambda m: (at[m, FEW], at[m, MANY])):
        span = list(inside)
        head = f"M = {span[0]} to {span[-1]}"
        ends = [(head, FEW)] if few == many else [(f"{head}, small N", FEW), (f"{head}, large N", MANY)]
        columns += [(words, (span[0], n)) for words, n in ends]
    return columns


def _cells(cuts: Cuts, form: str, columns: Sequence[tuple[int, int]], k: int) -> tuple[str, ...]:
    return tuple(f"{_name(cuts[form, k, m, n])}: {cuts[form, k, m, n].shared_bytes:,}" for m, n in columns)


def _name(tuning: SmallM) -> str:
    return f"r{tuning.rows} w{tuning.warps} s{tuning.stages} t{tuning.tiles}"


def _limits(devices: Sequence[DeviceClass], cuts: Iterable[SmallM]) -> str:
    said = [f"{one.name}: tuned on {_TUNED_ON.get(one.name, 'a device')}." for one in devices if one.measured]
    derived = [one.name for one in devices if not one.measured]
    said += [f"{', '.join(derived)}: not run; the picks follow from the limits."] if derived else []
    most = max(cut.shared_bytes for cut in cuts)
    return (
        f"{' '.join(said)} Shared memory, bytes: {devices[0].shared_per_block:,} a block, "
        f"{devices[0].shared_per_multiprocessor:,} a multiprocessor; the most that a pick below takes is {most:,}."
    )


def _turn(form: str, capability: Capability) -> str:
    """At which N the pick changes, for one format and size of device."""
    found = ranges(range(128, 262144 + 1, 128), lambda n: _name(_tuning(form, 1, n, 4096, capability)))
    spans = "; ".join(f"N {span}: {pick}" for span, pick in found)
    return f"{form}, K = 4,096, M = 1, N in steps of 128, on {MULTIPROCESSORS} multiprocessors: {spans}."
