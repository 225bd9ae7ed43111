"""The tables of one host. A table never holds two hosts, so one vendor's numbers never stand beside another's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import get_args

from upstream_patch.correctness import matrix
from upstream_patch.kernels.tuning import USUAL, format_of
from upstream_patch.problem import Layout, Problem, parse_problem
from upstream_patch.records.correctness_facts import KINDS
from upstream_patch.records.decode_facts import conditions
from upstream_patch.records.schema import Cache, Order, Tool
from upstream_patch.report.cells import Book, Cell, Group, Row, Table
from upstream_patch.report.series_tables import series_tables
from upstream_patch.report.trace_tables import trace_tables

_X_SHAPE: Mapping[Layout, str] = {"mk": "[M, K]", "1mk": "[1, M, K]", "b1k": "[M, 1, K]"}
_LAYOUTS = list(_X_SHAPE)
_ORDER = {"queue": "independent calls, which the GPU may overlap", "chain": "each call waits for the one before"}
_TIMES = ("stock, us", "ours, us", "stock / ours", "verdict")
_BELOW_TIMES = "Under a time: the packed bytes in that time, as a share of the run's read probe."
_BELOW_RATIO = "Under a ratio: its 95% interval over the rounds of the run (Student's t on logs)."
_DECODE = re.compile(r"(?P<stem>decode\.\w+\.(?P<model>.+)\.B(?P<b>\d+))\.\w+_tok_s")
_DECODE_ARMS = {
    "stock": "stock",
    "folded": "stock, folded",
    "ours": "ours",
    "stock_generator": "stock, BatchGenerator",
    "folded_generator": "folded, BatchGenerator",
    "ours_generator": "ours, BatchGenerator",
}
_STEP = (
    ("ms_step", ",.2f", "step"),
    ("matmul_ms", ",.2f", "matmuls"),
    ("matmul_share", ".0%", "share"),
    ("matmul_read_fraction", ".0%", "of probe"),
    ("host_ms", ",.2f", "host, with waits"),
    ("logits_error", ".1e", "logits error"),
)
"""Facts of an arm: name, digits, what the column is called."""


def tables(book: Book) -> Iterator[Table]:
    """All that have a row, in the order of the page."""
    made = (*_speed(book), *_decode(book), *trace_tables(book), _dram(book), _peer(book), _host_cost(book))
    made += (_correctness(book), _tools(book), *series_tables(book))
    yield from (table for table in made if table is not None and table.groups)


def _speed(book: Book) -> Iterator[Table]:
    """A table for each way of timing, shape of x and dtype; the usual format apart from the others."""
    found = []
    for stem in book.stems("small_m", ".ours_us"):
        name, cache, order = _protocol(stem.removeprefix(f"small_m.{book.host}."))
        problem = parse_problem(name)
        usual = format_of(problem) == USUAL
        found.append(((order, cache, not usual, problem.layout, problem.dtype, problem.batch), problem, stem))
    found.sort(
        key=lambda item: (
            *(item[0][0] != "queue", *item[0][1:3], _LAYOUTS.index(item[1].layout), *item[0][4:]),
            *(item[1].weight_bytes, item[1].k, item[1].m),
        )
    )
    for key, rows in groupby(found, key=lambda item: item[0]):
        order, cache, others, layout, dtype, batch = key
        what = f"{'Other formats' if others else '4-bit weights, group size 64'}, {dtype}, x is {_X_SHAPE[layout]}"
        if batch > 1:
            what += f", {batch} matrices at once"
        how = f"{cache} weights, {_ORDER[order]}"
        about = f"{how[0].upper()}{how[1:]}; medians. {_BELOW_TIMES if cache == 'cold' else ''} {_BELOW_RATIO}"
        anchor = "-".join(
            [book.host, "speed", order, cache, "others" if others else "usual", layout, dtype, f"{batch}"]
        )
        yield Table(
            anchor=anchor,
            title=f"{what}: {how}",
            about=about,
            columns=("format and M" if others else "M", *_TIMES),
            groups=tuple(_by_weights(book, ((problem, stem) for _, problem, stem in rows), others)),
        )


def _by_weights(book: Book, rows: Iterable[tuple[Problem, str]], others: bool) -> Iterator[Group]:
    for (k, n), members in groupby(rows, key=lambda item: (item[0].k, item[0].n)):
        made = tuple(
            Row(f"{_format(problem)}, M = {problem.m}" if others else str(problem.m), _timed(book, stem))
            for problem, stem in members
        )
        yield Group(f"{k} x {n}", made)


def _timed(book: Book, stem: str) -> tuple[Cell, ...]:
    stock, ours = (book.cell(f"{stem}.{arm}_us", ",.2f") for arm in ("stock", "ours"))
    if f"{stem}.read_fraction" in book.facts:  # hot weights have none
        share = [book.cell(f"{stem}.{name}", ".0%") for name in ("stock_read_fraction", "read_fraction")]
        stock, ours = (
            cell if cell.tone else replace(cell, below=b) for cell, b in zip((stock, ours), share, strict=True)
        )
    route, verdict = book.cell(f"{stem}.route"), book.verdict(f"{stem}.verdict")
    if not route.tone and route.text != "small_m":
        verdict = replace(verdict, below=replace(route, text="handed on to stock"))
    return stock, ours, book.ratio(stem), verdict


def _decode(book: Book) -> Iterator[Table]:
    """For each model: tokens a second, and what the step's time is made of."""
    found = sorted(
        {(match["model"], int(match["b"]), match["stem"]) for one in book.facts if (match := _DECODE.fullmatch(one))}
    )
    for model, members in groupby(found, key=lambda item: item[0]):
        stems = {b: stem for _, b, stem in members}
        what = conditions(stems, book.value) or "conditions not recorded"
        arms = [arm for arm in _DECODE_ARMS if any(f"{stem}.{arm}_tok_s" in book.facts for stem in stems.values())]
        generators = [arm for arm in arms if arm.endswith("_generator")]
        loop = [arm for arm in arms if arm not in generators]
        ratios = [
            (name, words)
            for name, words in (("speedup", "ours / stock"), ("speedup_over_folded", "ours / folded"))
            if any(f"{stem}.{name}" in book.facts for stem in stems.values())
        ]
        yield Table(
            anchor=f"{book.host}-decode-{model}",
            title=f"End-to-end decode of {model}",
            about=f"{what[:1].upper()}{what[1:]}. "
            "Tokens a second of all B sequences together; under it the time of one step. Folded: stock MLX with the "
            "batch folded into rows, and nothing else of ours. "
            + (_BELOW_RATIO if ratios else "")
            + (" BatchGenerator: mlx-lm's own loop." if generators else ""),
            columns=(
                *("B", *(f"{_DECODE_ARMS[arm]}, tok/s" for arm in loop)),
                *(column for _, words in ratios for column in (words, "verdict")),
                *(f"{_DECODE_ARMS[arm]}, tok/s" for arm in generators),
            ),
            groups=(
                Group(
                    "",
                    tuple(
                        Row(
                            str(b),
                            (
                                *(book.pair(f"{stem}.{arm}_tok_s", f"{stem}.{arm}_ms_step") for arm in loop),
                                *(cell for name, _ in ratios for cell in _judged(book, stem, name)),
                                *(book.pair(f"{stem}.{arm}_tok_s", f"{stem}.{arm}_ms_step") for arm in generators),
                            ),
                        )
                        for b, stem in stems.items()
                    ),
                ),
            ),
        )
        arms = [arm for arm in arms if any(f"{stem}.{arm}_matmul_ms" in book.facts for stem in stems.values())]
        rows = [
            Row(f"B = {b}, {_DECODE_ARMS[arm]}", tuple(book.cell(f"{stem}.{arm}_{n}", d) for n, d, _ in _STEP))
            for b, stem in stems.items()
            for arm in arms
        ]
        yield Table(
            anchor=f"{book.host}-decode-{model}-step",
            title=f"What a step of {model} is made of",
            about=f"Milliseconds; {what}. "
            "Matmuls: the step's quantized matmuls alone, each waiting for those it waits for in the step; of probe: "
            "their packed bytes in that time, as a share of the read probe. Host: what the host needs to build the "
            "step and hand it over, with the wait for room in MLX's queue where the device is slower, so its own cost "
            "is at most that. Logits error: against the same weights in fp32.",
            columns=("", *(words for _, _, words in _STEP)),
            groups=(Group("", tuple(rows)),) if rows else (),
        )


def _judged(book: Book, stem: str, name: str) -> tuple[Cell, Cell]:
    return book.ratio(stem, name=name), book.verdict(f"{stem}.{name}_verdict")


def _dram(book: Book) -> Table:
    found = sorted(
        ((parse_problem(stem.removeprefix(f"ncu.{book.host}.")), stem) for stem in book.stems("ncu", ".packed_bytes")),
        key=lambda item: (item[0].weight_bytes, item[0].id.rpartition(".M")[0], item[0].m),
    )
    groups = []
    for title, members in groupby(found, key=lambda item: _profiled(item[0])):
        rows = []
        for problem, stem in members:
            cells = [book.cell(f"{stem}.packed_bytes", ",.2f", 1e-6)]
            for arm in ("stock", "ours"):
                cell = book.cell(f"{stem}.{arm}.dram_bytes_read", ",.2f", 1e-6)
                peak = book.cell(f"{stem}.{arm}.dram_pct", ".0f", unit="%")
                cells.append(cell if cell.tone or peak.tone else replace(cell, below=peak))
            rows.append(Row(str(problem.m), tuple(cells)))
        groups.append(Group(title, tuple(rows)))
    return Table(
        anchor=f"{book.host}-dram",
        title="Bytes read from device memory, by Nsight Compute",
        about="MB (1e6 bytes) of one call on flushed caches, summed over its kernels; packed is what must be read "
        "once. Under the bytes: memory throughput, % of peak. A profiled call is not a benchmark: no times stand here.",
        columns=("M", "packed", "stock reads", "ours reads"),
        groups=tuple(groups),
    )


def _peer(book: Book) -> Table:
    groups = []
    found = [(parse_problem(stem.removeprefix(f"peer.{book.host}.")), stem) for stem in book.stems("peer", ".peer_us")]
    found.sort(key=lambda item: (item[0].weight_bytes, item[0].k, item[0].m))
    for (k, n), members in groupby(found, key=lambda item: (item[0].k, item[0].n)):
        rows = []
        for problem, stem in members:
            times = [book.cell(f"{stem}.{who}_us", ",.2f") for who in ("peer", "ours")]
            rows.append(Row(str(problem.m), (*times, book.ratio(stem), book.verdict(f"{stem}.verdict"))))
        groups.append(Group(f"{k} x {n}", tuple(rows)))
    names = sorted(
        {str(book.facts[one].value) for one in book.facts if one.startswith("peer.") and one.endswith(".peer")}
    )
    return Table(
        anchor=f"{book.host}-peer",
        title="Against PyTorch's prepacked int4 kernel",
        about=f"{' and '.join(names)}; cold weights, calls one after the other on one stream, so these times are not "
        f"the benchmark's. Repacking is in no time. {_BELOW_RATIO}",
        columns=("M", "PyTorch, us", "ours, us", "PyTorch / ours", "verdict"),
        groups=tuple(groups),
    )


def _host_cost(book: Book) -> Table:
    words = {"build": "build a call", "run": "build and enqueue it"}
    rows = tuple(
        Row(words.get(call, call), tuple(book.cell(f"{stem}.{name}_us", ",.2f") for name in ("stock", "ours", "extra")))
        for stem in book.stems("host", ".extra_us")
        if (call := stem.rpartition(".")[2])
    )
    return Table(
        anchor=f"{book.host}-host",
        title="What a call costs the host",
        about="Microseconds of one Python thread, M = 1, K = N = 512, bf16; median of alternating rounds.",
        columns=("", "stock, us", "ours, us", "more, us"),
        groups=(Group("", rows),) if rows else (),
    )


def _not_tried(book: Book) -> str:
    """A sentence on how much larger the whole matrix is today than the host's record; empty where it is not."""
    recorded = [book.facts.get(f"correctness.{book.host}.{dtype}.cases") for dtype in ("bf16", "f16")]
    tried = sum(float(fact.value) for fact in recorded if fact is not None)
    return (
        f" {missing:,.0f} cases that the matrix has today are in no record."
        if (missing := _whole() - tried) > 0
        else ""
    )


@cache
def _whole() -> int:
    """Cases of our kernel on an H200, whose matrix differs from another device's by few."""
    return len({case.id for full in (False, True) for case in matrix(full=full) if case.route == "small_m"})


def _correctness(book: Book) -> Table:
    groups = []
    for dtype in ("bf16", "f16", "f32"):
        rows = []
        for kind in KINDS:
            stem = f"correctness.{book.host}.{dtype}.{kind}"
            if f"{stem}.cases" not in book.facts:
                continue
            counts = [book.cell(f"{stem}.{name}", ",.0f") for name in ("cases", "passed", "rows_equal_alone")]
            errors = [book.cell(f"{stem}.{name}", ".2g") for name in ("max_norm_error", "stock_max_norm_error")]
            rows.append(Row(kind, (*counts, *errors)))
        if rows:
            groups.append(Group(dtype, tuple(rows)))
    return Table(
        anchor=f"{book.host}-correctness",
        title="Correctness matrix of our kernel",
        about="Each case against a float64 reference. Normal: random data whose outputs lie near 1; stress: data made "
        "to break a kernel. Alone: cases in which each row is bit for bit what it is alone. Norm error: the worst of "
        f"all cases, stock's of those that ran it.{_not_tried(book)}",
        columns=("data", "cases", "right", "alone", "norm error, ours", "stock"),
        groups=tuple(groups),
    )


def _tools(book: Book) -> Table:
    names = ("launches", "errors", "warnings", "plants_found")
    rows = tuple(
        Row(tool, tuple(book.cell(f"sanitizer.{book.host}.{tool}.{name}", ",.0f") for name in names))
        for tool in get_args(Tool)
        if f"sanitizer.{book.host}.{tool}.errors" in book.facts
    )
    return Table(
        anchor=f"{book.host}-sanitizer",
        title="compute-sanitizer",
        about="The kernel outside MLX, on buffers of exactly the operands' bytes. Plants: faults put in on purpose, "
        "each of which the tool reported.",
        columns=("tool", "launches", "errors", "warnings", "plants found"),
        groups=(Group("", rows),) if rows else (),
    )


def spoken(row: str) -> str:
    """A benchmark row's part of a fact id, in words."""
    name, cache, order = _protocol(row)
    problem = parse_problem(name)
    parts = [_profiled(problem), f"M = {problem.m}"]
    parts += ["each call waits for the one before"] if order == "chain" else []
    return ", ".join([*parts, *(["hot weights"] if cache == "hot" else [])])


def _protocol(name: str) -> tuple[str, Cache, Order]:
    """(problem id, cache, order) of a benchmark row's part of a fact id."""
    order: Order = "chain" if name.endswith(".chain") else "queue"
    name = name.removesuffix(".chain")
    cache: Cache = "hot" if name.endswith(".hot") else "cold"
    return name.removesuffix(".hot"), cache, order


def _format(problem: Problem) -> str:
    return f"{problem.bits} bits, g{problem.group_size}" if problem.mode == "affine" else problem.mode


def _profiled(problem: Problem) -> str:
    usual = format_of(problem) == USUAL and problem.dtype == "bf16" and problem.layout == "mk"
    more = "" if usual else f", {_format(problem)}, {problem.dtype}, x is {_X_SHAPE[problem.layout]}"
    return f"{problem.k} x {problem.n}{more}"
